"""Families in bf16 and fp16 against transformers in the same dtype; what excuses a difference."""

from pathlib import Path

import pytest
import torch

from interlock.core.parallel import Placement
from interlock.core.testing.random_weights import RandomWeights
from interlock.plugins.models.layers import Loader
from interlock.plugins.models.router import Router, RouterSpec
from tests.models.low_precision import (
    Bound,
    Comparison,
    Ours,
    Routed,
    check_choices,
    check_logits,
    compare,
    next_token,
    router_margins,
)
from tests.models.oracle import ONE_A_FAMILY, write_oracle

EXPERTS = 8
SPECS = [
    RouterSpec(EXPERTS, 2),
    RouterSpec(EXPERTS, 3, "softmax_of_chosen"),
    RouterSpec(EXPERTS, 2, "sigmoid", corrected=True),
    RouterSpec(EXPERTS, 2, groups=4, chosen_groups=2),
    RouterSpec(EXPERTS, 2, "sigmoid", corrected=True, groups=4, chosen_groups=2, group_best=2),
    RouterSpec(EXPERTS, EXPERTS),
]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("shape", ONE_A_FAMILY)
def test_a_family_in_low_precision_differs_only_where_the_margin_excuses_it(
    shape: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    found = compare(shape, dtype, tmp_path, new_tokens=8)
    assert found.problems == []
    assert found.tokens == 8
    assert 0 < found.our_error < 0.1
    assert found.excused_choices < 0.1 * max(1, found.choices)


def router(spec: RouterSpec) -> Router:
    load = Loader(RandomWeights(4), Placement(torch.float64, torch.device("cpu")))
    made = Router(load, "gate", "gate.correction_bias", EXPERTS, spec)
    made.weight_XE = torch.eye(EXPERTS, dtype=torch.float64)
    return made


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_no_shift_of_less_than_half_the_margin_changes_a_choice(spec: RouterSpec) -> None:
    draw, chooser = torch.Generator().manual_seed(0), router(spec)
    logits = torch.randn(200, EXPERTS, generator=draw, dtype=torch.float64)
    margins = router_margins(chooser, logits)
    if spec.chosen == EXPERTS:
        assert margins.isinf().all()
        margins = torch.ones_like(margins)
    choices = chooser.choose(logits)[0].sort(-1).values
    for _ in range(20):
        shift = torch.randn(logits.shape, generator=draw, dtype=torch.float64).sign() * 0.499
        moved = chooser.choose(logits + shift * margins[:, None])[0].sort(-1).values
        assert torch.equal(moved, choices)


@pytest.mark.parametrize("spec", SPECS[:2], ids=str)
def test_a_shift_of_just_more_than_half_the_margin_can_change_a_choice(spec: RouterSpec) -> None:
    draw, chooser = torch.Generator().manual_seed(0), router(spec)
    logits = torch.randn(50, EXPERTS, generator=draw, dtype=torch.float64)
    order = logits.argsort(-1, descending=True)
    shift = torch.zeros_like(logits)
    shift.scatter_(1, order[:, spec.chosen - 1 : spec.chosen], -0.501)
    shift.scatter_(1, order[:, spec.chosen : spec.chosen + 1], 0.501)
    moved = chooser.choose(logits + shift * router_margins(chooser, logits)[:, None])[0]
    same = moved.sort(-1).values == chooser.choose(logits)[0].sort(-1).values
    assert not same.all(-1).any()


def test_a_token_that_differs_is_excused_by_twice_the_bound_and_no_more() -> None:
    ours, bound = torch.tensor([[0.0, 1.0]]), Bound(0.25, 0.1)
    for best, excused in ((0.4, True), (0.6, False)):
        found = Comparison()
        assert next_token(torch.tensor([[best, 0.0]]), ours, bound, found) == 1
        assert (found.tokens, found.excused_tokens) == (1, 1)
        assert bool(found.problems) != excused
    found = Comparison()
    assert next_token(ours, ours, bound, found) == 1
    assert found == Comparison(tokens=1)


def test_logits_beyond_the_bound_and_errors_beyond_the_references_are_problems() -> None:
    exact, bound = torch.zeros(1, 2), Bound(0.25, 0.1)
    for theirs, ours, problems in (
        (exact + 0.1, exact + 0.1, 0),
        (exact + 0.1, exact + 0.2, 1),
        (exact - 0.1, exact + 0.2, 2),
        (exact, exact + torch.nan, 2),
    ):
        found = Comparison()
        check_logits(theirs, ours, exact, bound, found)
        assert len(found.problems) == problems


@pytest.mark.parametrize(("gap", "excused"), [(0.15, True), (0.25, False)])
def test_an_expert_chosen_otherwise_is_excused_by_a_small_margin_only(
    gap: float, excused: bool
) -> None:
    theirs = torch.zeros(1, EXPERTS, dtype=torch.float64)
    theirs[0, 3] = gap
    ours = theirs.clone()
    ours[0, 3] -= gap / 2
    ours[0, 5] += gap / 2 + 0.01
    chooser, found = router(RouterSpec(EXPERTS, 1)), Comparison()
    check_choices(chooser, Routed(theirs, torch.tensor([[3]])), ours, Bound(1.0, 0.1), found)
    assert (found.choices, found.excused_choices) == (1, 1)
    assert any("a choice of experts differs" in text for text in found.problems) != excused
    assert any("a router's logit differs" in text for text in found.problems) != excused


def test_our_routers_take_the_experts_they_are_told_with_weights_of_their_own(
    tmp_path: Path,
) -> None:
    oracle = write_oracle(tmp_path, "mixtral", new_tokens=1)
    ours, ids = Ours(tmp_path, torch.float64), oracle.prompt
    told = [Routed(torch.empty(0), torch.tensor([[0, 1]] * len(ids)))] * 2
    first = ours(ids, told)
    assert [seen.shape for seen in ours.seen] == [(len(ids), 8)] * 2
    other = [one._replace(experts_TJ=one.experts_TJ + 2) for one in told]
    assert (ours(ids, other) - first).abs().max() > 0.1
