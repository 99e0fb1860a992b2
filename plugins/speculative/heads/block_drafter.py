"""What block drafters share: committed rows in, then one block a request in one pass.

A block's rows stand behind a request's committed ones, always all of them, even if fewer candidates
are wanted: the head was trained on whole blocks. The next step writes true rows over them.

Legend: R requests that want candidates, J slots of a block, E hidden size.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from interlock.core.batch import NO_DRAFT, Draft
from interlock.core.component import BuildContext
from interlock.core.drafter import DraftContext, DraftRows, FeatureDrafter
from interlock.core.errors import ConfigError
from interlock.plugins.speculative.heads.block_fields import block_fields, read_block
from interlock.plugins.speculative.heads.block_network import BlockNetwork
from interlock.plugins.speculative.heads.block_options import BlockConfig
from interlock.plugins.speculative.heads.directory import open_head
from interlock.plugins.speculative.heads.fields import Fields


@dataclass(frozen=True)
class Blocks:
    """The blocks of a step, of the requests that want most first.

    Request i (a place in DraftRows) wants limits[i] candidates after its anchor, the token at
    position anchors[i], anchor_tokens_R[i]. `rows_RJE` are the network's.
    """

    requests: Sequence[int]
    limits: Sequence[int]
    anchors: Sequence[int]
    anchor_tokens_R: Tensor
    rows_RJE: Tensor
    first_slot: int
    """The slot that predicts the first candidate."""

    def predicting(self, counts: Sequence[int]) -> Tensor:
        """[sum of counts, E]: predicting rows, depth by depth, of the first counts[d] requests."""
        depths = enumerate(counts, start=self.first_slot)
        return torch.cat([self.rows_RJE[:count, slot] for slot, count in depths])

    def active(self, depth: int) -> int:
        """How many of the requests want a candidate at this depth (1: after the anchor)."""
        return sum(limit >= depth for limit in self.limits)


class BlockDrafter(FeatureDrafter):
    """A drafter that runs blocks. Its layers are numbered after the target's last one, so its cache
    rows share the target's pages; the row of a position depends on no later token."""

    one_pass = True

    def __init__(self, network: BlockNetwork, num_drafts: int) -> None:
        shape = network.shape
        self.network, self.num_drafts = network, num_drafts
        self.attention, self.taps = network.specs, shape.taps
        self.max_positions = shape.max_positions
        self._sees_all = torch.ones(shape.slots, shape.slots, dtype=torch.bool)

    def entries_ahead(self, limit: int) -> int:
        """The whole block."""
        return self.network.shape.slots

    @abstractmethod
    def drafts(self, blocks: Blocks, context: DraftContext) -> list[Draft]:
        """A draft for each request of the blocks."""

    @torch.no_grad()
    def propose(self, rows: DraftRows, context: DraftContext) -> list[Draft]:
        """One pass over all committed rows, and one over the blocks."""
        drafts = [NO_DRAFT] * len(rows.limits)
        lengths = [end - first for first, end in pairwise(rows.row_offsets)]
        present = [request for request, length in enumerate(lengths) if length]
        if not present:
            return drafts
        starts = [rows.starts[r] for r in present]
        store, positions_N = context.attend(
            present, [lengths[r] for r in present], starts, store_only=True
        )
        self.network.take_in(rows.taps, positions_N, store)
        context.caught_up()
        ends = {r: rows.starts[r] + lengths[r] for r in present}
        most = self.network.shape.max_positions - self.network.shape.slots
        order = [r for r in present if rows.limits[r] > 0 and ends[r] <= most]
        order.sort(key=lambda r: -rows.limits[r])
        if not order:
            return drafts
        blocks = self._blocks(order, [ends[r] for r in order], rows, context)
        for request, draft in zip(order, self.drafts(blocks, context), strict=True):
            drafts[request] = draft
        return drafts

    def _blocks(
        self, requests: list[int], anchors: list[int], rows: DraftRows, context: DraftContext
    ) -> Blocks:
        slots, device = self.network.shape.slots, rows.next_tokens_N.device
        sees_all = self._sees_all = self._sees_all.to(device)
        masks = dict.fromkeys(range(len(requests)), sees_all)
        attend, positions_T = context.attend(
            requests, [slots] * len(requests), anchors, masks=masks
        )
        last = torch.tensor([rows.row_offsets[r + 1] - 1 for r in requests], device=device)
        tokens_R = rows.next_tokens_N[last]
        return Blocks(
            requests=requests,
            limits=[min(rows.limits[r], self.num_drafts) for r in requests],
            anchors=anchors,
            anchor_tokens_R=tokens_R,
            rows_RJE=self.network.forward(tokens_R, positions_T, attend, context),
            first_slot=0 if self.network.shape.from_anchor else 1,
        )


def read_network(config: BlockConfig, context: BuildContext, from_anchor: bool) -> BlockNetwork:
    """The network of the head's directory, checked against the target; its further tensors are the
    caller's, as is `source.weights.finish`. CheckpointError names fields that do not fit."""
    fields, model = head_fields(config, context), context.model
    shape = read_block(fields, model, from_anchor)
    fields.only("projector_type", config.name)
    fields.finish()
    weights = open_head(config, context, config.name).weights()
    return BlockNetwork(shape, weights, context)


def head_fields(config: BlockConfig, context: BuildContext) -> Fields:
    """The fields of the head's config.json."""
    files = open_head(config, context, config.name)
    return block_fields(files.json("config.json") or {}, files.where("config.json"))


def check_count(config: BlockConfig, network: BlockNetwork) -> None:
    """ConfigError where more candidates are asked for than a block makes."""
    shape = network.shape
    if config.num_drafts > shape.num_drafts:
        raise ConfigError(
            f"spec.num_drafts={config.num_drafts}: blocks of {shape.slots} make "
            f"{shape.num_drafts} candidates; set spec.num_drafts={shape.num_drafts}"
        )
