"""Penalties, bias and masks against other people's code, and drawn with drafts."""

import math

import numpy as np
import pytest
import torch
from transformers import LogitsProcessorList
from transformers.generation import logits_process as theirs

from interlock.core.batch import NO_DRAFT, Draft
from interlock.core.logit_edits import LogitEdits, mask_of
from interlock.core.request import SamplingParams
from interlock.core.testing.chi_square import assert_follows
from interlock.core.testing.sampler_contract import reference_law, reference_logits
from interlock.plugins.executor.edited_logits import edited_rows
from interlock.plugins.executor.sampling import SampledRows
from interlock.plugins.speculative.verifiers.target_only import TargetOnly


def ours(logits_V, params, prompt, output, stop_ids=()):
    state = LogitEdits(params, len(logits_V), stop_ids, np.array(prompt, dtype=np.int64))
    state.commit(output)
    (_, edited) = edited_rows(logits_V[None], [params], {0: state.at(NO_DRAFT)})
    return edited[0]


PROMPT, OUTPUT = [3, 3, 7, 1], [5, 7, 5, 0]


@pytest.mark.parametrize(
    ("params", "processors"),
    [
        ({"repetition_penalty": 1.7}, [theirs.RepetitionPenaltyLogitsProcessor(1.7)]),
        ({"repetition_penalty": 0.6}, [theirs.RepetitionPenaltyLogitsProcessor(0.6)]),
        ({"banned_token_ids": (2, 9)}, [theirs.SuppressTokensLogitsProcessor([2, 9])]),
        ({"logit_bias": {2: 1.5, 7: -4.0}},
         [theirs.SequenceBiasLogitsProcessor([[[2], 1.5], [[7], -4.0]])]),
        ({"min_tokens": 5},
         [theirs.MinNewTokensLengthLogitsProcessor(len(PROMPT), 5, [0, 4], device="cpu")]),
        ({"min_tokens": 4, "logit_bias": {0: 1.0}},
         [theirs.SequenceBiasLogitsProcessor([[[0], 1.0]]),
          theirs.MinNewTokensLengthLogitsProcessor(len(PROMPT), 4, [0, 4], device="cpu")]),
        ({"repetition_penalty": 1.2, "logit_bias": {7: 2.0}, "banned_token_ids": (3,)},
         [theirs.RepetitionPenaltyLogitsProcessor(1.2),
          theirs.SequenceBiasLogitsProcessor([[[7], 2.0]]),
          theirs.SuppressTokensLogitsProcessor([3])]),
    ],
)  # fmt: skip
def test_logits_are_those_of_transformers_processors(params, processors):
    logits = torch.randn(10, generator=torch.Generator().manual_seed(4), dtype=torch.float64) * 3
    logits[7], logits[5] = -1.25, 2.5  # a history with both signs
    ids = torch.tensor([PROMPT + OUTPUT])
    expected = LogitsProcessorList(processors)(ids, logits[None].clone())[0]
    found = ours(logits, SamplingParams(**params), PROMPT, OUTPUT, stop_ids=(0, 4))
    assert torch.equal(found, expected)


def test_counts_are_of_the_output_alone_and_repetition_is_of_the_prompt_too():
    logits = torch.full((6,), 2.0, dtype=torch.float64)
    params = SamplingParams(frequency_penalty=0.5, presence_penalty=0.25)
    assert ours(logits, params, [1, 1, 2], [2, 2, 3]).tolist() == [2, 2, 0.75, 1.25, 2, 2]
    repeated = SamplingParams(repetition_penalty=2.0)
    assert ours(logits, repeated, [1, 1, 2], [2, 2, 3]).tolist() == [2, 1, 1, 1, 2, 2]


def test_a_mask_has_as_many_bits_as_the_vocabulary_of_any_size():
    for size in (2, 31, 32, 33, 50, 64, 257):
        bits = np.unpackbits(mask_of([0, size - 1], size).view(np.uint8), bitorder="little")
        assert np.flatnonzero(bits).tolist() == sorted({0, size - 1})
        params = SamplingParams(allowed_token_ids=(size - 1,))
        left = ours(torch.zeros(size), params, [0], [])
        assert torch.isfinite(left).nonzero().flatten().tolist() == [size - 1]


