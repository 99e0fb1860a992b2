"""LoRA adapters of a run, and which tokens of a step use which."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from interlock.core.closest import unknown_name
from interlock.core.errors import RequestError, shown

if TYPE_CHECKING:
    from torch import Tensor

FILES = ("adapter_config.json", "adapter_model.safetensors")
"""What PEFT saves of an adapter."""


class Adapter(NamedTuple):
    """One of the adapters that requests may name."""

    name: str
    directory: Path
    digest: bytes
    """Of its files' contents: part of the key of cached pages."""


class AdapterSet:
    """The adapters that requests may name, numbered from 0.

    A family that serves adapters reads their weights when it builds a decoder, sets `served`, and
    asks `active` whenever it runs.
    """

    def __init__(self, adapters: Sequence[Adapter] = ()) -> None:
        self.names = tuple(one.name for one in adapters)
        self.directories = tuple(one.directory for one in adapters)
        self.digests = tuple(one.digest for one in adapters)
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
