"""An abort at any moment: one final record, no token after it, all pages back, others equal."""

import pytest

from interlock.core.request import FinishReason, RequestId, Status
from interlock.plugins.speculative.heads.options import EagleConfig
from tests.engine.serving import Client, asking, build, outputs, overlapping, serve, solo, tokens

NEIGHBOURS = [asking(1, 6, 9, temperature=1.0, ignore_eos=True), asking(2, 11, 7, ignore_eos=True)]
LONG = asking(0, 21, 8, ignore_eos=True)
MOMENTS = {
    "waiting": 0,
    "after its first chunk": 1,
    "before its last chunk": 3,
    "while it decodes": 6,
}


@pytest.fixture(scope="module")
def right(model_of):
    return {kind: solo(model_of(kind), [LONG, *NEIGHBOURS]) for kind in ("gqa", "hybrid")}


@pytest.mark.parametrize("kind", ["gqa", "hybrid"])
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("spec", ["none", "eagle"])
def test_an_abort_disturbs_nobody_else(model_of, right, kind, moment, spec):
    engine = build(
        model_of(kind), budget_tokens=8, num_pages=40, index="radix", order="priority",
        spec=EagleConfig(num_drafts=2) if spec == "eagle" else "none",
    )  # fmt: skip
    client = Client(engine)
    client.submit(*NEIGHBOURS, LONG)
    client.step(MOMENTS[moment])
    seen = list(client.tokens[0])
    client.abort(0)
    client.abort(0)
    records = client.finish()
    client.abort(0)
    client.engine.abort(RequestId(99))
    assert not client.engine.step()
    record = records.pop(0)
    assert (record.status, record.finish_reason) == (Status.ABORTED, FinishReason.ABORT)
    assert record.output_token_ids == seen == right[kind][0][: len(seen)]
    assert outputs(records) == {i: right[kind][i] for i in (1, 2)}


def test_an_aborted_prompts_computed_pages_serve_the_next_request(model_of, right):
    engine = build(model_of(), budget_tokens=8, index="radix")
    client = Client(engine)
    client.submit(LONG)
    client.step()
    client.abort(0)
    client.finish()
    again = serve(engine, asking(3, LONG.prompt_token_ids, 8, ignore_eos=True))[3]
    assert again.cached_tokens == 8
    assert again.output_token_ids == right["gqa"][0]


def test_a_request_aborted_before_it_arrives_gets_its_record_at_once():
    client = Client(build())
    client.submit(asking(0, 5, 3), asking(1, 5, 3, arrival_s=50.0), asking(2, 5, 3, arrival_s=60.0))
    client.abort(1)
    client.step()
    assert client.records[1].finish_reason is FinishReason.ABORT
    assert client.records[1].output_token_ids == []
    assert client.engine.clock.now() < 1.0
    assert client.finish()[2].finished_s >= 60.0


def test_the_record_of_the_last_request_is_delivered_when_it_is_aborted():
    """A loop `while engine.has_work: engine.step()` must see it."""
    for moment in range(4):
        client = Client(build(budget_tokens=4))
        client.submit(asking(0, 7, 5))
        client.step(moment)
        client.abort(0)
        assert client.engine.has_work
        records = client.finish()
        assert records[0].finish_reason is FinishReason.ABORT
        assert not client.engine.has_work


def test_a_preempted_request_can_be_aborted_while_it_waits():
    engine = build(num_pages=6, index="none")
    client = Client(engine)
    client.submit(asking(0, 7, 14), asking(1, 7, 14))
    while not any(live.view.preemptions for live in engine.core.queues.waiting):
        client.step()
    seen = list(client.tokens[1])
    client.abort(1)
    records = client.finish()
    assert records[1].finish_reason is FinishReason.ABORT
    assert records[1].output_token_ids == seen
    assert records[1].preemptions == 1
    assert len(records[0].output_token_ids) == 14


@pytest.mark.parametrize("index", ["none", "radix"])
def test_no_token_of_a_step_in_flight_is_given_out_after_an_abort(index):
    engine = build(budget_tokens=4, num_pages=30, index=index, max_requests=3)
    right = outputs(serve(build(), *(asking(i, 6, 6) for i in range(3))))
    client = Client(overlapping(engine))
    client.submit(*(asking(i, 6, 6) for i in range(3)))
    flying = []
    while not flying:
        client.step()
        running = engine.core.queues.running.values()
        flying = [v for v in running if v.in_flight and v.sequence.length > 6]
    index_of = flying[0].request.index
    seen = list(client.tokens[index_of])
    client.abort(index_of)
    client.step()
    assert client.records[index_of].output_token_ids == seen
    records = client.finish()
    assert records[index_of].finish_reason is FinishReason.ABORT
    assert all(outputs(records)[i] == right[i] for i in range(3) if i != index_of)


def test_every_request_may_be_aborted_in_one_step():
    engine = build(budget_tokens=16, num_pages=12)
    client = Client(engine)
    shared = tokens(9, salt=1)
    client.submit(*(asking(i, (*shared, i + 2), 9) for i in range(6)))
    client.step(2)
    for i in range(6):
        client.abort(i)
    records = client.finish()
    assert {record.finish_reason for record in records.values()} == {FinishReason.ABORT}
    assert serve(engine, asking(9, shared, 2))[9].status is Status.FINISHED
