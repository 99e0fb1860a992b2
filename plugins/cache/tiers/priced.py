"""A store without bytes: which keys it would have, and what copies take in virtual time."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from interlock.core.component import BuildContext
from interlock.core.tier import Key, PricedTier
from interlock.plugins.cache.tiering import PricedConfig


class Priced(PricedTier):
    """Keys in order of use; the least recently used goes when it is full.

    A copy takes latency + bytes / bandwidth.
    """

    answers_at_once = True

    def __init__(self, config: PricedConfig, payload_bytes: int) -> None:
        super().__init__()
        self._config = config
        self._payload_bytes = payload_bytes
        self._keys: OrderedDict[Key, None] = OrderedDict()

    @property
    def capacity_bytes(self) -> int | None:
        """See KVTier."""
        mib = self._config.capacity_mib
        return None if mib is None else int(mib * (1 << 20))

    def used_bytes(self) -> int:
        """See KVTier."""
        return len(self._keys) * self._payload_bytes

    def holds(self, keys: Sequence[Key]) -> Sequence[bool]:
        """See KVTier."""
        return [key in self._keys for key in keys]

    def write(self, key: Key, data: memoryview) -> bool:
        """See KVTier. `data` is empty."""
        self._keys[key] = None
        self._keys.move_to_end(key)
        capacity = self.capacity_bytes
        while capacity is not None and self._keys and self.used_bytes() > capacity:
            self._keys.popitem(last=False)
        return key in self._keys

    def read(self, key: Key, into: memoryview) -> bool:
        """See KVTier. `into` is empty."""
        if key not in self._keys:
            return False
        self._keys.move_to_end(key)
        return True

    def remove(self, key: Key) -> None:
        """See KVTier."""
        self._keys.pop(key, None)

    def keys(self) -> Iterable[Key]:
        """See KVTier."""
        return list(self._keys)

    def seconds(self, payload_bytes: int) -> float:
        """See PricedTier."""
        return self._config.latency_ms / 1e3 + payload_bytes / (self._config.gb_per_s * 1e9)


def build(config: PricedConfig, context: BuildContext) -> Priced:
    """See Component."""
    return Priced(config, context.payload_bytes)
