"""Pages in a Mooncake store (Qin et al., arXiv 2407.00079), through its package."""

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from interlock.core.component import BuildContext
from interlock.core.errors import ConfigError
from interlock.plugins.cache.tiers import MooncakeTierConfig
from interlock.plugins.cache.tiers.deadline import Pause, TooSlowError, Workers
from interlock.plugins.cache.tiers.envelope import Envelope, space_of
from interlock.plugins.cache.tiers.network import NetworkTier, ServerError

try:
    from mooncake.store import MooncakeDistributedStore
except ImportError as error:
    raise ConfigError(
        "the mooncake tier needs the package of the Mooncake store: pip install "
        f"mooncake-transfer-engine, and the system's libibverbs ({error})"
    ) from error

ABSENT = -704
"""What the store answers for a key that it does not have."""
REASONS = {-200: "full", -800: "peer", -900: "unreachable"}
"""Codes of the store; every other one is counted as "server". Peer: another client's memory."""
JOIN_TIMEOUT_S = 20.0
"""The package itself tries for minutes."""
UNFIT = -600
"""The buffer is too small for the entry."""


class MooncakeTier(NetworkTier):
    """One object of the store for each entry; this process lends it `segment_mib` of its memory.

    Bytes come into registered buffers, one a thread, as remote direct memory access needs it.
    """

    def __init__(self, space: str, config: MooncakeTierConfig, timeout_s: float) -> None:
        """Raises ConfigError if the store's master does not let this process join."""
        self._store: Any = MooncakeDistributedStore()
        self._scratch = threading.local()
        _join(self._store, config)
        workers = Workers(config.threads, timeout_s, "mooncake-tier")
        super().__init__(space, Envelope(config.checksum), workers, Pause(config.retry_s))

    def ask(self, names: Sequence[str]) -> list[bool]:
        """See NetworkTier: one round trip."""
        codes = self._store.batch_is_exist(list(names))
        for code in codes:
            if code < 0 and code != ABSENT:
                raise _refusal(code)
        return [code == 1 for code in codes]

    def put(self, name: str, header: bytes, data: memoryview) -> None:
        """See NetworkTier."""
        code = self._store.put_parts(name, header, data)
        if code != 0:
            raise _refusal(code)

    def get(self, name: str, size: int) -> memoryview | None:
        """See NetworkTier."""
        buffer = self._buffer(size)
        code = self._store.get_into(name, buffer.ctypes.data, size)
        if code == ABSENT:
            return None
        if code < 0 and code != UNFIT:
            raise _refusal(code)
        return buffer.data[: max(0, code)]

    def delete(self, name: str) -> None:
        """See NetworkTier: even while somebody's lease on it runs."""
        code = self._store.remove(name, force=True)
        if code not in (0, ABSENT):
            raise _refusal(code)

    def close(self) -> None:
        """See KVTier. Leaving a store whose master is gone takes long: that goes on without us."""
        try:
            self._workers.call(self._store.close)
        except TooSlowError:
            self.failed("timeout")
        super().close()

    def _buffer(self, size: int) -> "np.ndarray[tuple[int], np.dtype[np.uint8]]":
        buffer: np.ndarray[tuple[int], np.dtype[np.uint8]] | None
        buffer = getattr(self._scratch, "buffer", None)
        if buffer is None or len(buffer) < size:
            if buffer is not None:
                self._store.unregister_buffer(buffer.ctypes.data)
            buffer = self._scratch.buffer = np.empty(size, np.uint8)
            if code := self._store.register_buffer(buffer.ctypes.data, size):
                del self._scratch.buffer
                raise _refusal(code)
        return buffer


def _join(store: Any, config: MooncakeTierConfig) -> None:
    settings = {
        "local_hostname": config.hostname,
        "metadata_server": config.metadata_server,
        "global_segment_size": str(config.segment_mib << 20),
        "local_buffer_size": str(config.buffer_mib << 20),
        "protocol": config.protocol,
        "rdma_devices": config.devices,
        "master_server_addr": config.master,
    }
    workers = Workers(1, JOIN_TIMEOUT_S, "mooncake-setup")
    try:
        answer = (
            f"the store answered {code}"
            if (code := workers.call(lambda: store.setup(settings)))
            else ""
        )
    except TooSlowError:
        answer = f"no answer within {JOIN_TIMEOUT_S:g} s"
    if answer:
        raise ConfigError(
            f"master={config.master} of the mooncake tier: {answer}; start it there "
            "(mooncake_master --rpc_port=PORT), and see what the package logged"
        )
    workers.close()


def _refusal(code: int) -> ServerError:
    reason = REASONS.get(code, "server")
    return ServerError(reason, lost=reason == "unreachable")


def build(config: MooncakeTierConfig, context: BuildContext) -> MooncakeTier:
    """The store of a configuration."""
    return MooncakeTier(space_of(context), config, context.load_timeout_s)
