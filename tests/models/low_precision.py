"""A model in a low precision against transformers in the same: differences, and which are excused.

A choice between two numbers can go either way where both may be off by more than half the gap
between them. So a greedy token, or an expert, that differs from the reference's is excused exactly
where the reference's own margin is at most twice the bound that every logit keeps. After a
difference the reference starts again from our tokens. Our routers follow the reference's choices,
else the first excused expert would hide everything that comes after it; where they would have
chosen otherwise, the margin is checked. Both errors are measured against fp64 on the same path.
Legend: T tokens, V vocabulary, X experts, J chosen experts.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor

from interlock.core.attention import AttentionBackend
from interlock.core.model import Decoder
from interlock.plugins.attention.gqa import GqaAttention
from interlock.plugins.attention.mla import MlaAttention
from interlock.plugins.models.router import Router
from tests.models.loading import LOGIT_TOLERANCE, load
from tests.models.oracle import random_model, random_prompt, saved
from tests.models.paged_run import PagedRun


class Bound(NamedTuple):
    """The largest difference of one logit that the arithmetic explains."""

    logits: float
    router: float


BOUNDS = {
    torch.float32: Bound(LOGIT_TOLERANCE, LOGIT_TOLERANCE),
    # About 100 roundings of 2 ** -8 (half as many in a router, which reads one layer less). On
    # these shapes transformers is itself up to 0.29 from its fp64 result, we up to 0.15.
    torch.bfloat16: Bound(0.4, 0.2),
    # The same count of roundings of 2 ** -11.
    torch.float16: Bound(0.05, 0.025),
}
ERROR_RATIO = 1.25
"""How much larger our error may be than the reference's: ours is measured 0.7 to 1.1 times it."""


@dataclass
class Comparison:
    """What was found. Nothing was wrong if `problems` is empty.

    Errors are root mean squares of the distance from the logits that fp64 gives.
    """

    largest_difference: float = 0.0
    our_error: float = 0.0
    their_error: float = 0.0
    tokens: int = 0
    excused_tokens: int = 0
    choices: int = 0
    excused_choices: int = 0
    problems: list[str] = field(default_factory=list)


class Routed(NamedTuple):
    """One layer's routing on the reference path."""

    logits_TX: Tensor
    experts_TJ: Tensor


class Reference:
    """transformers in this dtype, with what its routers saw and chose."""

    def __init__(self, directory: Path, dtype: torch.dtype) -> None:
        self.model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            directory, dtype=dtype, attn_implementation="eager"
        ).eval()
        self.routed: list[Routed] = []
        for module in self.model.modules():
            if type(module).__name__.endswith("Router"):
                module.register_forward_hook(self._keep)

    def _keep(self, _module: Any, _inputs: Any, outputs: tuple[Tensor, ...]) -> None:
        self.routed.append(Routed(outputs[0].double(), outputs[-1]))

    def __call__(self, ids: list[int]) -> tuple[Tensor, list[Routed]]:
        """Logits [T, V] of one sequence, and the routing of each layer with experts."""
        self.routed = []
        with torch.inference_mode():
            logits_TV = self.model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
        return logits_TV.double(), self.routed


class Ours:
    """Our decoder through pages with a real backend; its routers choose what they are told."""

    def __init__(self, directory: Path, dtype: torch.dtype) -> None:
        self.decoder: Decoder = load(directory, dtype)
        latent = "latent" in self.decoder.description.forms
        self.backend: AttentionBackend = MlaAttention() if latent else GqaAttention()
        mlps = [block.mlp for block in self.decoder.blocks]  # type: ignore[attr-defined]  # ours
        self.routers: list[Router] = [mlp.router for mlp in mlps if hasattr(mlp, "router")]
        self.seen: list[Tensor] = []

    def __call__(self, ids: list[int], routed: list[Routed]) -> Tensor:
        """Logits [T, V]; `seen` are then the routers' own logits."""
        self.seen = []
        assert len(routed) == len(self.routers)
        for router, theirs in zip(self.routers, routed, strict=True):
            router.choose = self._follower(router, theirs)  # type: ignore[method-assign]  # here
        run = PagedRun(self.decoder, self.backend, 16, 1, len(ids))
        return run.step([(0, ids)])[0].double()

    def _follower(
        self, router: Router, theirs: Routed
    ) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        def choose(logits_TX: Tensor) -> tuple[Tensor, Tensor]:
            self.seen.append(logits_TX.double())
            return theirs.experts_TJ, router.weights(router.scores(logits_TX), theirs.experts_TJ)

        return choose


