"""Who runs when: no starvation, preemption inside a step, requests that cannot be served."""

import pytest

from interlock.core.request import FinishReason, Status
from interlock.core.testing.replay_drafter import Continuations, ReplayConfig, replay_component
from interlock.plugins.executor import FixedConfig
from interlock.plugins.scheduler import DecodeFirstConfig, PrefillFirstConfig
from interlock.plugins.speculative.heads.options import EagleConfig
from tests.engine.serving import Client, asking, build, outputs, plus, serve, solo, tokens

CHUNKINGS = [
    DecodeFirstConfig(),
    PrefillFirstConfig(),
    DecodeFirstConfig(min_prefill_share=0.5),
    PrefillFirstConfig(max_prefill_steps=1),
]
every_chunking = pytest.mark.parametrize(
    "chunking", CHUNKINGS, ids=["decode", "prefill", "decode-half", "prefill-one"]
)


@every_chunking
@pytest.mark.parametrize("drafts", [0, 3])
def test_a_running_request_gets_its_tokens_while_prompts_arrive_at_every_step(chunking, drafts):
    """With room for one prompt a step, gaps stay under the policy's bound."""
    spec = EagleConfig(num_drafts=drafts) if drafts else "none"
    engine = build(
        chunking=chunking, spec=spec, budget_tokens=16, num_pages=400, max_requests=64, index="none"
    )
    client = Client(engine)
    client.submit(asking(0, 4, 60))
    client.step()
    last, gaps = client.steps, []
    for arrived in range(1, 60):
        client.submit(asking(arrived, 16, 1))
        if client.step()[0]:
            gaps.append(client.steps - last)
            last = client.steps
        if 0 in client.records:
            break
    bound = 1 if isinstance(chunking, DecodeFirstConfig) else chunking.max_prefill_steps + 1
    assert gaps
    assert max(gaps) <= bound
    client.finish(2000)


@every_chunking
@pytest.mark.parametrize("drafts", [0, 7])
def test_a_prompt_gets_its_first_token_among_endless_decodes(chunking, drafts):
    """As many decodes as the budget has tokens, and drafts for the rest of it."""
    spec = EagleConfig(num_drafts=drafts) if drafts else "none"
    engine = build(
        chunking=chunking, spec=spec, budget_tokens=8, num_pages=2000, max_requests=9, index="none",
        executor=FixedConfig(acceptance=0.0),
    )  # fmt: skip
    client = Client(engine)
    client.submit(*(asking(i, 1, 500) for i in range(8)))
    client.step(3)
    client.submit(asking(8, 16, 1))
    while 8 not in client.records:
        assert client.steps < 330
        client.step()
    assert not any(i in client.records for i in range(8))


@pytest.mark.parametrize("victim", ["latest", "lowest_priority"])
@pytest.mark.parametrize("drafting", [False, True])
def test_a_victim_placed_earlier_in_the_step_leaves_it(model_of, victim, drafting):
    """Low priorities decode; then an important prompt of this step needs their pages."""
    model = model_of()
    low = [asking(i, 7, 14, priority=0, ignore_eos=True) for i in range(2)]
    high = [asking(2 + i, 17, 6, priority=5, ignore_eos=True) for i in range(2)]
    right = solo(model, [*low, *high])
    known = [(*r.prompt_token_ids, *right[r.index]) for r in [*low, *high]]
    registry = plus(replay_component("replay", Continuations(known)))
    engine = build(
        model, registry, order="priority", victim=victim, num_pages=9, index="none",
        spec=ReplayConfig("replay", 3) if drafting else "none", budget_tokens=20,
    )  # fmt: skip
    client = Client(engine)
    client.submit(*low)
    client.step(3)
    client.submit(*high)
    records = client.finish()
    assert outputs(records) == right
    assert sum(record.preemptions for record in records.values()) > 0
    assert client.most_tokens <= 20


@pytest.mark.parametrize("index", ["none", "radix", "block_hash"])
@pytest.mark.parametrize("kind", ["gqa", "hybrid"])
def test_requests_that_do_not_fit_together_take_turns_and_stay_right(model_of, index, kind):
    model = model_of(kind)
    requests = [
        asking(i, 6 + i, 18, temperature=1.0, ignore_eos=True, priority=i % 2) for i in range(5)
    ]
    engine = build(model, index=index, num_pages=8, budget_tokens=16)
    records = serve(engine, *requests)
    assert outputs(records) == solo(model, requests)
    assert sum(record.preemptions for record in records.values()) > 0
    assert engine.core.ledger.recomputed == sum(r.recomputed_tokens for r in records.values())
    assert engine.core.ledger.recomputed > 0 or index != "none"


