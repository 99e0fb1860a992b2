"""Routers by hand-made logits, and expert layers token by token, however they are stored."""

from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor

from interlock.core.parallel import Placement
from interlock.core.testing.random_weights import RandomWeights
from interlock.core.weights import Part, Shape
from interlock.plugins.models.layers import Loader
from interlock.plugins.models.moe import MoeMLP, MoeSpec, Stored
from interlock.plugins.models.routed import can_group
from interlock.plugins.models.router import Router, RouterSpec

PLACEMENT = Placement(torch.float64, torch.device("cpu"))
EXPERTS, HIDDEN, INNER = 5, 6, 7


def route(
    spec: RouterSpec, logits: list[float], correction: list[float] | None = None
) -> dict[int, float]:
    """Expert -> weight of one token whose router logits are these."""
    load = Loader(RandomWeights(0), PLACEMENT)
    router = Router(load, "gate", "gate.correction", spec.experts, spec)
    router.weight_XE = torch.eye(spec.experts, dtype=torch.float64)
    if spec.corrected:
        router.correction_X = torch.tensor(correction, dtype=torch.float64)
    experts, weights = router(torch.tensor([logits], dtype=torch.float64))
    return dict(zip(experts[0].tolist(), weights[0].tolist(), strict=True))


def test_softmax_weights_are_normalised_and_scaled_as_the_spec_says() -> None:
    p = torch.tensor([1.0, 3.0, 2.0, 0.0], dtype=torch.float64).softmax(0)
    assert route(RouterSpec(4, 2, scaling=16.0), [1, 3, 2, 0]) == pytest.approx(
        {1: 16 * p[1].item(), 2: 16 * p[2].item()}
    )
    share = (p[1] / (p[1] + p[2])).item()
    both = {1: 2 * share, 2: 2 * (1 - share)}
    assert route(RouterSpec(4, 2, normalised=True, scaling=2.0), [1, 3, 2, 0]) == pytest.approx(
        both
    )


def test_the_softmax_of_the_chosen_equals_a_normalised_softmax_of_all() -> None:
    logits = [1.0, 3.0, 2.0, 0.0]
    chosen = route(RouterSpec(4, 2, "softmax_of_chosen"), logits)
    assert chosen == pytest.approx(route(RouterSpec(4, 2, normalised=True), logits))


def test_groups_are_ranked_by_their_best_expert_or_their_two_best() -> None:
    logits = [3.0, -9.0, 2.0, 1.9]
    by_one = RouterSpec(4, 2, groups=2, chosen_groups=1)
    assert route(by_one, logits).keys() == {0, 1}
    assert route(replace(by_one, scoring="sigmoid", group_best=2), logits).keys() == {2, 3}


def test_a_correction_bias_steers_the_choice_but_not_the_weights() -> None:
    spec = RouterSpec(4, 1, "sigmoid", corrected=True)
    sigmoid = torch.sigmoid(torch.tensor(-1.0, dtype=torch.float64)).item()
    assert route(spec, [0, 1, -1, 0], [0, 0, 9, 0]) == pytest.approx({2: sigmoid})
    negative = [-9.0, -9.0, -8.0, -9.0]  # a masked expert must stay behind these
    grouped = replace(spec, chosen=2, groups=2, chosen_groups=1, group_best=2)
    assert route(grouped, [0, 0, 0, 0], negative).keys() == {2, 3}


def test_equal_experts_are_taken_from_the_lowest_index() -> None:
    assert route(RouterSpec(8, 3), [0, 1, 1, 1, 1, 0, 0, 1]).keys() == {1, 2, 3}


def test_a_routers_own_bias_moves_choice_and_weights() -> None:
    load = Loader(RandomWeights(3), PLACEMENT)
    router = Router(load, "gate", "", HIDDEN, RouterSpec(EXPERTS, EXPERTS, biased=True))
    x = torch.randn(4, HIDDEN, dtype=torch.float64)
    experts, weights = router(x)
    assert router.bias_X is not None
    expected = (x @ router.weight_XE.T + router.bias_X).softmax(-1).gather(1, experts)
    torch.testing.assert_close(weights, expected)