def compare(shape: str, dtype: torch.dtype, directory: Path, new_tokens: int) -> Comparison:
    """Write a checkpoint of this shape in `dtype`, and continue a prompt of 33 tokens greedily."""
    saved(random_model(shape).to(dtype), directory)
    reference, ours = Reference(directory, dtype), Ours(directory, dtype)
    bound, found, ids = BOUNDS[dtype], Comparison(), random_prompt()
    for _ in range(new_tokens):
        logits_TV, routed = reference(ids)
        token = next_token(logits_TV, ours(ids, routed), bound, found)
        ids.append(token)
    logits_TV, routed = reference(ids)
    exact_TV = Ours(directory, torch.float64)(ids, routed)
    check_logits(logits_TV, ours(ids, routed), exact_TV, bound, found)
    for router, theirs, seen_TX in zip(ours.routers, routed, ours.seen, strict=True):
        check_choices(router, theirs, seen_TX, bound, found)
    return found


def next_token(theirs_TV: Tensor, ours_TV: Tensor, bound: Bound, found: Comparison) -> int:
    """Our greedy token; another one than the reference's needs an excuse."""
    theirs, token = int(theirs_TV[-1].argmax()), int(ours_TV[-1].argmax())
    found.tokens += 1
    if theirs != token:
        best, second = theirs_TV[-1].topk(2).values.tolist()
        found.excused_tokens += 1
        if best - second > 2 * bound.logits:
            found.problems.append(f"token {found.tokens} differs at a margin of {best - second}")
    return token


def check_logits(
    theirs_TV: Tensor, ours_TV: Tensor, exact_TV: Tensor, bound: Bound, found: Comparison
) -> None:
    found.largest_difference = (theirs_TV - ours_TV).abs().max().item()
    if not found.largest_difference <= bound.logits:
        found.problems.append(f"a logit differs by {found.largest_difference}")
    found.our_error = (ours_TV - exact_TV).square().mean().sqrt().item()
    found.their_error = (theirs_TV - exact_TV).square().mean().sqrt().item()
    if not found.our_error <= ERROR_RATIO * found.their_error:
        found.problems.append(f"our error {found.our_error}, the reference's {found.their_error}")


def check_choices(
    router: Router, theirs: Routed, seen_TX: Tensor, bound: Bound, found: Comparison
) -> None:
    """Experts that our router would have chosen from its own logits."""
    difference = (theirs.logits_TX - seen_TX).abs().max().item()
    if not difference <= bound.router:
        found.problems.append(f"a router's logit differs by {difference}")
    ranks = router.ranking(router.scores(seen_TX))
    own_TJ = ranks.topk(router.spec.chosen, dim=-1).indices
    differs_T = (own_TJ.sort(-1).values != theirs.experts_TJ.sort(-1).values).any(-1)
    margin_T = router_margins(router, theirs.logits_TX)
    found.choices += len(differs_T)
    found.excused_choices += int(differs_T.sum())
    for margin in margin_T[differs_T & (margin_T > 2 * bound.router)].tolist():
        found.problems.append(f"a choice of experts differs at a margin of {margin}")


def router_margins(router: Router, logits_TX: Tensor) -> Tensor:
    """How far the logits of each token [T] are from another choice of experts or groups.

    A gap of softmax scores is that of their logits. Sigmoids have a slope of at most 1/4, so their
    gaps count four times, and those of sums of k sigmoids 4 / k times.
    """
    spec = router.spec
    sigmoid = spec.scoring == "sigmoid"
    scores_TX = router.scores(logits_TX) if sigmoid else logits_TX
    slope = 4.0 if sigmoid else 1.0
    margin_T = _gap(router.ranking(scores_TX), spec.chosen) * slope
    if spec.groups > 1:
        corrected_TX = scores_TX if router.correction_X is None else scores_TX + router.correction_X
        groups_TG = router.group_scores(corrected_TX)
        margin_T = margin_T.minimum(_gap(groups_TG, spec.chosen_groups) * slope / spec.group_best)
    return margin_T


def _gap(scores: Tensor, chosen: int) -> Tensor:
    """Between the last that is chosen and the first that is not; endless if all are."""
    if chosen == scores.shape[-1]:
        return torch.full(scores.shape[:-1], torch.inf, dtype=scores.dtype)
    best = scores.topk(chosen + 1, dim=-1).values
    return best[..., chosen - 1] - best[..., chosen]
