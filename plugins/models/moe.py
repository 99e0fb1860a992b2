"""DeepSeek's mixture of experts: routing of V2 and V3, routed and shared experts.

DeepSeek-V2 (arXiv 2405.04434, section 2.2) and DeepSeek-V3 (arXiv 2412.19437, section 2.1.2).
Legend: T tokens, E hidden size, F size inside an expert, X experts, G groups, J chosen experts.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from interlock.plugins.models.layers import GatedMLP, Loader, whole

Routing = Literal["greedy", "group_limited_greedy", "noaux_tc"]


@dataclass(frozen=True)
class MoeSpec:
    """Sizes and routing of the expert layers.

    "greedy" and "group_limited_greedy" score with a softmax (V2), "noaux_tc" with sigmoids and a
    correction bias that steers the choice but not the weights (V3).
    """

    experts: int
    chosen: int
    inner: int
    shared: int
    routing: Routing
    groups: int = 1
    chosen_groups: int = 1
    normalised: bool = False
    scaling: float = 1.0


class Router:
    """Picks each token's experts and their weights, in fp32 or the wider model dtype.

    Ties go to the lowest index, so that a choice depends on the token alone.
    """

    def __init__(self, load: Loader, prefix: str, hidden: int, spec: MoeSpec) -> None:
        self.spec = spec
        self.weight_XE = load.wide_tensor(f"{prefix}.weight", (spec.experts, hidden))
        self.bias_X: Tensor | None = None
        if spec.routing == "noaux_tc":
            self.bias_X = load.wide_tensor(f"{prefix}.e_score_correction_bias", (spec.experts,))

    def __call__(self, x_TE: Tensor) -> tuple[Tensor, Tensor]:
        """(experts [T, J], weights [T, J])."""
        spec = self.spec
        logits_TX = functional.linear(x_TE.to(self.weight_XE.dtype), self.weight_XE)
        if self.bias_X is None:
            scores_TX = logits_TX.softmax(dim=-1)
            choice_TX = scores_TX
        else:
            scores_TX = logits_TX.sigmoid()
            choice_TX = scores_TX + self.bias_X
        if spec.routing != "greedy":
            choice_TX = self._within_best_groups(choice_TX)
        experts_TJ = _first_best(choice_TX, spec.chosen)
        return experts_TJ, self._weights(scores_TX.gather(1, experts_TJ))

    def _within_best_groups(self, choice_TX: Tensor) -> Tensor:
        """Experts outside the best groups become -inf. A group's score is its best expert's (V2)
        or the sum of its two best (V3)."""
        spec = self.spec
        grouped_TGX = choice_TX.view(len(choice_TX), spec.groups, -1)
        best = min(2, grouped_TGX.shape[-1]) if self.bias_X is not None else 1
        scores_TG = grouped_TGX.topk(best, dim=-1).values.sum(dim=-1)
        kept_TG = torch.zeros_like(scores_TG, dtype=torch.bool)
        kept_TG.scatter_(1, _first_best(scores_TG, spec.chosen_groups), True)
        return grouped_TGX.masked_fill(~kept_TG[..., None], -torch.inf).view_as(choice_TX)

    def _weights(self, scores_TJ: Tensor) -> Tensor:
        """V3 scales normalised weights; V2 scales only those that are not normalised."""
        spec = self.spec
        normalised = spec.normalised and (self.bias_X is not None or spec.chosen > 1)
        if normalised:
            scores_TJ = scores_TJ / (scores_TJ.sum(dim=-1, keepdim=True) + 1e-20)
        return scores_TJ if normalised and self.bias_X is None else scores_TJ * spec.scaling


class MoeMLP:
    """The sum of each token's routed experts, by weight, and of the shared experts.

    Each rank has an equal part of the routed experts and of the shared ones' inner size.
    """

    def __init__(self, load: Loader, prefix: str, hidden: int, spec: MoeSpec) -> None:
        self.ranks = load.ranks
        self.router = Router(load, f"{prefix}.gate", hidden, spec)
        self.mine = load.share(spec.experts)
        self.experts = {
            index: GatedMLP(load, f"{prefix}.experts.{index}", hidden, whole(spec.inner))
            for index in range(self.mine.start, self.mine.stop)
        }
        for index in set(range(spec.experts)) - self.experts.keys():
            load.weights.leave(f"{prefix}.experts.{index}.*")
        self.shared: GatedMLP | None = None
        if spec.shared:
            inner = load.share(spec.inner * spec.shared)
            self.shared = GatedMLP(load, f"{prefix}.shared_experts", hidden, inner, joined=False)

    def __call__(self, x_TE: Tensor) -> Tensor:
        """[T, E] -> [T, E]; a token's experts are added in index order, whatever its batch."""
        experts_TJ, weights_TJ = self.router(x_TE)
        sum_TE = torch.zeros_like(x_TE, dtype=weights_TJ.dtype)
        for index in sorted(set(experts_TJ.flatten().tolist()) & self.experts.keys()):
            token_N, choice_N = (experts_TJ == index).nonzero(as_tuple=True)
            out_NE = self.experts[index](x_TE[token_N])
            sum_TE[token_N] += out_NE.to(sum_TE.dtype) * weights_TJ[token_N, choice_N, None]
        routed_TE = sum_TE.to(x_TE.dtype)
        return self.ranks.sum(routed_TE if self.shared is None else routed_TE + self.shared(x_TE))


def _first_best(scores: Tensor, count: int) -> Tensor:
    """Indices of the `count` largest along the last axis; of equal ones the lowest index."""
    return scores.sort(dim=-1, descending=True, stable=True).indices[..., :count]
