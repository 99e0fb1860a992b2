"""Memory of content that was evicted: its keys, without its pages."""

from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

from interlock.core.prefix_index import Run

V = TypeVar("V")


def keys_of(run: Run, count: int) -> list[Hashable]:
    """Keys of the run's last `count` pages; none where the index keeps no keys."""
    if run.keys is None or count == 0:
        return []
    keys: list[Hashable] = run.keys[-count:].tolist()
    return keys


class Ghosts(Generic[V]):
    """Keys of evicted pages with a value each, in the order in which they were remembered.

    At most `most` of them: the oldest are forgotten. Every operation is O(1) a key.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._values: dict[Hashable, V] = {}

    def __len__(self) -> int:
        return len(self._values)

    def remember(self, keys: Sequence[Hashable], value: V) -> None:
        """These pages left, the last of a run first."""
        for key in reversed(keys):
            self._values.pop(key, None)
            self._values[key] = value
        while len(self._values) > self.most:
            self.forget_oldest()

    def take(self, keys: Sequence[Hashable]) -> list[V]:
        """Values of those keys that are known, which are no ghosts any more."""
        return [self._values.pop(key) for key in keys if key in self._values]

    def forget_oldest(self) -> None:
        """Forget one key, of which there is at least one."""
        del self._values[next(iter(self._values))]
