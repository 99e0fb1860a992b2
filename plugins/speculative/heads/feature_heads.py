"""Drafts from one feature: heads without a cache, each for one token further ahead.

Medusa and Hydra heads read the final-norm feature of the position before the anchor, so nothing is
kept between steps, and a prefix hit or a preemption changes no draft. Row p of `DraftRows` has the
feature that gave the token at p + 1, so a request's last row has all they need.

Legend: R requests, P expanded nodes of a depth, N nodes, C nodes of a depth, I inputs of a head,
E hidden size, V tokens that the heads know.
"""

from itertools import pairwise
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from interlock.core.batch import NO_DRAFT, Draft
from interlock.core.drafter import DraftContext, DraftRows, FeatureDrafter
from interlock.plugins.speculative.heads.chain import Candidates, as_drafts, certainty
from interlock.plugins.speculative.heads.fixed_tree import FixedTree, Level


class FeatureHeads(Protocol):
    """`count` heads: head k drafts the token k + 1 places after the anchor."""

    count: int
    reads_tokens: bool
    """False: every head reads the feature alone, so a law does not depend on earlier drafts."""
    token_ids_V: Tensor | None
    """The target's token of each logit; None: logit i is token i."""
    vocab_size: int
    """The target's."""

    def start(self, features_RE: Tensor, embedded_RE: Tensor) -> Tensor:
        """[R, I], what head 0 reads: of the feature and the anchor's embedding."""
        ...

    def extend(self, inputs_RI: Tensor, embedded_RE: Tensor) -> Tensor:
        """What the next head reads after a drafted token with this embedding."""
        ...

    def logits(self, head: int, inputs_RI: Tensor, context: DraftContext) -> Tensor:
        """[R, V] of one head."""
        ...


class Wanted(NamedTuple):
    """Requests (places in DraftRows) that want counts[i] candidates, most wanted first.

    Their anchors are entries ends[i] of their pages; inputs_RI is what head 0 reads.
    """

    requests: list[int]
    counts: list[int]
    ends: list[int]
    inputs_RI: Tensor


