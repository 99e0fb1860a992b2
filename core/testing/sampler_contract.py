"""The contract of `TargetRows`: laws against plain Python, draws against laws."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.core.batch import Draft
from interlock.core.logit_edits import LogitEdits, NodeEdits
from interlock.core.request import SamplingParams
from interlock.core.testing.chi_square import assert_follows
from interlock.core.verifier import TargetRows


def reference_logits(
    logits: Sequence[float],
    params: SamplingParams,
    prompt: Sequence[int],
    output: Sequence[int],
    stop_ids: Collection[int] = (),
) -> list[float]:
    """Logits after penalties, bias and masks, token by token from the whole history."""
    edited = []
    for token, logit in enumerate(logits):
        count = list(output).count(token)
        if count or token in prompt:
            factor = params.repetition_penalty
            logit = logit / factor if logit > 0 else logit * factor
        if count:
            logit -= params.frequency_penalty * count + params.presence_penalty
        logit += dict(params.logit_bias or ()).get(token, 0.0)
        allowed = params.allowed_token_ids
        impossible = token in params.banned_token_ids
        impossible |= allowed is not None and token not in allowed
        impossible |= len(output) < params.min_tokens and token in stop_ids
        edited.append(-math.inf if impossible else logit)
    return edited


def path_to(draft: Draft, row: int) -> list[int]:
    """The candidates that precede row 0 (the anchor), 1 (candidate 0), ... of a draft."""
    path: list[int] = []
    node = row - 1
    while node >= 0:
        path.insert(0, draft.tokens[node])
        node = draft.parents[node] if draft.parents else node - 1
    return path


def reference_law(logits: Sequence[float], params: SamplingParams) -> list[float]:
    """The law of one row, from sorted lists of (token, weight): slow and obvious."""
    ranking = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    if params.temperature == 0:
        return [float(token == ranking[0]) for token in range(len(logits))]
    peak = logits[ranking[0]]
    weight = {t: math.exp((logits[t] - peak) / params.temperature) for t in ranking}
    if params.top_k:
        ranking = ranking[: params.top_k]
    if params.top_p < 1:
        goal = params.top_p * sum(weight[t] for t in ranking)
        kept, mass = ranking[:1], weight[ranking[0]]
        while mass < goal and len(kept) < len(ranking):
            kept.append(ranking[len(kept)])
            mass += weight[kept[-1]]
        ranking = kept
    ranking = [t for t in ranking if weight[t] >= params.min_p * weight[ranking[0]]]
    total = sum(weight[t] for t in ranking)
    return [weight[t] / total if t in ranking else 0.0 for t in range(len(logits))]


LAW_TOLERANCE = 1e-12
"""fp64 against fp64: a few roundings of exp and of a sum over at most nine tokens."""

VOCAB_SIZE = 9
_logits = st.lists(
    st.integers(-12, 12).map(lambda n: n / 4), min_size=VOCAB_SIZE, max_size=VOCAB_SIZE
)
_params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 1e-4, 0.3, 1.0, 1.7]),
    top_k=st.sampled_from([0, 1, 2, 4, 9, 1000]),
    # No sum of weights meets these shares exactly, so the cut is no matter of rounding.
    top_p=st.sampled_from([0.0, 0.1234567, 0.5123456, 0.9234567, 1.0]),
    min_p=st.sampled_from([0.0, 0.0512345, 0.3123456, 1.0]),
)
_token = st.integers(0, VOCAB_SIZE - 1)
_edits = st.fixed_dictionaries(
    {
        "repetition_penalty": st.sampled_from([1.0, 1.3, 0.7]),
        "frequency_penalty": st.sampled_from([0.0, 0.4, -0.3]),
        "presence_penalty": st.sampled_from([0.0, 1.1, -2.0]),
        "min_tokens": st.integers(0, 6),
        "logit_bias": st.dictionaries(_token, st.sampled_from([-100.0, -0.5, 2.0]), max_size=3),
        "allowed_token_ids": st.none() | st.frozensets(_token, min_size=4).map(tuple),
        "banned_token_ids": st.lists(_token, max_size=2).map(tuple),
    }
)
_history = st.lists(_token, max_size=6)


@st.composite
def _drafts(draw: st.DrawFn) -> Draft:
    tokens = tuple(draw(st.lists(_token, max_size=6)))
    if draw(st.booleans()):
        return Draft(tokens)
    return Draft(tokens, tuple(draw(st.integers(-1, node - 1)) for node in range(len(tokens))))


class TargetRowsContract:
    """Every promise of `TargetRows`, for rows built from logits."""

    def make(
        self,
        logits: torch.Tensor,
        params: Sequence[SamplingParams],
        seeds: Sequence[int],
        positions: Sequence[int],
        edits: Mapping[int, NodeEdits] | None = None,
    ) -> TargetRows:
        """Rows of these logits; edits[i] change the rows from i on."""
        raise NotImplementedError

    def test_laws_follow_the_parameters_of_each_row(self) -> None:
        @settings(max_examples=60, deadline=None)
        @given(st.lists(st.tuples(_logits, _params), min_size=1, max_size=5))
        def check(rows: list[tuple[list[float], SamplingParams]]) -> None:
            logits = torch.tensor([row for row, _ in rows], dtype=torch.float64)
            params = [param for _, param in rows]
            laws = self.make(logits, params, range(len(rows)), range(len(rows))).laws()
            expected = torch.tensor([reference_law(*row) for row in rows], dtype=torch.float64)
            assert laws.dtype == torch.float64
            torch.testing.assert_close(laws, expected, rtol=0, atol=LAW_TOLERANCE)

        check()

    def test_the_law_at_a_node_is_that_of_plain_decoding_after_its_path(self) -> None:
        @settings(max_examples=150, deadline=None)
        @given(st.data(), st.lists(st.tuples(_params, _edits), min_size=1, max_size=3))
        def check(data: st.DataObject, asked: list[tuple[SamplingParams, dict[str, Any]]]) -> None:
            stop_ids = frozenset({0, 1})
            rows: list[list[float]] = []
            params: list[SamplingParams] = []
            edits: dict[int, NodeEdits] = {}
            expected = []
            for one, edited in asked:
                one = replace(one, **edited)
                prompt, draft = data.draw(_history), data.draw(_drafts())
                state = LogitEdits(one, VOCAB_SIZE, stop_ids, np.array(prompt, dtype=np.int64))
                output: list[int] = []
                for tokens in data.draw(st.lists(_history, max_size=3)):
                    state.commit(tokens)
                    output += tokens
                found = state.at(draft)
                if found is not None:
                    edits[len(rows)] = found
                for row in range(1 + len(draft.tokens)):
                    rows.append(data.draw(_logits))
                    params.append(one)
                    history = output + path_to(draft, row)
                    logits = reference_logits(rows[-1], one, prompt, history, stop_ids)
                    left = any(map(math.isfinite, logits))
                    expected.append(reference_law(logits, one) if left else [1.0] + [0.0] * 8)
            logits_NV = torch.tensor(rows, dtype=torch.float64)
            made = self.make(logits_NV, params, range(len(rows)), [5] * len(rows), edits)
            laws_NV = torch.tensor(expected, dtype=torch.float64)
            torch.testing.assert_close(made.laws(), laws_NV, rtol=0, atol=LAW_TOLERANCE)
            for law, token in zip(expected, made.sample(), strict=True):
                assert law[token] > 0
            assert torch.equal(logits_NV, torch.tensor(rows, dtype=torch.float64))

        check()

    def test_a_draw_is_a_token_that_the_law_allows(self) -> None:
        @settings(max_examples=60, deadline=None)
        @given(_logits, _params, st.integers(0, 2**64 - 1), st.integers(0, 2**40))
        def check(row: list[float], params: SamplingParams, seed: int, position: int) -> None:
            (token,) = self.make(torch.tensor([row]), [params], [seed], [position]).sample()
            assert reference_law(row, params)[token] > 0

        check()

    def test_draws_follow_the_law(self) -> None:
        row = [0.1, 1.2, -0.4, 0.9, 0.9, -2.0]
        for params in (
            SamplingParams(temperature=0.8),
            SamplingParams(temperature=1.3, top_k=4, top_p=0.9),
            SamplingParams(temperature=1.0, min_p=0.3),
        ):
            count = 20_000
            logits = torch.tensor([row]).expand(count, -1)
            draws = self.make(logits, [params] * count, range(count), [7] * count).sample()
            counts = [draws.count(token) for token in range(len(row))]
            assert_follows(counts, reference_law(row, params))

    def test_noise_is_keyed_by_seed_and_position_not_by_the_batch(self) -> None:
        generator = torch.Generator().manual_seed(3)
        logits = torch.randn(40, 50, generator=generator)
        params = [SamplingParams(temperature=0.5 + row % 3, top_k=row % 7) for row in range(40)]
        seeds, positions = [row % 4 for row in range(40)], list(range(40))
        together = self.make(logits, params, seeds, positions)
        for row in range(40):
            only = slice(row, row + 1)
            alone = self.make(logits[only], params[only], seeds[only], positions[only])
            assert alone.sample() == together.sample()[only]
            assert torch.equal(alone.laws(), together.laws()[only])

    def test_a_greedy_row_takes_the_lowest_of_equal_ids(self) -> None:
        logits = torch.tensor([[0.0, 3.0, 3.0, 1.0], [5.0, 5.0, 5.0, 5.0]])
        rows = self.make(logits, [SamplingParams()] * 2, [0, 1], [0, 0])
        assert rows.sample() == [1, 0]
        assert rows.laws().tolist() == [[0, 1, 0, 0], [1, 0, 0, 0]]

    def test_a_low_precision_row_has_a_law_in_fp32(self) -> None:
        for dtype in (torch.float16, torch.bfloat16):
            row = torch.tensor([[0.5, 1.5, -1.0]], dtype=dtype)
            params = SamplingParams(temperature=0.7)
            laws = self.make(row, [params], [0], [0]).laws()
            assert laws.dtype == torch.float32
            expected = torch.tensor([reference_law(row[0].tolist(), params)])
            torch.testing.assert_close(laws, expected, rtol=1e-6, atol=1e-6)  # fp32's exp and sum

    def test_a_seed_alone_changes_draws(self) -> None:
        logits = torch.zeros(64, 1000)
        params = [replace(SamplingParams(), temperature=1.0)] * 64
        assert len(set(self.make(logits, params, range(64), [5] * 64).sample())) > 32
