"""How trees grow: by fixed paths of ranks (EAGLE-1), or by what the head finds likely (EAGLE-2).

Legend: R requests, F candidates a request that were run at the depth before, C candidates a request
of this depth, K children of each, D tokens that the head knows.
"""

import numpy as np
import torch
from torch import Tensor

from interlock.core.batch import Ints
from interlock.plugins.speculative.heads.chain import certainty
from interlock.plugins.speculative.heads.tree_paths import StaticTree
from interlock.plugins.speculative.heads.trees import Children, Floats, Growth, Level


class DynamicGrowth(Growth):
    """EAGLE-2's (arXiv 2406.16858, sections 4.1 and 4.2): at every depth the `top_k` likeliest
    paths go on, each with its `top_k` likeliest tokens. All candidates are ranked afterwards.

    A path's score is the sum of its log-probabilities; of equal scores the first one goes on.
    """

    ranked = True

    def __init__(self, depth: int, top_k: int) -> None:
        self.depth = depth
        self.top_k = top_k

    def run_at(self, depth: int) -> int:
        """See Growth."""
        return self.top_k

    def children(self, level: Level) -> Children:
        """See Growth."""
        chances_RFK, tokens_RFK = likeliest(level, self.top_k)
        requests, run, width = tokens_RFK.shape
        chances_RC = chances_RFK.reshape(requests, -1)
        parents_C = np.repeat(np.arange(run), width)
        scores_RC = level.scores_RF[:, parents_C] + chances_RC
        order_RC = np.argsort(-scores_RC, axis=1, kind="stable")
        return Children(
            parents_RC=np.broadcast_to(parents_C, chances_RC.shape),
            tokens_RC=tokens_RFK.reshape(requests, -1),
            chances_RC=chances_RC,
            run_RF=order_RC[:, : self.top_k],
        )


class StaticGrowth(Growth):
    """The paths of a fixed tree; each child is its parent's likeliest, second likeliest, ..."""

    ranked = True

    def __init__(self, tree: StaticTree) -> None:
        self.depth = tree.depth
        depths = np.array(tree.depths)
        parents, ranks = np.array(tree.parents), np.array(tree.ranks)
        self._ranks = [ranks[depths == depth] for depth in range(1, tree.depth + 1)]
        self._parents: list[Ints] = []
        self._run: list[Ints] = []
        before = np.array([-1])
        for depth in range(1, tree.depth + 1):
            nodes = np.flatnonzero(depths == depth)
            self._parents.append(np.searchsorted(before, parents[nodes]))
            inner = np.isin(nodes, parents)
            self._run.append(np.flatnonzero(inner))
            before = nodes[inner]

    def run_at(self, depth: int) -> int:
        """See Growth."""
        return len(self._run[depth - 1])

    def children(self, level: Level) -> Children:
        """See Growth."""
        parents_C, ranks_C = self._parents[level.depth - 1], self._ranks[level.depth - 1]
        chances_RFK, tokens_RFK = likeliest(level, int(ranks_C.max()) + 1)
        return self._all_alike(
            level, tokens_RFK[:, parents_C, ranks_C], chances_RFK[:, parents_C, ranks_C]
        )

    def _all_alike(
        self,
        level: Level,
        tokens_RC: Ints,
        chances_RC: Floats,
        laws: tuple[Tensor, ...] | None = None,
    ) -> Children:
        parents_C, run_F = self._parents[level.depth - 1], self._run[level.depth - 1]
        return Children(
            parents_RC=np.broadcast_to(parents_C, tokens_RC.shape),
            tokens_RC=tokens_RC,
            chances_RC=chances_RC,
            run_RF=np.broadcast_to(run_F, (len(tokens_RC), len(run_F))),
            laws=laws,
        )


class SampledGrowth(StaticGrowth):
    """The paths of a fixed tree; siblings are drawn one after the other from their parent's law,
    without those that were drawn before (SpecInfer, arXiv 2305.09781, section 4.3; Sequoia,
    arXiv 2402.12374, section 3.2).

    Each comes with the law it was drawn from. They keep the tree's own order: what is cut off a
    draft must not depend on what was drawn. A candidate's chance is its law's largest probability.
    """

    ranked = False

    def children(self, level: Level) -> Children:
        """See Growth."""
        parents_C, ranks_C = self._parents[level.depth - 1], self._ranks[level.depth - 1]
        requests = len(level.logits_RFD)
        left_RFD = level.logits_RFD.clone()
        tokens_RC = np.zeros((requests, len(ranks_C)), dtype=np.int64)
        chances_RC = np.zeros((requests, len(ranks_C)))
        laws: dict[int, Tensor] = {}
        for rank in range(int(ranks_C.max()) + 1):
            drawn_C = np.flatnonzero(ranks_C == rank)
            rows_RCD = left_RFD[:, parents_C[drawn_C]]
            rows_MD = rows_RCD.flatten(0, 1)
            drawn = level.draw(
                rows_MD,
                np.repeat(np.arange(requests), len(drawn_C)).tolist(),
                rank,
            )
            shape = requests, len(drawn_C)
            tokens_RC[:, drawn_C] = drawn.tokens_R.view(shape).cpu().numpy()
            chances_RC[:, drawn_C] = certainty(rows_MD).log().view(shape).double().cpu().numpy()
            laws_RCV = drawn.laws_RV.view(*shape, -1)
            laws |= {int(c): laws_RCV[:, n] for n, c in enumerate(drawn_C)}
            _strike(left_RFD, parents_C[drawn_C], level, drawn.tokens_R.view(shape))
        laws_CRV = [laws[c] for c in range(len(ranks_C))]
        of_requests = tuple(torch.stack([law[r] for law in laws_CRV]) for r in range(requests))
        return self._all_alike(level, tokens_RC, chances_RC, of_requests)


def _strike(left_RFD: Tensor, parents_C: Ints, level: Level, tokens_RC: Tensor) -> None:
    """Take drawn tokens out of their parents' laws; each parent occurs once."""
    places_RC = level.head.places(tokens_RC)
    parents_1C = torch.from_numpy(parents_C).to(left_RFD.device)[None]
    requests_R1 = torch.arange(len(left_RFD), device=left_RFD.device)[:, None]
    left_RFD[requests_R1, parents_1C, places_RC] = -torch.inf


def likeliest(level: Level, most: int) -> tuple[Floats, Ints]:
    """Log-probabilities and tokens [R, F, K] of each run candidate's K = min(most, D) best tokens.

    By falling probability, then by rising entry; which of several equal ones at the end is taken
    is torch's choice. NaNs, which only a broken head has, count as impossible.
    """
    wide = torch.promote_types(level.logits_RFD.dtype, torch.float32)
    chances_RFD = level.logits_RFD.to(wide).log_softmax(-1)
    chances_RFD = chances_RFD.masked_fill(chances_RFD.isnan(), -torch.inf)
    places_RFK = chances_RFD.topk(min(most, chances_RFD.shape[-1]), dim=-1).indices.sort(-1).values
    best_RFK = chances_RFD.gather(-1, places_RFK)
    best_RFK, order_RFK = best_RFK.sort(dim=-1, descending=True, stable=True)
    tokens_RFK = level.head.targets(places_RFK.gather(-1, order_RFK))
    return best_RFK.double().cpu().numpy(), tokens_RFK.cpu().numpy()
