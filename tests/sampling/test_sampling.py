import math
import sys

import pytest
import torch

from interlock.conf.check_sampling import sampling_problems
from interlock.core.request import SamplingParams
from interlock.core.streams import Purpose, uniform
from interlock.core.testing.sampler_contract import TargetRowsContract, reference_law
from interlock.plugins.executor.sampling import SampledRows


class TestSampledRows(TargetRowsContract):
    def make(self, logits, params, seeds, positions, edits=None):
        return SampledRows(logits, params, seeds, positions, edits)


def law(row, **params):
    params = SamplingParams(**{"temperature": 1.0, **params})
    logits = torch.tensor([row], dtype=torch.float64)
    return SampledRows(logits, [params], [0], [0]).laws()[0].tolist()


def support(row, **params):
    return {token for token, mass in enumerate(law(row, **params)) if mass > 0}


LOGS = [math.log(p) for p in (0.1, 0.2, 0.3, 0.4)]


def test_top_k_comes_before_top_p():
    assert support(LOGS, top_k=2, top_p=0.5) == {3}
    assert support(LOGS, top_p=0.5) == {2, 3}


def test_exactly_k_tokens_stay_and_lower_ids_win_ties():
    assert support([1.0, 2.0, 2.0, 2.0, 3.0], top_k=3) == {1, 2, 4}
    assert support([2.0] * 6, top_k=4) == {0, 1, 2, 3}


def test_top_p_takes_lower_ids_first_among_equals():
    assert support([0.0] * 4, top_p=0.4) == {0, 1}
    assert support([0.0] * 4, top_p=0.5) == {0, 1}
    assert support([0.0] * 4, top_p=0.51) == {0, 1, 2}


def test_k_of_the_vocabulary_or_more_and_zero_switch_top_k_off():
    off = law(LOGS)
    for k in (0, 4, 5, 10**9):
        assert law(LOGS, top_k=k) == off


def test_p_zero_keeps_one_token_and_p_one_keeps_all():
    assert law(LOGS, top_p=0.0) == [0, 0, 0, 1]
    assert law([0.0, 0.0, 0.0], top_p=0.0) == [1, 0, 0]
    assert law([*LOGS, -800.0], top_p=1.0) == law([*LOGS, -800.0])


def test_min_p_is_a_share_of_the_largest_probability():
    assert support(LOGS, min_p=0.6) == {2, 3}
    assert support(LOGS, min_p=1.0) == {3}
    assert support(LOGS, min_p=0.0) == {0, 1, 2, 3}


@pytest.mark.parametrize("k", [-1, 1.5, True])
def test_a_top_k_that_is_no_count_is_refused_by_name(k):
    (problem,) = sampling_problems(SamplingParams(top_k=k))
    assert problem == f"top_k={k!r} is not an integer from 0 to 2**63 - 1 (0: off)"


@pytest.mark.parametrize("temperature", [math.nan, math.inf, -1.0])
def test_a_temperature_that_is_no_temperature_is_refused_by_name(temperature):
    (problem,) = sampling_problems(SamplingParams(temperature=temperature))
    assert problem.startswith("temperature=")


@pytest.mark.parametrize("temperature", [1e-4, 1e-30, 5e-324])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_tiny_temperature_acts_as_argmax_in_every_dtype(dtype, temperature):
    neighbour = [0.1, 0.2, 11.0, 10.5]
    logits = torch.tensor([[1.0, 11.06, 10.0, 65504.0 / 8192], neighbour], dtype=dtype)
    params = [SamplingParams(temperature=temperature), SamplingParams(temperature=1.0)]
    rows = SampledRows(logits, params, [1, 2], [3, 4])
    alone = SampledRows(logits[1:], params[1:], [2], [4])
    assert rows.laws()[0].tolist() == [0, 1, 0, 0]
    assert rows.sample() == [1, *alone.sample()]
    assert torch.equal(rows.laws()[1:], alone.laws())