class FeatureHeadsDrafter(FeatureDrafter):
    """Drafts the nodes of a fixed tree (a chain is one), or a chain of drawn tokens.

    `sampled` needs a tree that is a chain. Any limit keeps the first nodes of the tree.
    """

    one_pass = True

    def __init__(self, heads: FeatureHeads, tree: FixedTree, sampled: bool) -> None:
        assert not sampled or tree.parents is None
        self.heads, self.tree, self.sampled = heads, tree, sampled
        self.num_drafts = len(tree.paths)
        self.depth = max(map(len, tree.paths))

    @torch.no_grad()
    def propose(self, rows: DraftRows, context: DraftContext) -> list[Draft]:
        """One pass of each head; nothing is stored."""
        context.caught_up()
        drafts = [NO_DRAFT] * len(rows.limits)
        wanted = self._wanted(rows, context)
        if wanted is None:
            return drafts
        found = self._drawn(wanted, context) if self.sampled else self._chosen(wanted, context)
        for request, draft in zip(wanted.requests, found, strict=True):
            drafts[request] = draft
        return drafts

    def _wanted(self, rows: DraftRows, context: DraftContext) -> Wanted | None:
        lengths = [end - first for first, end in pairwise(rows.row_offsets)]
        counts = [min(limit, self.num_drafts) for limit in rows.limits]
        order = [r for r, length in enumerate(lengths) if length and counts[r] > 0]
        order.sort(key=lambda r: -counts[r])
        if not order:
            return None
        last_R = torch.tensor([rows.row_offsets[r + 1] - 1 for r in order])
        last_R = last_R.to(rows.features_NE.device)
        embedded_RE = context.decoder.embed(rows.next_tokens_N[last_R])
        return Wanted(
            order,
            [counts[r] for r in order],
            [rows.starts[r] + lengths[r] for r in order],
            self.heads.start(rows.features_NE[last_R], embedded_RE),
        )

    def _drawn(self, wanted: Wanted, context: DraftContext) -> list[Draft]:
        """Chains, each token drawn from its head's law after the request's own filters."""
        made: list[Candidates] = []
        inputs_RI = wanted.inputs_RI
        for depth in range(1, wanted.counts[0] + 1):
            active = sum(count >= depth for count in wanted.counts)
            if made:
                embedded_RE = context.decoder.embed(made[-1].tokens_R[:active])
                inputs_RI = self.heads.extend(inputs_RI[:active], embedded_RE)
            logits_RV = self.heads.logits(depth - 1, inputs_RI, context)
            positions = [end + depth for end in wanted.ends[:active]]
            drawn = context.draw(self._spread(logits_RV), wanted.requests[:active], positions)
            made.append(Candidates(drawn.tokens_R, certainty(logits_RV), drawn.laws_RV))
        return as_drafts(made, wanted.counts)

    def _chosen(self, wanted: Wanted, context: DraftContext) -> list[Draft]:
        """The tree's nodes, one depth after the other; read from the device at the end."""
        nodes: list[int] = []
        tokens, chances = list[Tensor](), list[Tensor]()
        inputs_RPI, most = wanted.inputs_RI[:, None], wanted.counts[0]
        for depth, level in enumerate(self.tree.levels[: self.tree.deepest(most)], start=1):
            active = sum(self.tree.deepest(count) >= depth for count in wanted.counts)
            found = self._level(depth - 1, level, inputs_RPI[:active], context)
            nodes += level.nodes
            missing = len(wanted.counts) - active
            tokens.append(F.pad(found.tokens_RC, (0, 0, 0, missing)))
            chances.append(F.pad(found.chances_RC, (0, 0, 0, missing)))
            inputs_RPI = self._inner(level, inputs_RPI[:active], found.tokens_RC, context)
        places = [nodes.index(node) for node in range(most)]
        tokens_RN = torch.cat(tokens, 1)[:, places].tolist()
        chances_RN = torch.cat(chances, 1)[:, places].nan_to_num(0.0).tolist()
        whole = (
            Draft(tuple(row), self.tree.first_parents(most), confidence=tuple(chance))
            for row, chance in zip(tokens_RN, chances_RN, strict=True)
        )
        return [draft.first(count) for draft, count in zip(whole, wanted.counts, strict=True)]

    def _level(
        self, head: int, level: Level, inputs_RPI: Tensor, context: DraftContext
    ) -> "LevelTokens":
        logits_XV = self.heads.logits(head, inputs_RPI.flatten(0, 1), context)
        logits_RPV = logits_XV.view(*inputs_RPI.shape[:2], -1)
        wide = torch.promote_types(logits_RPV.dtype, torch.float32)
        best = logits_RPV.to(wide).topk(level.width, dim=-1)
        chances_RPK = (best.values - logits_RPV.to(wide).logsumexp(-1, keepdim=True)).exp()
        rows = level.rows if self.heads.reads_tokens else [0] * len(level.rows)
        ids_RC = best.indices[:, rows, level.ranks]
        if self.heads.token_ids_V is not None:
            ids_RC = self.heads.token_ids_V[ids_RC]
        return LevelTokens(ids_RC, chances_RPK[:, rows, level.ranks])

    def _inner(
        self, level: Level, inputs_RPI: Tensor, tokens_RC: Tensor, context: DraftContext
    ) -> Tensor:
        """[R, P, I]: what the next head reads at this level's expanded nodes."""
        if not self.heads.reads_tokens or not level.inner:
            return inputs_RPI
        before_RPI = inputs_RPI[:, [level.rows[place] for place in level.inner]]
        tokens_RP = tokens_RC[:, list(level.inner)]
        embedded_XE = context.decoder.embed(tokens_RP.flatten())
        after_XI = self.heads.extend(before_RPI.flatten(0, 1), embedded_XE)
        return after_XI.view(*tokens_RP.shape, after_XI.shape[-1])

    def _spread(self, logits_RV: Tensor) -> Tensor:
        """Logits over the target's vocabulary; tokens that the heads do not know cannot come."""
        ids_V = self.heads.token_ids_V
        if ids_V is None:
            return logits_RV
        spread_RV = logits_RV.new_full((len(logits_RV), self.heads.vocab_size), -torch.inf)
        return spread_RV.index_copy(1, ids_V, logits_RV)


class LevelTokens(NamedTuple):
    """Tokens of a level's nodes and the chances that their heads give them."""

    tokens_RC: Tensor
    chances_RC: Tensor
