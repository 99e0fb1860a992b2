"""What every store does alike: count why it said no, and copy bytes without holding others up."""

import threading

import numpy as np

from interlock.core.tier import KVTier


class CountedTier(KVTier):
    """A store whose failures are counted from any thread."""

    def __init__(self) -> None:
        super().__init__()
        self._counting = threading.Lock()

    def failed(self, reason: str) -> bool:
        """Count a reason; False, which is what the call then returns."""
        with self._counting:
            self.failures[reason] += 1
        return False


def copy_bytes(into: memoryview, source: memoryview) -> None:
    """`into` becomes `source` (as many bytes), without Python's lock while they are copied."""
    np.copyto(np.frombuffer(into, np.uint8), np.frombuffer(source, np.uint8))
