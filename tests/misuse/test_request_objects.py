"""Requests made in Python with any value in any field: refused alone and by name, or at submit."""

import dataclasses

import numpy as np
import pytest

from interlock.core.registry import load_registry
from interlock.core.request import HashedPrompt, Request, SamplingParams, Status
from interlock.core.testing.tiny import write_tiny_checkpoint
from tests.engine.serving import Client, asking, build, outputs, serve

HUGE = 10**5000
"""More digits than Python writes."""
ANY = [
    None, True, False, 0, 1, -1, 0.5, -0.5, float("nan"), float("inf"), 10**30, 10**300,
    HUGE, -HUGE, "", "a", "\ud800", "1", b"x", (), (1,), [1], {}, {1: 2}, {"9" * 5000: 1},
    {"a": HUGE}, (1, 1), ((1, 2.0),), ((1, float("nan")),), ((10**30, 1.0),), ("",), ("\ud800",),
    (None,), object(), 1j, {1}, range(3), (HUGE,), (-1,), (True,), "9" * 5000, int, ("a",) * 17,
    ("a" * 1001,),
]  # fmt: skip
WELL_KNOWN = Request(0, (70, 71, 72), SamplingParams(max_tokens=4, echo=True))


@pytest.fixture(scope="module")
def worded(tmp_path_factory):
    """A model over bytes, so that every feature is to be had."""
    folder, families = tmp_path_factory.mktemp("worded"), load_registry().families.values()
    return write_tiny_checkpoint(folder / "gqa", "gqa", list(families), tokenizer=True)


def changed(field):
    """Requests with every value in this field of SamplingParams, Request or HashedPrompt."""
    kind, _, name = field.rpartition(".")
    for value in ANY:
        if kind == "sampling":
            sampling = dataclasses.replace(WELL_KNOWN.sampling, **{name: value})
            yield dataclasses.replace(WELL_KNOWN, sampling=sampling)
        elif kind == "hashed_prompt":
            prompt = dataclasses.replace(HashedPrompt((1, 2), 4, 8), **{name: value})
            yield Request(0, (), SamplingParams(max_tokens=4), hashed_prompt=prompt)
        elif name != "arrival_s" or not isinstance(value, int | float) or not value > 1:
            yield dataclasses.replace(WELL_KNOWN, **{name: value})


def fields(kind, prefix=""):
    return [f"{prefix}{one.name}" for one in dataclasses.fields(kind)]


@pytest.mark.parametrize(
    "field",
    fields(SamplingParams, "sampling.")
    + fields(HashedPrompt, "hashed_prompt.")
    + [name for name in fields(Request) if name != "index"],
)
def test_any_value_in_any_field_ends_that_request_alone_and_is_named(worded, field):
    good = [asking(1000, [70, 71, 72, 73], 6), asking(2000, [70, 71], 9, temperature=1.0, seed=1)]
    right = outputs(serve(build(worded), *good))
    client = Client(build(worded, structured="xgrammar"))
    client.submit(good[0])
    names = (field.rpartition(".")[2], field.partition(".")[0], "block ids", "prompt", "token id")
    refused = []
    for index, request in enumerate(changed(field)):
        try:
            client.submit(dataclasses.replace(request, index=index))
        except TypeError as error:
            refused.append(str(error))
    client.submit(good[1])
    records = client.finish(5000)
    assert {index: records[index].output_token_ids for index in right} == right
    refused += [r.error for r in records.values() if r.status is Status.FAILED]
    assert len(refused) > 5 or field == "tenant"
    for reason in refused:
        assert any(name in reason for name in names if name != "sampling" or field == name)
        assert len(reason) < 300


@pytest.mark.parametrize("index", [None, -1, 1.0, "0", (HUGE,), (), object()])
def test_an_index_that_no_record_can_have_is_refused_at_submit(index):
    engine = build()
    with pytest.raises(TypeError, match=r"^index=.* is not an integer >= 0$"):
        engine.submit(dataclasses.replace(WELL_KNOWN, index=index))
    assert not engine.has_work


@pytest.mark.parametrize("prompt", [None, 5, b"ab", {1: 2}, {1}, object()])
def test_what_is_no_prompt_is_refused_at_submit(prompt):
    engine = build()
    with pytest.raises(TypeError, match="is not a Request, a text or a sequence of token ids"):
        engine.submit(prompt)
    with pytest.raises(TypeError, match=r"^sampling=\{\} is not a SamplingParams"):
        engine.submit([1, 2], {})
    assert not engine.has_work
    assert engine.submit(np.array([1, 2])) == 0


def test_an_echo_of_block_ids_is_refused():
    asked = Request(0, (), SamplingParams(echo=True), hashed_prompt=HashedPrompt((1, 2), 4, 8))
    assert "echo=True" in serve(build(), asked)[0].error
