"""Penalties, bias and masks in the engine: exact under drafts, preemption and any composition."""

from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.core.request import FinishReason, Status
from interlock.core.streams import Purpose, uniform
from interlock.core.testing.replay_drafter import Continuations, ReplayConfig, replay_component
from interlock.core.testing.sampler_contract import reference_law, reference_logits
from interlock.core.testing.tiny import VOCAB_SIZE
from interlock.plugins.speculative import NgramConfig
from interlock.plugins.speculative.heads.options import EagleConfig
from tests.engine.serving import asking, build, outputs, plus, serve, solo
from tests.models.loading import load, whole_logits

EOS = 1
EVERYTHING = {
    "repetition_penalty": 1.3, "frequency_penalty": 0.3, "presence_penalty": 0.5, "min_tokens": 5,
    "logit_bias": ((1, 4.0), (8, 1.5)), "banned_token_ids": (9, 10),
    "allowed_token_ids": tuple(range(40)),
}  # fmt: skip


@cache
def decoder_of(model):
    return load(model, dtype=torch.float64)


def decoded_plainly(model, request):
    """Its output from whole-sequence attention and plain-Python laws, token by token."""
    params, prompt, output = request.sampling, request.prompt_token_ids, []
    stop_ids = {*params.stop_token_ids} | (set() if params.ignore_eos else {EOS})
    while len(output) < params.max_tokens and not stop_ids & set(output):
        text = [*prompt, *output]
        raw = whole_logits(decoder_of(model), text)[-1].tolist()
        law = reference_law(reference_logits(raw, params, prompt, output, stop_ids), params)
        number = uniform(params.seed, len(text), Purpose.TARGET)
        edges = torch.tensor(law, dtype=torch.float64).cumsum(-1)
        output.append(int((edges <= number).sum()))
    return output


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("field", [*EVERYTHING, None])
def test_tokens_are_those_of_a_loop_that_applies_the_formulas(model_of, field, temperature):
    edits = EVERYTHING if field is None else {field: EVERYTHING[field]}
    request = asking(0, 7, 12, seed=3, temperature=temperature, top_k=30, **edits)
    assert outputs(serve(build(model_of()), request)) == {0: decoded_plainly(model_of(), request)}


_ids = st.integers(0, VOCAB_SIZE - 1)
_sampling = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.0, 0.8]),
        "repetition_penalty": st.sampled_from([1.0, 1.5, 0.7]),
        "frequency_penalty": st.sampled_from([0.0, 0.6, -0.4]),
        "presence_penalty": st.sampled_from([0.0, 0.9]),
        "min_tokens": st.integers(0, 10),
        "logit_bias": st.dictionaries(_ids, st.sampled_from([-2.0, 3.0]), max_size=3).map(
            lambda chosen: {**chosen, EOS: 3.0}
        ),
        "banned_token_ids": st.lists(_ids.filter(lambda t: t != EOS), max_size=5).map(tuple),
        "allowed_token_ids": st.none() | st.just((*range(0, VOCAB_SIZE, 2), EOS)),
        "seed": st.integers(0, 5),
    }
)


@pytest.mark.parametrize("spec", ["chain", "tree", "ngram", "eagle"])
def test_drafts_and_preemption_leave_every_token_of_edited_requests(model_of, spec):
    @settings(max_examples=6, deadline=None, derandomize=True)  # what is seen must not be luck
    @given(st.lists(_sampling, min_size=4, max_size=4))
    def check(asked):
        requests = [asking(i, 5 + 2 * i, 12, **one) for i, one in enumerate(asked)]
        right = solo(model_of(), requests)
        known = Continuations([(*r.prompt_token_ids, *right[r.index]) for r in requests])
        drafter = {
            "chain": ReplayConfig("replay", 4, tree=False),
            "tree": ReplayConfig("replay", 6, tree=True),
            "ngram": NgramConfig(ngram_min=1),
            "eagle": EagleConfig(num_drafts=3),
        }[spec]
        engine = build(
            model_of(), plus(replay_component("replay", known)), spec=drafter, num_pages=13
        )
        assert outputs(serve(engine, *requests)) == right
        seen.update(preemptions=seen["preemptions"] + engine.core.queues.counters.preemptions)
        seen.update(accepted=seen["accepted"] + engine.core.ledger.accepted)

    seen = {"preemptions": 0, "accepted": 0}
    check()
    assert seen["preemptions"]
    assert seen["accepted"] or spec == "eagle"


