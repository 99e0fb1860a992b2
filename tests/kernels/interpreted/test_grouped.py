"""Grouped products of both layouts against one expert and one token at a time, in fp64."""

import pytest
import torch
from torch.nn.functional import silu

from interlock.core.parallel import Placement
from interlock.core.testing.random_weights import RandomWeights
from interlock.plugins.models.kernels.grouped import contiguous_layout, masked_layout
from interlock.plugins.models.layers import Loader, Share, swiglu
from interlock.plugins.models.moe import MoeMLP, MoeSpec
from interlock.plugins.models.routed import GroupedExperts, Stacked
from interlock.plugins.models.router import RouterSpec

TOLERANCES = {
    # Relative to the largest sum: two products of a few dozen terms, rounded to the dtype between.
    torch.float32: 2e-6,
    torch.float16: 4e-3,
}
HIDDEN, INNER = 33, 17


@pytest.fixture(autouse=True)
def _poisoned_memory():
    """What is allocated and not written is NaN."""
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(False)


def weights(experts, dtype, biased=False, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return (torch.randn(shape, generator=generator) / shape[-1] ** 0.5).to(dtype)

    biases = (normal(experts, 2 * INNER), normal(experts, HIDDEN)) if biased else (None, None)
    return Stacked(
        normal(experts, 2 * INNER, HIDDEN), biases[0], normal(experts, HIDDEN, INNER), biases[1]
    )


def routing(tokens, experts, chosen, seed=0):
    generator = torch.Generator().manual_seed(seed)
    ranks = torch.rand(tokens, experts, generator=generator).argsort(-1)
    return ranks[:, :chosen], torch.rand(tokens, chosen, generator=generator)


def naive(x_TE, of, experts_TJ, weights_TJ):
    """Token by token, choice by choice, from the formula."""
    out_TE = torch.zeros(x_TE.shape, dtype=torch.float64)
    for token, (experts, shares) in enumerate(zip(experts_TJ, weights_TJ, strict=True)):
        for expert, share in zip(experts.tolist(), shares.tolist(), strict=True):
            up_F = of.up_XFE[expert].double() @ x_TE[token].double()
            up_F = up_F if of.up_bias_XF is None else up_F + of.up_bias_XF[expert].double()
            gate_F, up_F = up_F.chunk(2)
            down_E = of.down_XEF[expert].double() @ (silu(gate_F) * up_F)
            if of.down_bias_XE is not None:
                down_E += of.down_bias_XE[expert].double()
            out_TE[token] += share * down_E
    return out_TE


def check(x_TE, of, experts_TJ, weights_TJ):
    experts = len(of.up_XFE)
    grouped = GroupedExperts(of, Share(experts, 0, experts), swiglu)
    found = grouped(x_TE, experts_TJ, weights_TJ)
    want = naive(x_TE, of, experts_TJ, weights_TJ)
    error = (found.double() - want).abs().max() / want.abs().max().clamp(min=1e-3)
    assert error < TOLERANCES[x_TE.dtype], float(error)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    ("tokens", "experts", "chosen"),
    [(1, 8, 8), (1, 1, 1), (3, 64, 2), (16, 5, 3), (17, 5, 1), (63, 8, 2), (100, 3, 3)],
)
def test_grouped_experts_equal_the_formula_token_by_token(tokens, experts, chosen, dtype):
    of = weights(experts, dtype, biased=tokens % 2 == 1)
    x_TE = torch.randn(tokens, HIDDEN, generator=torch.Generator().manual_seed(1)).to(dtype)
    check(x_TE, of, *routing(tokens, experts, chosen))


@pytest.mark.parametrize("tokens", [5, 70])
@pytest.mark.parametrize("expert", [0, 2, 4])
def test_one_expert_may_get_all_tokens_and_others_none(tokens, expert):
    of = weights(5, torch.float32)
    x_TE = torch.randn(tokens, HIDDEN)
    check(x_TE, of, torch.full((tokens, 1), expert), torch.ones(tokens, 1))


@pytest.mark.parametrize("tokens", [2, 16, 41])
def test_both_layouts_give_the_same_numbers(tokens, monkeypatch):
    of, x_TE = weights(6, torch.float32), torch.randn(tokens, HIDDEN)
    chosen = routing(tokens, 6, 4)
    grouped = GroupedExperts(of, Share(6, 0, 6), swiglu)
    found = []
    for bound in (0, 64):
        monkeypatch.setattr("interlock.plugins.models.routed.MASKED_TOKENS", bound)
        found.append(grouped(x_TE, *chosen))
    torch.testing.assert_close(*found, rtol=0, atol=3e-6)


def test_ranks_add_up_to_all_experts():
    of, x_TE = weights(6, torch.float32), torch.randn(20, HIDDEN)
    for tokens in (3, 20):
        chosen = routing(tokens, 6, 4)
        whole = GroupedExperts(of, Share(6, 0, 6), swiglu)(x_TE[:tokens], *chosen)
        parts = 0
        for first, end in ((0, 2), (2, 6)):
            part = Stacked(of.up_XFE[first:end], None, of.down_XEF[first:end], None)
            parts += GroupedExperts(part, Share(6, first, end), swiglu)(x_TE[:tokens], *chosen)
        torch.testing.assert_close(parts, whole, rtol=0, atol=3e-6)


def test_layouts_give_every_row_a_place_of_its_own():
    """Tiles cover exactly an expert's rows, whatever the counts are."""
    for tokens, experts, chosen in ((1, 3, 2), (16, 4, 4), (130, 7, 3)):
        experts_TJ, _ = routing(tokens, experts, chosen)
        counts = torch.bincount(experts_TJ.flatten(), minlength=experts)
        for lay_out in (masked_layout, contiguous_layout):
            layout = lay_out(experts_TJ, experts, torch.float16)
            slots = layout.slots_TJ.flatten()
            assert len(set(slots.tolist())) == tokens * chosen
            token = torch.arange(tokens).repeat_interleave(chosen)
            assert torch.equal(layout.rows_N[slots], token)
        assert torch.equal(layout.ends_X, counts.cumsum(0))
        first_X = layout.ends_X - counts
        covered = []
        for expert, row in zip(layout.tile_expert_M, layout.tile_row_M, strict=True):
            assert row >= first_X[expert]
            covered += range(int(row), min(int(row) + 64, int(layout.ends_X[expert])))
        assert sorted(covered) == list(range(tokens * chosen))


@pytest.mark.parametrize("biased", [False, True])
def test_an_expert_layer_is_the_same_grouped_and_one_expert_at_a_time(biased):
    spec = MoeSpec(RouterSpec(8, 3, normalised=True), 24, shared=9, biased=biased)
    placement = Placement(torch.float32, torch.device("cpu"))
    each, grouped = (
        MoeMLP(Loader(RandomWeights(2), placement), "layer", 16, spec, grouped=way)
        for way in (False, True)
    )
    assert (each.capturable, grouped.capturable) == (False, True)
    for tokens in (1, 7, 40):
        x_TE = torch.randn(tokens, 16)
        torch.testing.assert_close(grouped(x_TE), each(x_TE), rtol=0, atol=2e-5)