@pytest.mark.parametrize("index", ["none", "radix"])
def test_the_request_admitted_first_is_never_preempted(index):
    engine = build(num_pages=10, index=index, order="priority", victim="lowest_priority")
    client = Client(engine)
    client.submit(asking(0, 4, 30, priority=0))
    client.step(2)
    client.submit(*(asking(i, 8, 12, priority=9) for i in range(1, 5)))
    records = client.finish()
    assert records[0].preemptions == 0
    assert sum(record.preemptions for record in records.values()) > 0


def _bad(index):
    return [
        (asking(index, ()), "the prompt is empty"),
        (asking(index, 4, 0), "max_tokens=0 is not an integer from 1 to 2**63 - 1"),
        (asking(index, (3, 64)), "token id 64 is outside the vocabulary 0 .. 63"),
        (asking(index, (3, -1, 5)), "token id -1 is outside"),
        (asking(index, (3, 2.5)), "token id 2.5"),
        (asking(index, ("3",)), "token id '3'"),
        (asking(index, 4, temperature=float("nan")), "temperature=nan"),
        (asking(index, 4, temperature=float("inf")), "temperature=inf"),
        (asking(index, 4, temperature=-1.0), "temperature=-1.0"),
        (asking(index, 512), "max_model_len 512"),
        (asking(index, 4, stop_token_ids=(64,)), "stop_token_ids=(64,)"),
        (asking(index, 4, arrival_s=float("nan")), "arrival_s=nan"),
        (asking(index, 4, arrival_s=float("inf")), "arrival_s=inf"),
        (asking(index, 4, arrival_s="soon"), "arrival_s='soon'"),
        (asking(index, 4, priority=None), "priority=None"),
        (asking(index, 4, tenant=7), "tenant=7"),
    ]


@pytest.mark.parametrize("which", range(len(_bad(0))))
def test_a_request_that_cannot_be_served_fails_alone(model_of, which):
    """Alone, and as the middle one of three."""
    bad, reason = _bad(1)[which]
    alone = serve(build(model_of(), num_pages=160), bad)[1]
    others = [asking(0, 5), asking(2, 6, temperature=1.0)]
    engine = build(model_of(), num_pages=160)
    records = serve(engine, others[0], bad, others[1])
    for record in (alone, records[1]):
        assert record.status is Status.FAILED
        assert record.finish_reason is FinishReason.ERROR
        assert record.error is not None
        assert record.error.startswith("request 1: ")
        assert reason in record.error
        assert record.output_token_ids == []
    del records[1]
    assert outputs(records) == solo(model_of(), others)
    assert serve(engine, asking(3, 5))[3].status is Status.FINISHED


def test_an_engine_of_bad_requests_only_ends():
    client = Client(build())
    client.submit(*(bad for bad, _ in _bad(0)[:1]), asking(1, (), arrival_s=5.0))
    records = client.finish()
    assert {record.status for record in records.values()} == {Status.FAILED}


def test_arrivals_are_served_in_order_whatever_the_order_of_submission():
    engine = build(max_requests=1)
    late, early = asking(0, 4, 3, arrival_s=1.0), asking(1, 4, 3, arrival_s=0.5)
    records = serve(engine, late, early)
    assert records[1].admitted_s == 0.5
    assert records[0].admitted_s == 1.0
    assert records[1].finished_s < records[0].admitted_s


@every_chunking
@pytest.mark.parametrize("budget", [1, 3, 16])
def test_a_step_never_exceeds_its_budget(chunking, budget):
    engine = build(
        chunking=chunking, budget_tokens=budget, num_pages=30, index="radix", max_requests=6,
        spec=EagleConfig(num_drafts=4),
    )  # fmt: skip
    client = Client(engine)
    shared = tokens(9, salt=2)
    client.submit(*(asking(i, (*shared[: 3 * i], *tokens(4, salt=i)), 5) for i in range(4)))
    client.finish(3000)
    assert client.most_tokens <= budget


def test_a_step_whose_only_share_gave_its_pages_up_is_filled_again():
    """The prompt has the whole step, is one page short and its own victim; the decode must run."""
    engine = build(
        chunking=PrefillFirstConfig(), page_size=3, num_pages=18, budget_tokens=5, index="none"
    )
    client = Client(engine)
    client.submit(asking(0, 27, 3), asking(1, 25, 1))
    records = client.finish()
    assert records[1].preemptions == 1
    assert [len(record.output_token_ids) for record in records.values()] == [3, 1]
