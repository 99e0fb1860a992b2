from interlock.core.testing.parallel_contract import ParallelContract
from interlock.plugins.parallel import SingleDevice


class TestNone(ParallelContract):
    def make(self):
        return SingleDevice()
