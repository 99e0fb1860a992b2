"""The contract of `ParallelStrategy`."""

from interlock.core.parallel import ParallelStrategy


class ParallelContract:
    """Every promise of `ParallelStrategy`."""

    def make(self) -> ParallelStrategy:
        """A fresh strategy."""
        raise NotImplementedError

    def test_there_is_at_least_one_device(self) -> None:
        assert self.make().world_size >= 1
