"""What stands before a payload wherever bytes can be damaged: whose it is, and its checksum."""

import hashlib
import json
import struct
import zlib
from importlib.util import find_spec
from typing import Literal

from interlock.core.component import BuildContext
from interlock.core.errors import ConfigError
from interlock.core.tier import Key

FORMAT = 1
"""Version of the header and of what follows it; stores keep it in the names of their entries."""
HEADER = struct.Struct("<8sHHQ32s16s")
"""Magic, version, kind of checksum, payload bytes, key, checksum."""

ChecksumName = Literal["auto", "xxh3", "crc32"]
_MAGIC = b"InterKV\n"
_KINDS = {"xxh3": 1, "crc32": 2}


class Envelope:
    """Seals payloads with one kind of checksum and opens those of any kind that is installed.

    xxh3 (128 bits, the package xxhash) is tens of times faster than crc32 (32 bits, of Python's
    zlib); both find every flipped byte. "auto" takes xxh3 where it is installed.
    """

    def __init__(self, checksum: ChecksumName) -> None:
        found = find_spec("xxhash") is not None
        if checksum == "xxh3" and not found:
            raise ConfigError(
                "a tier's checksum=xxh3 needs the package xxhash: pip install 'interlock[tiers]', "
                "or choose checksum=crc32"
            )
        self.checksum = ("xxh3" if found else "crc32") if checksum == "auto" else checksum
        self._kind = _KINDS[self.checksum]

    def seal(self, key: Key, payload: memoryview) -> bytes:
        """The header to store before `payload`, whose bytes it describes as they are now."""
        digest = _digest(self._kind, payload)
        return HEADER.pack(_MAGIC, FORMAT, self._kind, payload.nbytes, key, digest)

    @staticmethod
    def opens(header: bytes | bytearray | memoryview, key: Key, payload: memoryview) -> bool:
        """True if this header was sealed for this key around exactly these bytes."""
        if len(header) != HEADER.size:
            return False
        magic, version, kind, size, owner, digest = HEADER.unpack(header)
        return (
            (magic, version, size, owner) == (_MAGIC, FORMAT, payload.nbytes, key)
            and digest == _digest(kind, payload)
        )  # fmt: skip


def space_of(context: BuildContext) -> str:
    """16 hex digits for the model and how its rows are stored.

    They keep the entries of models apart in a shared place. What makes an entry safe to use is its
    key alone.
    """
    model = context.model
    facts = [model.name, model.family, model.config, context.dtype, context.cache_dtype]
    text = json.dumps(
        [*facts, context.page_size, context.payload_bytes], sort_keys=True, default=str
    )
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _digest(kind: int, payload: memoryview) -> bytes | None:
    """16 bytes; None for a kind that is unknown or whose package is not there."""
    if kind == _KINDS["crc32"]:
        return zlib.crc32(payload).to_bytes(16, "little")
    if kind == _KINDS["xxh3"]:
        try:
            import xxhash
        except ImportError:
            return None
        return xxhash.xxh3_128_digest(payload)
    return None
