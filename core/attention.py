"""The attention seam: how new rows are written into pages and attended against them.

Legend: R rows (requests) in a step, T tokens, S cached entries, H query heads, V value head size.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from interlock.core.cache_spec import CacheGroup
from interlock.core.model import AttentionInput, AttentionSpec

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class AttentionBatch:
    """What attention needs to know about a step, made once and shared by all layers.

    Host lists mirror device tensors so that planning needs no device read. Row r's new tokens
    are flat tokens row_offsets[r] .. row_offsets[r + 1] and become entries starts[r] and following
    of its page tables; a row may have none. A query sees every entry below starts[r] (inside its
    layer's window, by position) and, among the row's new tokens, itself and its ancestors: all
    earlier ones for a chain, those set in `tree_masks[r]` (bool [n, n], query by key) for a tree,
    or for tokens of a block, which see all new ones (or as far as each says), later ones too.
    The position of a committed entry is its index; new tokens have `positions_T`.
    """

    row_offsets: tuple[int, ...]
    starts: tuple[int, ...]
    positions: tuple[int, ...]
    positions_T: "Tensor"
    page_tables: tuple["Tensor", ...]
    """Per page table: int64 [R, pages]. For pages that a row does not have (past its last one, or
    fallen out of a window) any page id may stand there: what it holds must not be read."""
    page_size: int
    tree_masks: Mapping[int, "Tensor"]

    @property
    def num_rows(self) -> int:
        """Requests in this step."""
        return len(self.starts)


class CapturablePlan(Protocol):
    """A plan that can be captured once and replayed: on a GPU, the launches of `attend`.

    Launches, their grids and every number that is passed by value are functions of `shape_key`
    (and of the layer), and otherwise of rows, tokens, the tables' width and the page size alone;
    they never depend on starts, lengths or positions, which are in `tensors`. So of two plans with
    equal keys the first, after each of its tensors was overwritten by the other's, is the other.
    """

    tensors: tuple["Tensor", ...]
    """Everything on the device that differs from step to step, of the plan's own memory."""
    shape_key: Hashable


class AttentionBackend(ABC):
    """Computes attention over pages for prefill, decode and verification alike.

    A backend is stateless between steps: what it needs lives in the planes and in the plan.
    """

    capturable: bool = False
    """True: plans are `CapturablePlan`s, and `attend` neither waits for the device nor allocates
    host memory that a replay would need again."""

    @abstractmethod
    def cache_groups(
        self, specs: tuple[AttentionSpec, ...], first_layer: int
    ) -> tuple[CacheGroup, ...]:
        """The groups whose planes `attend` reads and writes for layers of these specs."""

    @abstractmethod
    def plan(self, batch: AttentionBatch) -> Any:
        """Whatever all layers of this step share (write slots, masks, work partition)."""

    @abstractmethod
    def attend(
        self,
        spec: AttentionSpec,
        inputs: AttentionInput,
        plan: Any,
        table: int,
        planes: Mapping[str, "Tensor"],
    ) -> "Tensor":
        """Write the new rows into `planes` ([pages, page_size, *shape]), attend, return [T, H, V].

        Softmax and accumulation use at least fp32 and never less than the inputs' dtype. Only
        entries of this batch's rows are written. `table` selects the page table of the layer.
        """

    def store(
        self,
        spec: AttentionSpec,
        inputs: AttentionInput,
        plan: Any,
        table: int,
        planes: Mapping[str, "Tensor"],
    ) -> None:
        """Write the new rows as `attend` does, where nobody reads what they would attend to."""
        self.attend(spec, inputs, plan, table, planes)

    def losses(self) -> Mapping[str, float]:
        """What storing rows has lost so far, measured: plane -> relative error; empty: nothing."""
        return {}
