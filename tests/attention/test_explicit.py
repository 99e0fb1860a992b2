"""Soft caps and sinks: limits in which they vanish or decide, memory, dtypes."""

import numpy as np
import pytest
import torch

from interlock.core.model import AttentionSpec, ModelDescription
from interlock.core.testing.attention_oracle import Work, answer, random_inputs
from interlock.core.testing.tiny import dense_attend
from interlock.plugins.attention import explicit
from interlock.plugins.attention.explicit import explicit_attention
from interlock.plugins.attention.masked import masked_attention

NO_SINK = torch.full((6,), -torch.inf, dtype=torch.float64)


def operands(rows=2, queries=5, entries=9, dtype=torch.float64):
    torch.manual_seed(3)
    q_RQHD = torch.randn(rows, queries, 6, 10, dtype=dtype)
    k_RSKD, v_RSKV = (torch.randn(rows, entries, 2, n, dtype=dtype) for n in (10, 7))
    mask_RQS = torch.rand(rows, queries, entries) < 0.6
    mask_RQS[..., 0] = True
    return q_RQHD, k_RSKD, v_RSKV, mask_RQS


def test_without_cap_and_with_sinks_of_no_weight_it_is_plain_attention():
    *qkv, mask_RQS = operands()
    plain = masked_attention(*qkv, mask_RQS, False, 0.4)
    for softcap, sinks_H in ((None, None), (1e9, None), (None, NO_SINK), (1e9, NO_SINK)):
        ours = explicit_attention(*qkv, mask_RQS, False, 0.4, softcap, sinks_H)
        torch.testing.assert_close(ours, plain, rtol=0, atol=1e-12)


def test_causal_queries_see_what_the_mask_of_a_triangle_shows():
    q_RQHD, k_RSKD, v_RSKV, _ = operands(rows=1, queries=9)
    sinks_H = torch.randn(6, dtype=torch.float64)
    triangle = torch.ones(1, 9, 9, dtype=torch.bool).tril()
    masked = explicit_attention(q_RQHD, k_RSKD, v_RSKV, triangle, False, 0.4, 2.0, sinks_H)
    causal = explicit_attention(q_RQHD, k_RSKD, v_RSKV, None, True, 0.4, 2.0, sinks_H)
    torch.testing.assert_close(causal, masked, rtol=0, atol=1e-14)


@pytest.mark.parametrize("causal", [True, False])
def test_scores_held_at_once_are_bounded_and_tiling_changes_nothing(causal, monkeypatch):
    q_RQHD, k_RSKD, v_RSKV, mask_RQS = operands(rows=1, queries=9)
    args = (q_RQHD, k_RSKD, v_RSKV, None if causal else mask_RQS, causal, 0.4, 2.0, NO_SINK + 1)
    whole = explicit_attention(*args)
    largest = []
    weights = explicit._weights

    def watched(scores, sinks_H):
        largest.append(scores.numel())
        return weights(scores, sinks_H)

    monkeypatch.setattr(explicit, "_weights", watched)
    for most in (1, 6 * 9 * 2, 6 * 9 * 4):
        monkeypatch.setattr(explicit, "MOST_SCORES", most)
        largest.clear()
        torch.testing.assert_close(explicit_attention(*args), whole, rtol=0, atol=1e-14)
        assert max(largest) <= max(most, 6 * 9)
        assert len(largest) > 1


def test_a_query_that_sees_only_its_sink_gets_zeros():
    *qkv, mask_RQS = operands()
    mask_RQS[1, 2] = False
    out_RQHV = explicit_attention(*qkv, mask_RQS, False, 0.4, 2.0, torch.zeros(6).double())
    assert bool((out_RQHV[1, 2] == 0).all())
    assert bool(out_RQHV.isfinite().all())


def test_a_sink_far_above_all_scores_takes_all_weight_of_its_head_only():
    *qkv, mask_RQS = operands()
    sinks_H = NO_SINK.clone()
    sinks_H[4] = 1e4
    out_RQHV = explicit_attention(*qkv, mask_RQS, False, 0.4, None, sinks_H)
    plain = masked_attention(*qkv, mask_RQS, False, 0.4)
    plain[:, :, 4] = 0
    torch.testing.assert_close(out_RQHV, plain, rtol=0, atol=1e-12)


def test_bf16_is_accumulated_wider_and_returned_in_bf16():
    exact = operands(entries=4000)
    narrow = [x.bfloat16() for x in exact[:3]]
    sinks_H = torch.randn(6)
    ours = explicit_attention(*narrow, exact[3], False, 0.4, 2.0, sinks_H)
    wide = [x.double() for x in narrow]
    right = explicit_attention(*wide, exact[3], False, 0.4, 2.0, sinks_H.double())
    assert ours.dtype == torch.bfloat16
    # One rounding to bf16 of outputs below 0.5, and nothing else that narrow.
    torch.testing.assert_close(ours.double(), right, rtol=2**-8, atol=1e-5)


@pytest.mark.parametrize("window", [None, 4])
def test_dense_attention_of_a_sequence_equals_the_formula(window):
    spec = AttentionSpec("heads", 4, 2, 6, 5, 0.4, window, softcap=2.0, sinks=True)
    inputs = random_inputs(spec, 11, torch.float64, np.random.default_rng(2))
    toy = ModelDescription("m", "toy", 8, 8, 1, 32, (spec,), "float64", {})
    ours = dense_attend(toy)(0, spec, inputs)
    right = torch.from_numpy(answer(spec, inputs, 0, Work(0, 11)))
    torch.testing.assert_close(ours, right, rtol=0, atol=1e-12)
