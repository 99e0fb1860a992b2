"""Pages on a Redis or Valkey server, through the package redis."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

from interlock.core.component import BuildContext
from interlock.core.errors import ConfigError
from interlock.plugins.cache.tiers import RemoteTierConfig
from interlock.plugins.cache.tiers.deadline import Pause, Workers
from interlock.plugins.cache.tiers.envelope import Envelope, space_of
from interlock.plugins.cache.tiers.network import NetworkTier, ServerError

try:
    import redis
    from redis.backoff import NoBackoff
    from redis.connection import PythonRespSerializer
    from redis.retry import Retry
except ImportError as error:
    raise ConfigError(
        f"the remote tier needs the package redis: pip install 'interlock[tiers]' ({error})"
    ) from error

T = TypeVar("T")


def _encoded(value: object) -> Any:
    return value if isinstance(value, bytes | memoryview) else str(value).encode()


_PACKER = PythonRespSerializer(6000, _encoded)
"""Sends large values as they are; the one of hiredis, which is the better reader, copies them."""


class RemoteTier(NetworkTier):
    """One string of the server for each entry, set and read whole.

    The server evicts by its own rule (`maxmemory`, `maxmemory-policy`), and drops entries that
    were written longer than `ttl_s` ago.
    """

    def __init__(self, space: str, config: RemoteTierConfig, timeout_s: float) -> None:
        """Raises ConfigError if no server answers."""
        self._ttl_ms = round(1000 * config.ttl_s) or None
        self._client: Any = redis.Redis.from_url(
            config.url,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 0),  # the pause decides when to try again
            command_packer=_PACKER,
        )
        try:
            self._client.ping()
        except (redis.RedisError, OSError) as error:
            raise ConfigError(
                f"url={_without_password(config.url)} of the remote tier: no server answered "
                f"within {timeout_s:g} s ({error}); start one there (valkey-server, redis-server)"
            ) from error
        workers = Workers(config.threads, timeout_s, "remote-tier")
        super().__init__(space, Envelope(config.checksum), workers, Pause(config.retry_s))

    def ask(self, names: Sequence[str]) -> list[bool]:
        """See NetworkTier: one round trip."""

        def exist() -> list[bool]:
            with self._client.pipeline(transaction=False) as together:
                for name in names:
                    together.exists(name)
                return [bool(count) for count in together.execute()]

        return _translated(exist)

    def put(self, name: str, header: bytes, data: memoryview) -> None:
        """See NetworkTier."""
        whole = b"".join((header, data))
        _translated(lambda: self._client.set(name, whole, px=self._ttl_ms))

    def get(self, name: str, size: int) -> memoryview | None:
        """See NetworkTier."""

        def string() -> bytes | None:
            try:
                found: bytes | None = self._client.get(name)
            except redis.ResponseError as error:
                if not str(error).startswith("WRONGTYPE"):
                    raise
                return b""  # somebody else's value under our name
            return found

        found = _translated(string)
        return None if found is None else memoryview(found)

    def delete(self, name: str) -> None:
        """See NetworkTier: the server frees the memory beside other work."""
        _translated(lambda: self._client.unlink(name))

    def close(self) -> None:
        """See KVTier."""
        super().close()
        self._client.close()


def _translated(call: Callable[[], T]) -> T:
    """The call's result; ServerError for everything that the client raises."""
    try:
        return call()
    except redis.TimeoutError as error:
        raise ServerError("timeout", lost=True) from error
    except (redis.AuthenticationError, redis.exceptions.NoPermissionError) as error:
        raise ServerError("permission", lost=False) from error
    except (redis.ConnectionError, OSError) as error:
        raise ServerError("unreachable", lost=True) from error
    except redis.exceptions.OutOfMemoryError as error:
        raise ServerError("full", lost=False) from error
    except redis.RedisError as error:
        raise ServerError("server", lost=False) from error


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    return url if parts.password is None else url.replace(f":{parts.password}@", ":...@")


def build(config: RemoteTierConfig, context: BuildContext) -> RemoteTier:
    """The store of a configuration."""
    return RemoteTier(space_of(context), config, context.load_timeout_s)
