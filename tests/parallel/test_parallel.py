"""What every strategy promises, and the strategies themselves."""

from interlock.core.testing.parallel_contract import ParallelContract
from interlock.plugins.parallel.alone import SingleDevice
from interlock.plugins.parallel.tensor import TensorParallel


class TestNone(ParallelContract):
    def make(self):
        return SingleDevice()


class TestTensor(ParallelContract):
    kinds = ("mla_moe",)

    def make(self):
        return TensorParallel(2)
