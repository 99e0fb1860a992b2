"""The engine from Python: wrong requests end alone, wrong calls are refused where they are made."""

import pytest

from interlock.core.request import HashedPrompt, Request, SamplingParams
from tests.engine.serving import build


def ended(engine, *requests):
    for request in requests:
        engine.submit(request)
    return {o.index: o.finished for o in engine.outputs() if o.finished}


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (Request(0, (1, "a")), "token id 'a' is outside the vocabulary"),
        (Request(0, (1.0,)), "token id 1.0 is outside the vocabulary"),
        (Request(0, ([1],)), "outside the vocabulary"),
        (Request(0, (1,), arrival_s=10**400), "is not a finite number of seconds"),
        (Request(0, (1,), arrival_s=float("nan")), "arrival_s=nan is not a finite number"),
        (Request(0, (1,), priority="x"), "priority='x' is not an integer"),
        (Request(0, (1,), tenant=None), "tenant=None is not a text"),
        (Request(0, (1,), SamplingParams(max_tokens=None)), "max_tokens=None is not an integer"),
        (Request(0, (1,), SamplingParams(stop_token_ids=[1])), "stop_token_ids=[1] is not token"),
        (Request(0, (1,), SamplingParams(temperature=10**400)), "is not a finite number >= 0"),
        (Request(0, hashed_prompt=HashedPrompt((1,), 8, 50)), "blocks for all its tokens"),
        (Request(0, hashed_prompt=HashedPrompt((1,), 0, 5)), "blocks for all its tokens"),
        (Request(0, hashed_prompt=HashedPrompt((2**61,), 8, 8)), "with ids from 0 to 2**63"),
        (Request(0, hashed_prompt=HashedPrompt(("a",), 8, 8)), "with ids from 0 to 2**63"),
    ],
)
def test_a_request_that_cannot_be_served_ends_alone(request_, reason):
    found = ended(build(), request_, Request(1, (1, 2), SamplingParams(max_tokens=2)))
    assert reason in found[0].error
    assert (found[1].error, len(found[1].output_token_ids)) == (None, 2)


def test_a_tenant_may_have_any_name(tiny):
    odd = Request(0, (1, 2), SamplingParams(max_tokens=1), tenant="\ud800")
    assert ended(build(tiny), odd)[0].error is None


def test_what_is_no_prompt_and_no_sampling_is_refused_at_once(tiny):
    from interlock.core.assemble import assemble

    engine = assemble([f"model={tiny}", "cache.num_pages=8", "threads=1"])
    with pytest.raises(ValueError, match="not a text that can be encoded"):
        engine.submit("\ud800")
    with pytest.raises(TypeError, match="is not a SamplingParams"):
        engine.submit([1], {"max_tokens": 2})
    assert not engine.has_work


def test_an_abort_of_an_unknown_or_ended_request_changes_nothing():
    engine = build()
    engine.abort(99)
    first = engine.submit([1, 2, 3], SamplingParams(max_tokens=30))
    engine.step()
    engine.abort(first)
    engine.abort(first)
    (record,) = [o.finished for o in engine.outputs() if o.finished]
    assert (record.status.value, engine.stats()["held_pages"]) == ("aborted", 0)
