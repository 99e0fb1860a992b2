"""Which experts a token passes, and with which weights.

Top-k of a softmax or of logits (Mixtral, arXiv 2401.04088, section 2.1); groups of experts as in
DeepSeek-V2 (arXiv 2405.04434, section 2.2.2); sigmoids with a correction bias as in DeepSeek-V3
(arXiv 2412.19437, section 2.1.2). Legend: T tokens, E hidden size, X experts, G groups, J chosen.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from interlock.plugins.models.layers import Loader

Scoring = Literal["softmax", "sigmoid", "softmax_of_chosen"]


@dataclass(frozen=True)
class RouterSpec:
    """How `chosen` of `experts` are picked and weighed.

    `scoring`: experts are ranked and weighed by "softmax" or "sigmoid" of their logits, or ranked
    by logits and weighed by the softmax of the chosen ones. `corrected`: a learned bias steers the
    ranking but not the weights. `groups` > 1: only experts of the `chosen_groups` best groups are
    ranked; a group is as good as the sum of its `group_best` best experts. `normalised`: weights
    sum to 1. They are then multiplied by `scaling`. `biased`: the logits have a bias.
    """

    experts: int
    chosen: int
    scoring: Scoring = "softmax"
    corrected: bool = False
    groups: int = 1
    chosen_groups: int = 1
    group_best: int = 1
    normalised: bool = False
    scaling: float = 1.0
    biased: bool = False


class Router:
    """Picks each token's experts and their weights, in fp32 or the wider model dtype.

    Ties go to the lowest index, so that a choice depends on the token alone.
    """

    def __init__(
        self, load: Loader, prefix: str, correction: str, hidden: int, spec: RouterSpec
    ) -> None:
        self.spec = spec
        self.rows = load.rows
        experts = (spec.experts,)
        self.weight_XE = load.wide_tensor(f"{prefix}.weight", (spec.experts, hidden))
        self.bias_X = load.wide_tensor(f"{prefix}.bias", experts) if spec.biased else None
        self.correction_X = load.wide_tensor(correction, experts) if spec.corrected else None

    def __call__(self, x_TE: Tensor) -> tuple[Tensor, Tensor]:
        """(experts [T, J], weights [T, J])."""
        wide_TE = x_TE.to(self.weight_XE.dtype)
        logits_TX = self.rows.linear(wide_TE, self.weight_XE, self.bias_X)
        return self.rows.apply(self.choose, logits_TX)

    def choose(self, logits_TX: Tensor) -> tuple[Tensor, Tensor]:
        """(experts [T, J], weights [T, J]) of logits."""
        scores_TX = self.scores(logits_TX)
        experts_TJ = _first_best(self.ranking(scores_TX), self.spec.chosen)
        return experts_TJ, self.weights(scores_TX, experts_TJ)

    def scores(self, logits_TX: Tensor) -> Tensor:
        """What experts are ranked and weighed by [T, X], before any correction."""
        if self.spec.scoring == "softmax":
            return logits_TX.softmax(dim=-1)
        return logits_TX.sigmoid() if self.spec.scoring == "sigmoid" else logits_TX

    def ranking(self, scores_TX: Tensor) -> Tensor:
        """The scores by which experts are chosen [T, X]; -inf for those that cannot be."""
        spec = self.spec
        if self.correction_X is not None:
            scores_TX = scores_TX + self.correction_X
        if spec.groups == 1:
            return scores_TX
        groups_TG = self.group_scores(scores_TX)
        grouped_TGX = scores_TX.view(*groups_TG.shape, -1)
        kept_TG = torch.zeros_like(groups_TG, dtype=torch.bool)
        kept_TG.scatter_(1, _first_best(groups_TG, spec.chosen_groups), True)
        return grouped_TGX.masked_fill(~kept_TG[..., None], -torch.inf).view_as(scores_TX)

    def group_scores(self, scores_TX: Tensor) -> Tensor:
        """How good each group is [T, G], from corrected scores."""
        grouped_TGX = scores_TX.view(len(scores_TX), self.spec.groups, -1)
        best = min(self.spec.group_best, grouped_TGX.shape[-1])
        return grouped_TGX.topk(best, dim=-1).values.sum(dim=-1)

    def weights(self, scores_TX: Tensor, experts_TJ: Tensor) -> Tensor:
        """The weights [T, J] of chosen experts."""
        chosen_TJ = scores_TX.gather(1, experts_TJ)
        if self.spec.scoring == "softmax_of_chosen":
            chosen_TJ = chosen_TJ.softmax(dim=-1)
        if self.spec.normalised:
            chosen_TJ = chosen_TJ / (chosen_TJ.sum(dim=-1, keepdim=True) + 1e-20)
        return chosen_TJ * self.spec.scaling


def _first_best(scores: Tensor, count: int) -> Tensor:
    """Indices of the `count` largest along the last axis; of equal ones the lowest index."""
    return scores.sort(dim=-1, descending=True, stable=True).indices[..., :count]
