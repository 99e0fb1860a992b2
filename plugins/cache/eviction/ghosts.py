"""Memory of content that was evicted: its keys, without its pages."""

from collections.abc import Hashable, Iterable, Sequence
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

    def saved(self) -> list[tuple[int | str, V]]:
        """Keys and values as JSON has them, the oldest first."""
        return [(plain_key(key), value) for key, value in self._values.items()]

    def restore(self, saved: Iterable[tuple[int | str, V]]) -> None:
        """Remember what was saved, and nothing else."""
        self._values = {key_from(key): value for key, value in saved}
        while len(self._values) > self.most:
            self.forget_oldest()

    def forget_oldest(self) -> None:
        """Forget one key, of which there is at least one."""
        del self._values[next(iter(self._values))]


def plain_key(key: Hashable) -> int | str:
    """A key as JSON has it."""
    return key.hex() if isinstance(key, bytes) else int(str(key))


def key_from(value: int | str) -> Hashable:
    """The key that `plain_key` made this of."""
    return bytes.fromhex(value) if isinstance(value, str) else int(value)
