"""Salts of pages as numbers, so that a stream tells them apart and names no tenant."""

import hashlib
from collections.abc import Callable
from typing import NamedTuple

from interlock.core.engine import Engine
from interlock.core.live import Live
from interlock.core.request import Request
from interlock.plugins.cache.watches.messages import Event, Namespace

ROOT = b"interlock kv event 1\0"


class Space(NamedTuple):
    """One namespace: its number, what its keys begin with, and whether prompts are block ids."""

    number: int
    root: bytes
    hashed: bool


class Namespaces:
    """Numbers salts as they come.

    Keys of requests without a tenant begin with the salt, so they are the same in every process
    that serves the same model in the same way. Those of a tenant begin with a secret as well.
    """

    def __init__(self, engine: Engine, secret: bytes) -> None:
        self._engine, self._secret = engine, secret
        self._spaces: dict[bytes, Space] = {}
        intake = engine.core.intake
        self._public = {
            intake.salt_of(Request(0, (), adapter=name)): name
            for name in (None, *intake.adapters.names)
        }

    def of(self, salt: bytes, tell: Callable[[Event], None]) -> Space:
        """The namespace of a salt, which `tell` is told of when it is new."""
        space = self._spaces.get(salt)
        if space is None:
            live, number = self._live(salt), len(self._spaces)
            tenant = salt not in self._public
            adapter = live.request.adapter if tenant and live else self._public.get(salt)
            key = self._secret if tenant else b""
            root = hashlib.blake2b(ROOT + salt, digest_size=16, key=key).digest()
            hashed = live is not None and live.request.hashed_prompt is not None
            space = self._spaces[salt] = Space(number, root, hashed)
            tell(Namespace(number, adapter, tenant))
        return space

    def _live(self, salt: bytes) -> Live | None:
        """Some request of this salt."""
        queues = self._engine.core.queues
        everyone = (*queues.running.values(), *queues.waiting)
        return next((live for live in everyone if live.salt == salt), None)
