"""What every strategy promises, and the strategies themselves."""

from interlock.core.registry import load_registry
from interlock.core.testing.parallel_contract import ParallelContract
from interlock.core.testing.thread_ranks import ThreadStrategy
from interlock.plugins.parallel.alone import SingleDevice
from interlock.plugins.parallel.tensor import TensorParallel


class TestNone(ParallelContract):
    def make(self):
        return SingleDevice()


class TestThreads(ParallelContract):
    """One that is not built in, from the core's public names alone."""

    def make(self):
        return ThreadStrategy(2, load_registry())


class TestTensor(ParallelContract):
    kinds = ("mla_moe",)

    def make(self):
        return TensorParallel(2)
