"""The executor seam: runs a planned step, for real or in virtual time."""

from abc import ABC, abstractmethod

from interlock.core.batch import StepPlan, StepResult


class Executor(ABC):
    """Runs one step at a time, in plan order."""

    virtual: bool = False
    """True: `StepResult.duration_s` is set and drives a virtual clock."""

    @abstractmethod
    def execute(self, plan: StepPlan) -> StepResult:
        """Run the step. A request that fails alone gets `RowResult.error`; raising ends the run."""

    def close(self) -> None:
        """Release what the executor holds."""
