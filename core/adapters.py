"""LoRA adapters of a run: their names and contents, and which tokens of a step use which."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from interlock.core.closest import unknown_name
from interlock.core.errors import ConfigError, RequestError

if TYPE_CHECKING:
    from torch import Tensor

FILES = ("adapter_config.json", "adapter_model.safetensors")
"""What PEFT saves of an adapter."""


class AdapterSet:
    """The adapters that requests may name, numbered from 0.

    `stated` are directories as PEFT saves them, or NAME=DIRECTORY; the name is the folder's
    otherwise. A family that serves adapters reads their weights when it builds a decoder, sets
    `served`, and asks `active` whenever it runs.

    Raises:
        ConfigError: a directory without the two files, or a name that occurs twice.
    """

    def __init__(self, stated: Sequence[str] = ()) -> None:
        named = [_named(one) for one in stated]
        self.names = tuple(name for name, _ in named)
        self.directories = tuple(directory for _, directory in named)
        problems = [
            f"adapters: {directory / file} is missing; an adapter is a folder with "
            f"{' and '.join(FILES)}"
            for directory in self.directories
            for file in FILES
            if not (directory / file).is_file()
        ]
        problems += [
            f"adapters: two are called {name!r}; give one another name with NAME=DIRECTORY"
            for name in sorted({n for n in self.names if self.names.count(n) > 1})
        ]
        if problems:
            raise ConfigError(problems)
        self.digests = tuple(_digest(directory) for directory in self.directories)
        self.served = False
        self._of_T: Tensor | None = None
        self._active: tuple[tuple[int, Tensor], ...] = ()

    def number(self, name: str) -> int:
        """The adapter of this name. Raises RequestError with the closest known name."""
        if name in self.names:
            return self.names.index(name)
        if not self.names:
            raise RequestError(f"adapter {name!r}: this engine has none (adapters=[DIRECTORY])")
        raise RequestError(unknown_name("adapter", name, self.names))

    @property
    def active(self) -> tuple[tuple[int, "Tensor"], ...]:
        """(adapter, indices of its tokens) for each adapter that the tokens at hand use."""
        return self._active

    def select(self, of_T: "Tensor | None") -> None:
        """Each token's adapter for the next forward pass, -1 for none; None: no token has one."""
        self._of_T = of_T
        numbers = [] if of_T is None else sorted(set(of_T.tolist()) - {-1})
        self._active = tuple((n, (of_T == n).nonzero()[:, 0]) for n in numbers)

    @contextmanager
    def narrowed(self, token_N: "Tensor") -> Iterator[None]:
        """Within it, the tokens at hand are only those of these indices, in this order."""
        before = self._of_T
        if before is not None:
            self.select(before[token_N])
        yield
        if before is not None:
            self.select(before)


NO_ADAPTERS = AdapterSet()


def _named(stated: str) -> tuple[str, Path]:
    name, equals, directory = stated.rpartition("=")
    path = Path(directory if equals else stated).expanduser()
    return (name if equals else path.resolve().name), path


def _digest(directory: Path) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for file in FILES:
        with (directory / file).open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "blake2b").digest())
    return digest.digest()
