"""Stop strings in engines: whatever drafts, chunks and hits do, outputs end where they must."""

import random
from dataclasses import replace

import pytest

from interlock.core.request import FinishReason, Request, RequestOutput, SamplingParams, Status
from interlock.plugins.executor import FixedConfig
from interlock.plugins.models.text import REPLACEMENT
from interlock.plugins.speculative import NgramConfig
from interlock.plugins.speculative.heads.options import EagleConfig
from tests.engine.serving import Client, asking, build, serve, solo
from tests.engine.test_stops import replaying
from tests.engine.wordy import codec_of, with_words
from tests.models.test_stop_text import ended, withheld

LENGTH = 24


@pytest.fixture(scope="module")
def wordy(model_of, tmp_path_factory):
    """Directory of a tiny model of each kind whose tokens are words."""
    folder = tmp_path_factory.mktemp("wordy")
    return {kind: with_words(model_of(kind), folder / kind) for kind in ("gqa", "hybrid")}


def story(index, number=None, **more):
    """One of four sampled requests, under another number and with other wishes."""
    prompt = asking(index, 5).prompt_token_ids
    return asking(
        index if number is None else number, prompt, LENGTH, temperature=2.0, seed=index,
        ignore_eos=True, **more,
    )  # fmt: skip


@pytest.fixture(scope="module")
def stories(wordy):
    """Outputs of four sampled requests, by kind of model, on the reference composition."""
    return {
        kind: list(solo(model, [story(i) for i in range(4)]).values())
        for kind, model in wordy.items()
    }


def some_stops(codec, output, rng):
    """Pieces of the output's text, of any place and length, and one that is not in it."""
    text = codec.decode(output)
    start = rng.randrange(len(text) - 1)
    near = text[start : start + rng.randint(1, 4)]
    return tuple(s for s in {near, text[-3:], near + "?"} if REPLACEMENT not in s)


def drafting(drafter, known):
    """Registry and `spec` choice of a drafter's short name."""
    if drafter in ("chain", "tree"):
        return replaying(known, tree=drafter == "tree", wrong_percent=20)
    chosen = {"eagle": EagleConfig(num_drafts=3), "ngram": NgramConfig(num_drafts=4, ngram_min=1)}
    return None, chosen.get(drafter, drafter)


COMPOSITIONS = [
    ("none", "radix", "paged", {}),
    ("chain", "radix", "paged", {"page_size": 1}),
    ("tree", "block_hash", "paged", {"num_pages": 12}),
    ("eagle", "radix", "paged", {"budget_tokens": 5}),
    ("eagle", "block_hash", "paged", {"num_pages": 14}),
    ("ngram", "none", "contiguous", {}),
    ("chain", "none", "contiguous", {"page_size": 16}),
    ("none", "block_hash", "paged", {"num_pages": 9, "budget_tokens": 3}),
]


@pytest.mark.parametrize("kind", ["gqa", "hybrid"])
@pytest.mark.parametrize(("drafter", "index", "allocator", "settings"), COMPOSITIONS)
def test_outputs_end_with_the_token_that_completes_a_stop_string(
    wordy, stories, kind, drafter, index, allocator, settings
):
    codec, rng = codec_of(wordy[kind]), random.Random(repr((drafter, index, settings)))
    known = [(*story(i).prompt_token_ids, *output) for i, output in enumerate(stories[kind])]
    registry, spec = drafting(drafter, known)
    attention = "reference" if drafter == "tree" else "gqa"
    engine = build(
        wordy[kind], registry, spec=spec, index=index, allocator=allocator, attention=attention,
        **settings,
    )  # fmt: skip
    asked = [
        story(
            number % 4, number, include_stop=number % 5 == 0, detokenize=True,
            stop=some_stops(codec, stories[kind][number % 4], rng) if number % 6 else (),
            min_tokens=number % 3 * 5,
        )
        for number in range(12)
    ]  # fmt: skip
    records = serve(engine, *asked)
    for request in asked:
        record = records[request.index]
        output, asks = stories[kind][request.index % 4], request.sampling
        kept, text, stop = ended(
            codec.decode, output, asks.stop, asks.include_stop, asks.min_tokens
        )
        assert record.output_token_ids == output[:kept]
        assert (record.text, record.stopped_by) == (text, stop)
        assert record.finish_reason is (FinishReason.STOP if stop else FinishReason.LENGTH)
    assert any(r.stopped_by and len(r.output_token_ids) < LENGTH for r in records.values())
    assert "num_pages" not in settings or engine.core.queues.counters.preemptions
    assert drafter not in ("chain", "tree") or engine.core.ledger.accepted


@pytest.mark.parametrize("kind", ["gqa", "hybrid"])
def test_each_sample_ends_at_a_stop_string_of_its_own_text(wordy, kind):
    """Stops that are in the output of one sample or another; each sample as it is without them."""
    codec, rng = codec_of(wordy[kind]), random.Random(kind)
    whole = serve(build(wordy[kind]), story(0, n=4))
    stops = {stop for record in whole.values()
             for stop in some_stops(codec, record.output_token_ids, rng)}  # fmt: skip
    wishes = {"stop": tuple(sorted(stops))[:6], "n": 4, "echo": True}
    engine = build(wordy[kind], index="radix", spec=EagleConfig(num_drafts=3), num_pages=14)
    records = serve(engine, story(0, **wishes))
    prompt = codec.decode(story(0).prompt_token_ids)
    assert set(records) == {0, (0, 1), (0, 2), (0, 3)}
    for key, record in records.items():
        kept, text, stop = ended(codec.decode, whole[key].output_token_ids, wishes["stop"])
        assert record.output_token_ids == whole[key].output_token_ids[:kept]
        assert (record.text, record.stopped_by) == (prompt + text, stop)
    assert len({len(record.output_token_ids) for record in records.values()}) > 1
    best = serve(build(wordy[kind]), story(0, stop=wishes["stop"], best_of=4))
    (given,) = (record for record in best.values() if not record.dropped)
    same = whole[(0, given.sample) if given.sample else 0]
    text = ended(codec.decode, same.output_token_ids, wishes["stop"])[1]
    assert given.text == text