SPEC = MoeSpec(RouterSpec(EXPERTS, 2, "sigmoid", normalised=True, scaling=2.5), INNER, shared=9)


@pytest.mark.parametrize("gated", [False, True])
def test_an_expert_layer_is_the_weighted_sum_of_its_experts_token_by_token(gated: bool) -> None:
    spec = replace(SPEC, shared_gated=gated)
    moe = MoeMLP(Loader(RandomWeights(1), PLACEMENT), "layer", HIDDEN, spec)
    x = torch.randn(9, HIDDEN, dtype=torch.float64)
    experts, weights = moe.router(x)
    assert moe.shared is not None
    for token in range(9):
        row = x[token : token + 1]
        shared = moe.shared(row)
        if moe.shared_gate is not None:
            shared = shared * torch.sigmoid(moe.shared_gate(row))
        expected = shared + sum(
            weights[token, choice] * moe.experts.mlps[int(experts[token, choice])](row)
            for choice in range(2)
        )
        torch.testing.assert_close(moe(x)[token : token + 1], expected)
    assert (moe.shared_gate is not None) == gated


class Fused(RandomWeights):
    """Fused tensors with the values that the same seed has one by one."""

    def __init__(self, spec: MoeSpec) -> None:
        super().__init__(2)
        self.spec = spec

    def read(
        self, name: str, shape: Shape, dtype: torch.dtype, device: torch.device, part: Part = ()
    ) -> Tensor:
        """Stacks what `one_by_one` would read."""
        if ".experts." not in name:
            return super().read(name, shape, dtype, device, part)
        kind = "bias" if name.endswith("_bias") else "weight"
        parts = ("gate_proj", "up_proj") if "gate_up" in name else ("down_proj",)
        inputs, outputs = (INNER, HIDDEN) if parts == ("down_proj",) else (HIDDEN, INNER)
        one = (outputs, inputs) if kind == "weight" else (outputs,)
        stacked = []
        for index in range(EXPERTS):
            rows = [
                super(Fused, self).read(f"layer.mlp.experts.{index}.{p}.{kind}", one, dtype, device)
                for p in parts
            ]
            if self.spec.interleaved:
                stacked.append(torch.stack(rows, dim=1).flatten(0, 1))
            else:
                stacked.append(torch.cat(rows))
        whole = torch.stack(stacked)
        if kind == "weight" and self.spec.stored == "fused_input_major":
            whole = whole.transpose(1, 2)
        assert whole.shape == shape
        return whole[part].contiguous()


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("stored", ["fused", "fused_input_major"])
def test_fused_experts_equal_the_same_experts_stored_one_by_one(
    stored: Stored, interleaved: bool, biased: bool
) -> None:
    plain = replace(SPEC, biased=biased)
    spec = replace(plain, stored=stored, interleaved=interleaved)
    x = torch.randn(9, HIDDEN, dtype=torch.float64)
    one_by_one = MoeMLP(Loader(RandomWeights(2), PLACEMENT), "layer", HIDDEN, plain)
    fused = MoeMLP(Loader(Fused(spec), PLACEMENT), "layer", HIDDEN, spec)
    torch.testing.assert_close(fused(x), one_by_one(x), rtol=0, atol=0)


def test_the_gating_hook_is_what_experts_and_the_shared_expert_apply() -> None:
    spec = replace(SPEC, gating=lambda gate, up: torch.zeros_like(gate + up))
    moe = MoeMLP(Loader(RandomWeights(1), PLACEMENT), "layer", HIDDEN, spec)
    assert moe(torch.randn(3, HIDDEN, dtype=torch.float64)).abs().max() == 0


@pytest.mark.skipif(find_spec("triton") is None, reason="groups are multiplied by Triton")
@pytest.mark.parametrize(
    ("changes", "grouped"),
    [
        ({}, True),
        ({"dtype": torch.float64}, False),
        ({"numerics": "batch_invariant"}, False),
        ({"weights": "int8"}, False),
        ({"weights": "int4"}, False),
    ],
)
def test_only_plain_matrices_are_grouped(changes: dict, grouped: bool) -> None:
    placement = replace(PLACEMENT, **{"dtype": torch.bfloat16, **changes})
    assert can_group(Loader(RandomWeights(0), placement)) == grouped