def test_nothing_ends_a_request_before_min_tokens(model_of):
    wanted = [
        asking(0, 5, 20, min_tokens=7, logit_bias={EOS: 100}),
        asking(1, 5, 20, min_tokens=7, logit_bias={EOS: -100, 4: 100}, stop_token_ids=(4,)),
        asking(2, 5, 20, logit_bias={EOS: 100}),
        asking(3, 5, 9, min_tokens=9, logit_bias={EOS: 100}),
        asking(4, 5, 9, min_tokens=3, logit_bias={EOS: 100}, ignore_eos=True),
    ]
    records = serve(build(model_of()), *wanted)
    assert [len(records[i].output_token_ids) for i in range(5)] == [8, 8, 1, 9, 9]
    assert [records[i].finish_reason for i in (0, 1, 3)] == [
        FinishReason.STOP, FinishReason.STOP, FinishReason.LENGTH
    ]  # fmt: skip
    assert records[4].output_token_ids == [EOS] * 9  # it does not end this request


def test_logprobs_are_raw_ones_beside_penalties_and_drafts(model_of):
    request = asking(0, 9, 12, logprobs=3, **EVERYTHING)
    (right,) = serve(build(model_of()), request).values()
    known = Continuations([(*request.prompt_token_ids, *right.output_token_ids)])
    registry = plus(replay_component("replay", known))
    for tree in (False, True):
        spec = ReplayConfig("replay", 5, tree=tree, wrong_percent=20)
        (record,) = serve(build(model_of(), registry, spec=spec), request).values()
        assert record.accepted_tokens
        assert record.output_token_ids == right.output_token_ids
        text = [*request.prompt_token_ids, *record.output_token_ids]
        raw = whole_logits(decoder_of(model_of()), text).log_softmax(-1)[8:-1]
        for row, token, found in zip(raw, record.output_token_ids, record.logprobs, strict=True):
            assert found.chosen == pytest.approx(row[token].item(), abs=1e-9)
            values, ids = row.topk(3)
            assert [t for t, _ in found.top] == ids.tolist()
            assert [v for _, v in found.top] == pytest.approx(values.tolist(), abs=1e-9)


@pytest.mark.parametrize(
    ("sampling", "reason"),
    [
        ({"repetition_penalty": 0}, "repetition_penalty=0 is not a number from 0.01 to 100"),
        ({"repetition_penalty": float("nan")}, "repetition_penalty=nan is not"),
        ({"presence_penalty": 2.5}, "presence_penalty=2.5 is not a number from -2 to 2"),
        ({"frequency_penalty": "1"}, "frequency_penalty='1' is not a number from -2 to 2"),
        ({"min_tokens": 5}, "min_tokens=5 is not an integer from 0 to max_tokens=4"),
        ({"min_tokens": -1}, "min_tokens=-1 is not"),
        ({"logit_bias": {64: 1.0}}, "of different token ids from 0 to 63"),
        ({"logit_bias": {3: 101}}, "is not biases from -100 to 100"),
        ({"logit_bias": ((3, 1.0), (3, 2.0))}, "of different token ids"),
        ({"logit_bias": 3}, "logit_bias=3 is not"),
        ({"allowed_token_ids": ()}, "leave no token that could come"),
        ({"allowed_token_ids": (3, 64)}, "allowed_token_ids=(3, 64) is not token ids from 0"),
        ({"banned_token_ids": [3]}, "banned_token_ids=[3] is not token ids"),
        ({"banned_token_ids": tuple(range(64))}, "leave no token that could come"),
        ({"allowed_token_ids": (3, 4), "banned_token_ids": (3, 4)}, "leave no token"),
        ({"min_tokens": 1, "allowed_token_ids": (1,)}, "min_tokens=1 cannot be reached"),
    ],
)
def test_what_cannot_be_is_refused_by_name_and_disturbs_nobody(model_of, sampling, reason):
    good = asking(0, 6, 4)
    records = serve(build(model_of()), good, asking(1, 6, 4, **sampling))
    assert records[1].status is Status.FAILED
    assert reason in records[1].error
    assert outputs(records)[0] == solo(model_of(), [good])[0]


def test_an_executor_without_logits_refuses_requests_that_would_edit_them():
    engine = build(executor="fixed")
    asked = [asking(0, 5), *(asking(i + 1, 5, **{f: EVERYTHING[f]}, max_tokens=6)
                             for i, f in enumerate(EVERYTHING))]  # fmt: skip
    records = serve(engine, *asked)
    assert records[0].status is Status.FINISHED
    for index, field in enumerate(EVERYTHING, start=1):
        assert f"{field}=" in records[index].error
        assert records[index].error.endswith(
            "cannot be served: executor=fixed draws from no logits"
        )
