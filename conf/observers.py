"""Step observers of plugins, named where one fails."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from interlock.core.errors import ContractError
from interlock.core.hooks import StepObserver
from interlock.core.plugin_loading import cause_of

if TYPE_CHECKING:
    from interlock.core.batch import StepPlan, StepResult


def named_observers(observers: Iterable[StepObserver]) -> list[StepObserver]:
    """The same, which raise ContractError with the name of one that raises.

    Nobody chose an observer: without its name nobody could tell which plugin ended the run.
    """
    return [_named(observe) for observe in observers]


def _named(observe: StepObserver) -> StepObserver:
    module = getattr(observe, "__module__", type(observe).__module__)
    name = f"{module}.{getattr(observe, '__qualname__', type(observe).__qualname__)}"

    def watch(plan: "StepPlan", result: "StepResult") -> None:
        try:
            observe(plan, result)
        except Exception as error:
            raise ContractError(
                f"the step observer {name} failed: {cause_of(error)}; `interlock plugins` lists "
                "what is installed"
            ) from error

    return watch
