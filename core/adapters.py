"""LoRA adapters of a run: their names and contents, and which tokens of a step use which."""

import hashlib
import os.path
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from interlock.core.closest import unknown_name
from interlock.core.errors import ConfigError, RequestError, shown

if TYPE_CHECKING:
    from torch import Tensor

FILES = ("adapter_config.json", "adapter_model.safetensors")
"""What PEFT saves of an adapter."""


class AdapterSet:
    """The adapters that requests may name, numbered from 0.

    `stated` are directories as PEFT saves them, or NAME:DIRECTORY (a name holds no '/'; a
    directory with a ':' in its last part alone is written ./DIRECTORY); the name is the folder's
    otherwise. A family that serves adapters reads their weights when it builds a decoder, sets
    `served`, and asks `active` whenever it runs.

    Raises:
        ConfigError: a directory without the two files, files that cannot be read, or a name that
            occurs twice or is empty.
    """

    def __init__(self, stated: Sequence[str] = ()) -> None:
        named = [_named(one) for one in stated]
        self.names = tuple(name for name, _ in named)
        self.directories = tuple(directory for _, directory in named)
        problems: list[str] = []
        self.digests = tuple(_digest(directory, problems) for directory in self.directories)
        problems += [
            f"adapters: two are called {name!r}; give one another name with NAME:DIRECTORY"
            for name in sorted({n for n in self.names if self.names.count(n) > 1})
        ]
        if "" in self.names:
            problems.append("adapters: one has no name; give it one with NAME:DIRECTORY")
        if problems:
            raise ConfigError(problems)
        self.served = False
        self._of_T: Tensor | None = None
        self._active: tuple[tuple[int, Tensor], ...] = ()

    def number(self, name: str) -> int:
        """The adapter of this name. Raises RequestError with the closest known name."""
        if name in self.names:
            return self.names.index(name)
        if not self.names:
            raise RequestError(
                f"adapter {shown(name)}: this engine has none (adapters=[DIRECTORY])"
            )
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
    def selected(self, of_T: "Tensor | None") -> Iterator[None]:
        """`select` within it; afterwards, whatever happened, the tokens at hand are as before."""
        before = self._of_T
        self.select(of_T)
        try:
            yield
        finally:
            self.select(before)

    @contextmanager
    def narrowed(self, token_N: "Tensor") -> Iterator[None]:
        """Within it, the tokens at hand are only those of these indices, in this order."""
        if self._of_T is None:
            yield
            return
        with self.selected(self._of_T[token_N]):
            yield


NO_ADAPTERS = AdapterSet()


def _named(stated: str) -> tuple[str, Path]:
    name, colon, directory = stated.partition(":")
    if not colon or "/" in name:
        name, directory = os.path.basename(os.path.abspath(stated)), stated
    return name, Path(os.path.expanduser(directory))


def _digest(directory: Path, problems: list[str]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for file in FILES:
        try:
            with (directory / file).open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "blake2b").digest())
        except FileNotFoundError:
            problems.append(
                f"adapters: {directory / file} is missing; an adapter is a folder with "
                f"{' and '.join(FILES)}, given as DIRECTORY or NAME:DIRECTORY"
            )
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            problems.append(f"adapters: {directory / file} cannot be read: {reason}")
    return digest.digest()
