"""Where an output ends: stop tokens at every place, with and without drafts around them."""

import pytest

from interlock.core.batch import Draft
from interlock.core.drafter import TokenDrafter
from interlock.core.request import FinishReason
from interlock.core.testing.replay_drafter import Continuations, ReplayConfig, replay_component
from interlock.plugins.executor import FixedConfig
from interlock.plugins.speculative import NgramConfig
from interlock.plugins.speculative.heads.options import EagleConfig
from tests.engine.serving import (
    Client,
    asking,
    build,
    outputs,
    plus,
    registry_with,
    serve,
    solo,
)

LENGTH = 12


def replaying(known, tree=False, wrong_percent=0, num_drafts=5):
    """A registry with the drafter `replay`, which proposes these sequences, and its options."""
    registry = plus(replay_component("replay", Continuations(known)))
    return registry, ReplayConfig("replay", num_drafts, tree, wrong_percent)


def first_occurrences(output):
    """Places of tokens that did not occur before."""
    return [place for place, token in enumerate(output) if token not in output[:place]]


@pytest.fixture(scope="module")
def story(model_of):
    """A sampled request and its output on the reference composition."""
    request = asking(0, 7, LENGTH, temperature=1.5, seed=3, ignore_eos=True)
    return request, solo(model_of(), [request])[0]


@pytest.mark.parametrize("drafter", ["none", "chain", "tree", "eagle", "ngram"])
def test_output_ends_at_the_stop_token_wherever_it_falls(model_of, story, drafter):
    request, output = story
    known = [(*request.prompt_token_ids, *output)]
    registry, spec = None, drafter
    if drafter in ("chain", "tree"):
        registry, spec = replaying(known, tree=drafter == "tree")
    elif drafter == "eagle":
        spec = EagleConfig(num_drafts=3)
    elif drafter == "ngram":
        spec = NgramConfig(num_drafts=4, ngram_min=1)
    places = first_occurrences(output)
    assert len(places) >= 6
    engine = build(model_of(), registry, spec=spec, index="radix")
    client = Client(engine)
    for number, place in enumerate(places):
        stopping = asking(
            number, request.prompt_token_ids, LENGTH, temperature=1.5, seed=3, ignore_eos=True,
            stop_token_ids=(output[place],),
        )  # fmt: skip
        client.submit(stopping)
    records = client.finish()
    for number, place in enumerate(places):
        record = records[number]
        assert record.output_token_ids == output[: place + 1]
        assert record.finish_reason is FinishReason.STOP
        assert sum(record.chunk_sizes) == place + 1
        assert record.accepted_tokens + record.target_passes - record.pass_tokens >= 0
        assert record.pass_tokens <= place
    ledger = engine.core.ledger
    assert ledger.accepted == sum(r.accepted_tokens for r in records.values())
    assert ledger.accepted <= sum(len(r.output_token_ids) for r in records.values())


def test_the_models_end_token_stops_unless_it_is_ignored(model_of):
    model = model_of()
    asked = [asking(i, 5, 40, temperature=3.0, seed=i) for i in range(12)]
    ignoring = [asking(i, 5, 40, temperature=3.0, seed=i, ignore_eos=True) for i in range(12)]
    eos = 1
    stopped = outputs(serve(build(model, num_pages=256, max_requests=12), *asked))
    whole = outputs(serve(build(model, num_pages=256, max_requests=12), *ignoring))
    met = [i for i in range(12) if eos in whole[i]]
    assert met, "no output met the end token: choose other seeds"
    for i in range(12):
        assert len(whole[i]) == 40
        place = whole[i].index(eos) if i in met else 39
        assert stopped[i] == whole[i][: place + 1]


def test_tokens_accepted_behind_a_stop_token_return_their_pages(model_of, story):
    request, output = story
    registry, spec = replaying([(*request.prompt_token_ids, *output)], num_drafts=11)
    engine = build(model_of(), registry, spec=spec, index="radix", page_size=1)
    place = first_occurrences(output)[2]
    stopping = asking(
        0, request.prompt_token_ids, LENGTH, temperature=1.5, seed=3, ignore_eos=True,
        stop_token_ids=(output[place],),
    )  # fmt: skip
    records = serve(engine, stopping)
    assert records[0].target_passes == 1, "the stop token was not in the middle of a block"
    assert engine.core.cache.pools[0].cached == 7 + place + 1
    ledger = engine.core.ledger
    assert (ledger.drafted, ledger.accepted, ledger.rejected) == (10, place, 10 - place)


def test_a_stop_token_of_one_request_does_not_end_another(model_of, story):
    request, output = story
    engine = build(model_of())
    place = first_occurrences(output)[3]
    other = asking(
        1, request.prompt_token_ids, LENGTH, temperature=1.5, seed=3, ignore_eos=True,
        stop_token_ids=(output[place],),
    )  # fmt: skip
    records = serve(engine, request, other)
    assert records[0].output_token_ids == output
    assert records[1].output_token_ids == output[: place + 1]


@pytest.mark.parametrize("acceptance", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("max_tokens", [1, 2, 3, 7])
def test_simulated_drafts_never_go_past_the_output_limit(acceptance, max_tokens):
    engine = build(
        executor=FixedConfig(acceptance=acceptance), spec=EagleConfig(num_drafts=4), num_pages=8
    )
    records = serve(engine, asking(0, 5, max_tokens))
    assert len(records[0].output_token_ids) == max_tokens
    assert records[0].finish_reason is FinishReason.LENGTH


def test_simulated_drafts_change_no_token():
    right = outputs(serve(build(), *(asking(i, 5 + i, 9) for i in range(4))))
    for acceptance in (0.0, 0.5, 1.0):
        engine = build(executor=FixedConfig(acceptance=acceptance), spec=EagleConfig(num_drafts=3))
        assert outputs(serve(engine, *(asking(i, 5 + i, 9) for i in range(4)))) == right


class _Sight(TokenDrafter):
    """Records what it was shown and proposes nothing useful."""

    def __init__(self):
        self.num_drafts = 2
        self.seen = []

    def propose(self, request, tokens, limit):
        self.seen.append((tokens.tolist(), limit))
        return Draft((2, 3)[:limit])


def test_a_drafter_sees_the_whole_text_and_never_a_limit_beyond_the_output(model_of):
    sight = _Sight()
    request = asking(0, 6, 5)
    engine = build(model_of(), registry_with("spec", lambda _context: sight), spec="ours")
    records = serve(engine, request)
    text = [*request.prompt_token_ids, *records[0].output_token_ids]
    for seen, limit in sight.seen:
        assert seen == text[: len(seen)]
        assert 1 <= limit <= len(text) - len(seen) - 1
    assert sight.seen
