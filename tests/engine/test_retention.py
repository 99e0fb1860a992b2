"""Requests say how long ranges of their tokens stay cached, and the policy `priority` follows."""

import json
from dataclasses import replace

import pytest

from interlock.conf.check_retention import retention_problems
from interlock.core.errors import RequestError
from interlock.core.retention import RETAIN_S, RetainedRange, Retention
from interlock.plugins.frontend.retention import read_retention
from tests.engine.serving import asking, build, serve, tokens


def with_retention(request, *ranges, **output):

    return replace(
        request, retention=Retention(tuple(RetainedRange(*one) for one in ranges), **output)
    )


def said(engine):
    """Depth in pages -> (priority, seconds) of every indexed page."""
    found = {}
    for run in engine.core.cache.index.runs():
        for place in range(len(run.pages)):
            found[run.depth_pages + place] = run.priority, run.state.get(RETAIN_S)
    return found


@pytest.mark.parametrize("index", ["radix", "block_hash"])
def test_each_page_has_what_is_said_of_its_first_token(index):
    """Pages of 4 tokens: 20 of the prompt, then the output."""
    engine = build(None, index=index, num_pages=40)
    asked = with_retention(
        asking(0, tokens(20, salt=1), 9), (0, 5, 90, None), (8, 16, 10, 5.0), output_priority=1
    )
    serve(engine, asked)
    forever = float("inf")
    assert said(engine) == {
        0: (90, forever), 1: (90, forever), 2: (10, 5.0), 3: (10, 5.0), 4: (35, None),
        5: (1, forever), 6: (1, forever),
    }  # fmt: skip


@pytest.mark.parametrize("index", ["radix", "block_hash"])
def test_request_that_says_something_later_changes_pages_that_it_finds(index):
    engine = build(None, index=index, num_pages=40)
    prompt = tokens(20, salt=1)
    serve(engine, with_retention(asking(0, prompt, 1), (0, 16, 90, None)))
    serve(engine, with_retention(asking(1, prompt, 1), (4, 8, 20, 3.0)))
    forever = float("inf")
    expected = {0: (90, forever), 1: (20, 3.0), 2: (90, forever), 3: (90, forever)}
    assert {depth: said(engine)[depth] for depth in expected} == expected
    engine.core.cache.index.check_integrity()


@pytest.mark.parametrize("index", ["radix", "block_hash"])
def test_prompt_worth_keeping_outlives_newer_ones(index):
    engine = build(None, eviction="priority", index=index, num_pages=12)
    kept = tokens(16, salt=1)
    serve(engine, with_retention(asking(0, kept, 1), (0, None, 100, None)))
    for number in range(1, 6):
        serve(engine, asking(number, tokens(16, salt=10 + number), 1))
    records = serve(engine, asking(9, (*kept, 3), 1))
    assert records[9].cached_tokens == 16


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([], "is not an object"),
        ({"range": []}, "range"),
        ({"ranges": 3}, "is not a list"),
    ],
)
def test_what_is_no_retention_is_refused_with_the_value(value, reason):
    with pytest.raises(RequestError, match=reason):
        read_retention(json.loads(json.dumps(value)))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"ranges": [{"start": 4, "end": 4}]}, "end 4 is not an integer above 4"),
        ({"ranges": [{"end": 9}, {"start": 8}]}, "start 8 is not an integer >= 9"),
        ({"ranges": [{}, {"start": 8}]}, "start 8 is not an integer >="),
        ({"ranges": [{"priority": 101}]}, "priority 101 is not an integer from 0 to 100"),
        ({"output_priority": True}, "priority True is not an integer"),
        ({"output_duration_s": 0}, "duration_s 0 is not a number above 0"),
    ],
)
def test_values_of_a_retention_are_refused_with_what_is_allowed(value, reason):
    (problem,) = retention_problems(read_retention(json.loads(json.dumps(value))))
    assert reason in problem


def test_retention_reads_as_it_is_written():
    value = {
        "ranges": [{"start": 2, "end": 5, "priority": 80, "duration_s": 1.5}],
        "output_priority": 0,
    }
    assert read_retention(value) == Retention((RetainedRange(2, 5, 80, 1.5),), 0)
    assert read_retention(None) is None


def test_malformed_retention_fails_its_own_request_alone():
    engine = build(None, num_pages=40)
    bad, good = asking(0, tokens(8), 1), asking(1, tokens(8), 1)
    records = serve(engine, with_retention(bad, (0, 4, 500, None)), good)
    assert "priority 500 is not an integer from 0 to 100" in records[0].error
    assert records[1].error is None