def test_a_history_may_grow_beyond_any_first_guess():
    size, output = 500, [(i * i * 7 + i) % 500 for i in range(700)]
    logits = torch.randn(size, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    params = SamplingParams(repetition_penalty=1.3, frequency_penalty=0.01, presence_penalty=0.2)
    expected = reference_logits(logits.tolist(), params, PROMPT, output)
    found = ours(logits, params, PROMPT, output)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


def test_rows_without_edits_keep_their_bits_and_dtype_beside_edited_ones():
    logits = torch.randn(4, 40, generator=torch.Generator().manual_seed(6)).to(torch.bfloat16)
    edited = SamplingParams(temperature=0.8, repetition_penalty=1.1, logprobs=3)
    params = [SamplingParams(temperature=0.8), edited, SamplingParams(), edited]
    state = LogitEdits(edited, 40, (), np.array([4, 5, 6]))
    changed = {1: state.at(NO_DRAFT), 3: state.at(NO_DRAFT)}
    rows = SampledRows(logits, params, range(4), range(4), changed)
    plain = SampledRows(logits, params, range(4), range(4))
    assert torch.equal(rows.laws()[[0, 2]], plain.laws()[[0, 2]])
    assert not torch.equal(rows.laws()[1], plain.laws()[1])
    assert [rows.sample()[i] for i in (0, 2)] == [plain.sample()[i] for i in (0, 2)]
    assert rows.token_logprobs([1, 3], [7, 8], 3) == plain.token_logprobs([1, 3], [7, 8], 3)


def test_a_row_whose_mask_leaves_nothing_says_so_and_leaves_the_others_alone():
    logits = torch.tensor([[0.0, -math.inf, 1.0], [0.0, -math.inf, 1.0], [math.nan, 0.0, 1.0]])
    params = SamplingParams(allowed_token_ids=(1,), temperature=1.0)
    state = LogitEdits(params, 3, (), np.array([0]))
    rows = SampledRows(logits, [SamplingParams(), params, params], range(3), range(3),
                       {1: state.at(Draft((2,)))})  # fmt: skip
    assert rows.bad_rows()[1].startswith("no token could come: allowed_token_ids")
    assert rows.bad_rows()[2] == "the model's logits are unusable: a logit is NaN"
    assert rows.sample() == [2, 0, 0]
    assert rows.laws()[1:].tolist() == [[1, 0, 0], [1, 0, 0]]


@pytest.mark.parametrize(
    "draft", [NO_DRAFT, Draft((1, 1)), Draft((0, 1, 2, 1, 2), (-1, -1, -1, 1, 1))]
)
def test_what_drafting_emits_follows_the_law_that_changes_with_every_token(draft):
    base = [0.3, 0.9, 0.5]
    params = SamplingParams(temperature=0.9, repetition_penalty=1.8, frequency_penalty=0.7)
    count = 4000
    rows, edits, seeds, positions = [], {}, [], []
    for seed in range(count):
        state = LogitEdits(params, 3, (), np.array([2]))
        edits[len(rows)] = state.at(draft)
        rows += [base] * (1 + len(draft.tokens))
        seeds += [seed] * (1 + len(draft.tokens))
        positions += [1 + depth for depth in (0, *draft.depths())]
    logits = torch.tensor(rows, dtype=torch.float64)
    laws = SampledRows(logits, [params] * len(rows), seeds, positions, edits)
    verdicts = TargetOnly().accept([draft] * count, laws)
    pairs = []
    for seed, verdict in enumerate(verdicts):
        tokens = [*(draft.tokens[node] for node in verdict.path), verdict.token]
        if len(tokens) < 2:
            state = LogitEdits(params, 3, (), np.array([2]))
            state.commit(tokens)
            one = {0: state.at(NO_DRAFT)}
            tokens += SampledRows(logits[:1], [params], [seed], [2], one).sample()
        pairs.append(tuple(tokens[:2]))

    def law(output):
        return reference_law(reference_logits(base, params, [2], output), params)

    expected = [law([])[a] * law([a])[b] for a in range(3) for b in range(3)]
    assert_follows([pairs.count((a, b)) for a in range(3) for b in range(3)], expected)