def test_text_is_given_while_it_is_final_and_stays_what_it_was(wordy, stories):
    """Without stop strings all complete text is given at once; with one, not its beginning."""
    codec, output = codec_of(wordy["gqa"]), stories["gqa"][0]
    text = codec.decode(output)
    client = Client(build(wordy["gqa"]))
    client.submit(story(0, 0, detokenize=True), story(0, 1, stop=(text[-4:] + "?", "ab?")))
    for count in range(1, LENGTH):
        client.step()
        known = codec.decode(output[:count]).rstrip(REPLACEMENT)
        kept = len(known) - withheld(known, (text[-4:] + "?", "ab?"))
        assert (client.texts[0], client.texts[1]) == (known, known[:kept])
    records = client.finish()
    assert records[0].text == records[1].text == text


def test_a_stop_token_ends_the_text_before_it_or_behind_it(wordy, stories):
    codec, output = codec_of(wordy["gqa"]), stories["gqa"][1]
    place = next(i for i in range(4, LENGTH) if output[i] not in output[:i])
    wishes = {"stop_token_ids": (output[place],), "detokenize": True}
    engine = build(wordy["gqa"])
    records = serve(engine, story(1, 0, **wishes), story(1, 1, include_stop=True, **wishes))
    assert [r.output_token_ids for r in records.values()] == [output[: place + 1]] * 2
    assert records[0].text == codec.decode(output[:place])
    assert records[1].text == codec.decode(output[: place + 1])
    assert records[0].stopped_by is None
    assert records[0].finish_reason is FinishReason.STOP


def test_an_abort_gives_out_what_was_withheld(wordy, stories):
    codec, output = codec_of(wordy["gqa"]), stories["gqa"][2]
    text = codec.decode(output[:3]).rstrip(REPLACEMENT)
    client = Client(build(wordy["gqa"]))
    client.submit(story(2, 0, stop=(text + "?",)))
    client.step(3)
    assert client.texts[0] == ""
    client.abort(0)
    record = client.finish()[0]
    assert record.status is Status.ABORTED
    assert record.text == codec.decode(output[:3])


def test_requests_without_a_wish_for_text_carry_none(wordy):
    client = Client(build(wordy["gqa"]))
    client.submit(story(0))
    client.step()
    (live,) = client.engine.core.queues.running.values()
    assert live.text is None
    record = client.finish()[0]
    assert (record.text, record.prompt_token_ids) == (None, ())


def test_the_prompt_comes_back_before_the_output(wordy, stories):
    """Its text as it was asked, or that of its ids; no stop string is looked for in it."""
    codec, output = codec_of(wordy["gqa"]), stories["gqa"][0]
    prompt = codec.encode("abcab")
    engine = build(wordy["gqa"])
    as_text = Request(0, tuple(prompt), SamplingParams(echo=True), prompt_text="abcab!")
    as_ids = replace(as_text, index=1, prompt_text=None)
    stopping = replace(story(0, 2, echo=True), sampling=replace(story(0).sampling, echo=True))
    stopping = replace(
        stopping, sampling=replace(stopping.sampling, stop=(codec.decode(output)[2:5],))
    )
    first: dict[int, RequestOutput] = {}
    for request in (as_text, as_ids, stopping):
        engine.submit(request)
    records = {}
    for given in engine.outputs():
        first.setdefault(given.index, given)
        if given.finished:
            records[given.index] = given.finished
    assert first[0].text.startswith("abcab!")
    assert first[1].text.startswith("abcab")
    for number, request in enumerate((as_text, as_ids, stopping)):
        assert first[number].prompt_token_ids == request.prompt_token_ids
        assert records[number].prompt_token_ids == request.prompt_token_ids
    answer = codec.decode(records[1].output_token_ids)
    assert (records[0].text, records[1].text) == (f"abcab!{answer}", f"abcab{answer}")
    kept, text, _ = ended(codec.decode, output, stopping.sampling.stop)
    assert records[2].output_token_ids == output[:kept]
    assert records[2].text == codec.decode(stopping.prompt_token_ids) + text


@pytest.mark.parametrize(
    ("wish", "named"),
    [({"stop": ("a",)}, "stop=('a',)"), ({"detokenize": True}, "detokenize=True")],
)
def test_text_that_nobody_can_make_is_refused_at_intake(model_of, wordy, wish, named):
    for engine, reason in (
        (build(model_of()), "model 'gqa' has no tokenizer.json; use stop_token_ids"),
        (build(executor=FixedConfig()), "executor=fixed makes tokens up; leave it out"),
    ):
        records = serve(engine, asking(0, 5, **wish), asking(1, 5))
        assert f"{named} cannot be served: {reason}" in records[0].error
        assert records[1].status is Status.FINISHED


def test_ids_are_echoed_where_there_is_no_text(model_of):
    for engine in (build(model_of()), build(executor=FixedConfig())):
        record = serve(engine, asking(0, 5, echo=True))[0]
        assert record.prompt_token_ids == asking(0, 5).prompt_token_ids
        assert record.text is None
