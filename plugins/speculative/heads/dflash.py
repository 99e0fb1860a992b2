"""DFlash: every slot of a block predicts a token by itself (arXiv 2602.06036).

Slots do not see each other's tokens, so their laws are independent given what was committed:
candidates are the most likely token of each slot, or one drawn from each slot's law, or the most
likely tree over all of them (DDTree, arXiv 2604.12989).

Legend: N rows that predict, depth by depth, R requests, K depths, D ids that the head knows.
"""

import torch
from torch import Tensor

from interlock.core.batch import Draft
from interlock.core.component import BuildContext
from interlock.core.drafter import DraftContext
from interlock.plugins.speculative.heads.block_drafter import (
    BlockDrafter,
    Blocks,
    check_count,
    read_network,
)
from interlock.plugins.speculative.heads.block_network import BlockNetwork
from interlock.plugins.speculative.heads.block_options import DFlashConfig
from interlock.plugins.speculative.heads.chain import Candidates, as_drafts, certainty
from interlock.plugins.speculative.heads.ddtree import most_likely_tree


class DFlashChains(BlockDrafter):
    """Chains of one token a slot."""

    def __init__(self, network: BlockNetwork, num_drafts: int, sampled: bool = False) -> None:
        super().__init__(network, num_drafts)
        self.sampled = sampled

    def drafts(self, blocks: Blocks, context: DraftContext) -> list[Draft]:
        """See BlockDrafter."""
        counts = [blocks.active(depth) for depth in range(1, blocks.limits[0] + 1)]
        logits_ND = self.network.logits(blocks.predicting(counts), context)
        made = self._sampled(logits_ND, counts, blocks, context)
        if made is None:
            made = Candidates(self.network.targets(logits_ND.argmax(-1)), certainty(logits_ND))
        return as_drafts(made.split(counts), list(blocks.limits))

    def _sampled(
        self, logits_ND: Tensor, counts: list[int], blocks: Blocks, context: DraftContext
    ) -> Candidates | None:
        """One draw a slot, all at once; None for greedy candidates."""
        if not self.sampled:
            return None
        requests: list[int] = []
        positions: list[int] = []
        for depth, count in enumerate(counts, start=1):
            requests += blocks.requests[:count]
            positions += [anchor + depth for anchor in blocks.anchors[:count]]
        drawn = context.draw(self.network.spread(logits_ND), requests, positions)
        return Candidates(drawn.tokens_R, certainty(logits_ND), drawn.laws_RV)


class DFlashTrees(BlockDrafter):
    """The most likely trees of `num_drafts` nodes."""

    def __init__(self, network: BlockNetwork, num_drafts: int) -> None:
        super().__init__(network, num_drafts)
        self.depth = min(num_drafts, network.shape.num_drafts)

    def drafts(self, blocks: Blocks, context: DraftContext) -> list[Draft]:
        """See BlockDrafter. A tree is no deeper than a block, nor than it has nodes."""
        depths = min(self.network.shape.num_drafts, blocks.limits[0])
        rows_NE = blocks.predicting([len(blocks.requests)] * depths)
        logits_ND = self.network.logits(rows_NE, context)
        wide_ND = logits_ND.to(torch.promote_types(logits_ND.dtype, torch.float32))
        width = min(blocks.limits[0], wide_ND.shape[1])
        best = wide_ND.log_softmax(-1).nan_to_num(nan=-torch.inf).topk(width)
        shape = (depths, len(blocks.requests), width)
        logprobs = best.values.view(shape).transpose(0, 1).tolist()
        tokens = self.network.targets(best.indices).view(shape).transpose(0, 1).tolist()
        return [
            most_likely_tree(*each) for each in zip(tokens, logprobs, blocks.limits, strict=True)
        ]


def build(config: DFlashConfig, context: BuildContext) -> BlockDrafter:
    """The drafter with the weights of `config.path`, in the engine's dtype.

    Raises CheckpointError that names fields or tensors when the head is not what its config says or
    was trained for another target; ConfigError for more candidates than a block makes.
    """
    network = read_network(config, context, from_anchor=False)
    network.source.weights.finish()
    if config.tree is not None:
        return DFlashTrees(network, config.num_drafts)
    check_count(config, network)
    return DFlashChains(network, config.num_drafts, config.proposal == "sampled")
