"""DSpark: DFlash's block, whose candidates are chosen from left to right (arXiv 2607.05147).

Slot j predicts the token after its own position, so the anchor's slot predicts as well. Each
candidate's logits are the slot's and a bias that depends on the token before it (`markov`); a
second head estimates whether it will be accepted. Both cost a look-up and a small product each.

Legend: N rows that predict, depth by depth, R requests of a depth.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from interlock.core.batch import Draft
from interlock.core.component import BuildContext
from interlock.core.drafter import DraftContext
from interlock.plugins.speculative.heads.block_drafter import (
    BlockDrafter,
    Blocks,
    check_count,
    head_fields,
    read_network,
)
from interlock.plugins.speculative.heads.block_network import BlockNetwork
from interlock.plugins.speculative.heads.block_options import DSparkConfig
from interlock.plugins.speculative.heads.chain import Candidates, as_drafts, certainty
from interlock.plugins.speculative.heads.markov import MarkovHeads, read_markov


class DSpark(BlockDrafter):
    """Chains drawn or chosen left to right."""

    def __init__(
        self, network: BlockNetwork, heads: MarkovHeads, num_drafts: int, sampled: bool = False
    ) -> None:
        super().__init__(network, num_drafts)
        self.heads, self.sampled = heads, sampled

    def drafts(self, blocks: Blocks, context: DraftContext) -> list[Draft]:
        """See BlockDrafter. Greedy chains are read from the device only when all are whole."""
        counts = [blocks.active(depth) for depth in range(1, blocks.limits[0] + 1)]
        rows_NE = blocks.predicting(counts)
        base = torch.split(self.network.logits(rows_NE, context), counts)
        previous_R, state_RM = blocks.anchor_tokens_R, self.heads.begin(rows_NE[: counts[0]])
        made = []
        for depth, (out_RE, logits_RD) in enumerate(
            zip(torch.split(rows_NE, counts), base, strict=True), start=1
        ):
            active = len(out_RE)
            embedded_RM = self.heads.embedded(previous_R[:active], out_RE)
            bias_RD, state_RM = self.heads.bias(embedded_RM, out_RE, state_RM[:active])
            logits_RD = logits_RD if bias_RD is None else logits_RD + bias_RD
            rated_R = self.heads.confidence(embedded_RM, out_RE)
            made.append(self._next(logits_RD, rated_R, depth, blocks, context))
            previous_R = made[-1].tokens_R
        return as_drafts(made, list(blocks.limits))

    def _next(
        self,
        logits_RD: Tensor,
        rated_R: Tensor | None,
        depth: int,
        blocks: Blocks,
        context: DraftContext,
    ) -> Candidates:
        """The candidates at this depth."""
        certain_R = certainty(logits_RD) if rated_R is None else rated_R
        if not self.sampled:
            return Candidates(self.network.targets(logits_RD.argmax(-1)), certain_R)
        active = len(logits_RD)
        drawn = context.draw(
            self.network.spread(logits_RD),
            blocks.requests[:active],
            [anchor + depth for anchor in blocks.anchors[:active]],
        )
        return Candidates(drawn.tokens_R, certain_R, drawn.laws_RV)


def _says_so(config: Mapping[str, Any]) -> bool:
    """Whether a head without further heads is stated to be a DSpark head."""
    nested = config.get("dflash_config")
    nested = nested if isinstance(nested, Mapping) else {}
    named = [*(config.get("architectures") or ()), config.get("speculators_model_type")]
    named += [config.get("projector_type"), nested.get("projector_type")]
    if any("dspark" in str(name).lower() for name in named):
        return True
    return bool(config.get("sample_from_anchor"))


def build(config: DSparkConfig, context: BuildContext) -> DSpark:
    """The drafter with the weights of `config.path`, in the engine's dtype.

    Raises CheckpointError that names fields or tensors when the head is not what its config says or
    was trained for another target; ConfigError for more candidates than a block makes.
    """
    network = read_network(config, context, from_anchor=True)
    fields, shape = head_fields(config, context), network.shape
    markov = read_markov(fields, network.source)
    if not (markov.rank or markov.rated or _says_so(fields.config)):
        fields.problems.append(
            "this head has neither a Markov nor a confidence head, and nothing says that its first "
            "slot predicts the next token as a DSpark head's does: set spec=dflash, or "
            "sample_from_anchor to true if it does"
        )
    fields.finish()
    heads = MarkovHeads(
        markov, shape.layer.hidden, shape.vocab_size, shape.draft_vocab_size, network.source
    )
    network.source.weights.finish()
    check_count(config, network)
    return DSpark(network, heads, config.num_drafts, config.proposal == "sampled")