BAD = {
    "a logit is NaN": [0.0, math.nan, math.inf, 1.0],
    "a logit is +inf": [0.0, math.inf, -math.inf, 1.0],
    "all logits are -inf": [-math.inf] * 4,
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_a_huge_temperature_draws_evenly_from_what_the_filters_leave(dtype):
    row = torch.tensor([[0.0, 3.0, 1.0, -2.0, -math.inf]], dtype=dtype)
    for temperature in (1e38, 1e39, sys.float_info.max):
        params = [SamplingParams(temperature=temperature, top_k=2)]
        rows = SampledRows(row, params, [5], [7])
        assert rows.laws().tolist() == [[0, 0.5, 0.5, 0, 0]]
        assert rows.sample()[0] in (1, 2)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("reason", BAD)
def test_a_bad_row_is_reported_and_leaves_the_others_alone(reason, temperature):
    params = SamplingParams(temperature=temperature, top_k=3, top_p=0.9, min_p=0.01)
    good = [1.0, 0.5, -math.inf, 2.0]
    logits = torch.tensor([good, BAD[reason], good])
    rows = SampledRows(logits, [params] * 3, [5, 6, 7], [1, 1, 1])
    clean = SampledRows(logits[[0, 2]], [params] * 2, [5, 7], [1, 1])
    assert rows.bad_rows() == {1: f"the model's logits are unusable: {reason}"}
    assert clean.bad_rows() == {}
    first, middle, last = rows.sample()
    assert [first, last] == clean.sample()
    assert middle == 0
    assert rows.laws()[1].tolist() == [1, 0, 0, 0]
    assert torch.equal(rows.laws()[[0, 2]], clean.laws())


def test_a_masked_token_is_never_drawn():
    logits = torch.full((4000, 5), -math.inf)
    logits[:, 1] = 0.3
    logits[:, 3] = 0.2
    params = [SamplingParams(temperature=1.0)] * 4000
    assert set(SampledRows(logits, params, range(4000), [0] * 4000).sample()) == {1, 3}


def test_the_token_is_the_first_whose_cumulative_probability_exceeds_the_uniform_number():
    probabilities = (0.125, 0.0, 0.5, 0.375)
    row = torch.tensor([[0.125, 0, 0.5, 0.375]], dtype=torch.float64).log()
    for seed in range(200):
        draw = uniform(seed, 9, Purpose.TARGET)
        edges = [sum(probabilities[: token + 1]) for token in range(4)]
        expected = next(token for token, edge in enumerate(edges) if edge > draw)
        rows = SampledRows(row, [SamplingParams(temperature=1.0)], [seed], [9])
        assert rows.sample() == [expected]


def test_a_batch_of_greedy_rows_computes_no_softmax(monkeypatch):
    logits = torch.tensor([[1.0, 2.0], [4.0, 3.0]])
    rows = SampledRows(logits, [SamplingParams()] * 2, [0, 0], [0, 0])
    monkeypatch.setattr(torch.Tensor, "exp", None)
    monkeypatch.setattr(torch.Tensor, "softmax", None)
    assert rows.sample() == [1, 0]


def test_nothing_downcasts_fp64_logits(monkeypatch):
    for name in ("float", "half", "bfloat16"):
        monkeypatch.setattr(torch.Tensor, name, None)
    row = [0.0, 1e-12, -1.0]
    assert law(row)[1] > law(row)[0]  # fp32 could not tell them apart
    assert law(row) == pytest.approx(reference_law(row, SamplingParams(temperature=1.0)), abs=1e-15)


def test_large_random_rows_agree_with_plain_lists():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(12, 1000, generator=generator, dtype=torch.float64) * 3
    logits = (logits * 8).round() / 8  # many ties
    params = [
        SamplingParams(
            temperature=0.7, top_k=(0, 50, 999, 1)[row % 4], top_p=(0.87654, 1.0)[row % 2]
        )
        for row in range(12)
    ]
    for subset in (slice(0, 12), slice(1, 12, 4)):
        chosen = params[subset]
        laws = SampledRows(logits[subset], chosen, range(len(chosen)), range(len(chosen))).laws()
        for got, row, one in zip(laws, logits[subset], chosen, strict=True):
            expected = torch.tensor(reference_law(row.tolist(), one), dtype=torch.float64)
            torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-15)


def test_top_p_looks_beyond_the_leading_tokens_where_the_law_is_flat():
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(3, 3000, generator=generator, dtype=torch.float64) * 0.1
    logits[1] *= 80
    logits[2] = 0
    params = [SamplingParams(temperature=1.0, top_p=0.90001)] * 3
    laws = SampledRows(logits, params, range(3), range(3)).laws()
    for got, row, one in zip(laws, logits, params, strict=True):
        expected = torch.tensor(reference_law(row.tolist(), one), dtype=torch.float64)
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-15)
    alone = SampledRows(logits[1:2], params[1:2], [1], [1])
    assert torch.equal(alone.laws(), laws[1:2])


def test_logprobs_are_the_raw_ones_and_ties_list_the_lower_id_first():
    logits = torch.tensor([[1.0, 3.0, 3.0, 0.0, 3.0], [0.0, -math.inf, 0.5, 9.0, 1.0]])
    params = [SamplingParams(temperature=0.1, top_k=1)] * 2
    rows = SampledRows(logits.double(), params, [0, 1], [0, 0])
    (second, first) = rows.token_logprobs([1, 0], [2, 3], 2)
    log_sum = math.log(math.e + 3 * math.exp(3) + 1)
    assert first.chosen == pytest.approx(-log_sum)
    assert [token for token, _ in first.top] == [1, 2]
    assert first.top[0][1] == pytest.approx(3 - log_sum)
    assert [token for token, _ in second.top] == [3, 4]
    (none,) = rows.token_logprobs([0], [1], 0)
    assert none.top == ()
    (everything,) = rows.token_logprobs([0], [1], 100)
    assert [token for token, _ in everything.top] == [1, 2, 4, 0, 3]


def test_a_step_without_rows_is_fine():
    rows = SampledRows(torch.empty(0, 7), [], [], [])
    assert rows.sample() == []
    assert rows.laws().shape == (0, 7)
    assert rows.bad_rows() == {}
