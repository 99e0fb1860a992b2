"""The parallel seam: how a model's work is split over devices."""

from abc import ABC, abstractmethod


class ParallelStrategy(ABC):
    """Splits weights and heads and joins results."""

    @property
    @abstractmethod
    def world_size(self) -> int:
        """Number of cooperating devices."""
