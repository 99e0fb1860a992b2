"""The goodput policy on a virtual clock, where the best length is known from the formula."""

import dataclasses

import pytest

from interlock.core.assemble import assemble
from interlock.core.request import Request, SamplingParams

MOST = 7
COSTS = [(10, 0.05, 0.3), (10, 0.05, 2), (2, 1, 0.1)]
"""Milliseconds of a step, of a row, and of a candidate that is drafted."""


def engine_of(batch, acceptance, costs, *, length="goodput"):
    """`batch` requests at a time, without end, on a clock with these costs."""
    engine = assemble(
        [
            "executor=fixed", "spec=ngram", f"spec.num_drafts={MOST}", f"spec/length={length}",
            f"executor.acceptance={acceptance}", f"scheduler.max_requests={batch}",
            "cache.num_pages=8192", "progress=false",
            *(f"executor.{name}_ms={ms}" for name, ms in zip(("step", "token", "draft"), costs,
                                                             strict=True)),
        ]
    )  # fmt: skip
    for index in range(4 * batch):
        sampling = SamplingParams(max_tokens=3500, ignore_eos=True)
        engine.submit(Request(index, (1, 2, 3 + index), sampling))
    return engine


def rate(engine, steps):
    """Tokens a second over the next steps."""
    start_s, emitted = engine.clock.now(), engine.core.num_emitted
    for _ in range(steps):
        engine.step()
    engine.core.ledger.check()
    return (engine.core.num_emitted - emitted) / (engine.clock.now() - start_s)


def rates_of(batch, acceptance, costs):
    """Tokens a second with each fixed length, by the formula."""
    step, row, draft = costs
    found = []
    for length in range(MOST + 1):
        tokens = batch * sum(acceptance**place for place in range(length + 1))
        found.append(tokens / (step + row * batch * (1 + length) + draft * length) * 1e3)
    return found


def test_the_formula_is_what_a_fixed_length_gives():
    engine = engine_of(8, 0.7, COSTS[0], length="fixed")
    rate(engine, 20)
    assert rate(engine, 200) == pytest.approx(rates_of(8, 0.7, COSTS[0])[MOST], rel=0.05)


@pytest.mark.parametrize("costs", COSTS, ids=str)
@pytest.mark.parametrize(
    ("batch", "acceptance", "steps"), [(1, 0.1, 600), (1, 0.8, 1200), (8, 0.5, 300)]
)
def test_the_best_fixed_length_is_found(batch, acceptance, steps, costs):
    engine = engine_of(batch, acceptance, costs)
    rate(engine, 150)
    assert rate(engine, steps) >= 0.94 * max(rates_of(batch, acceptance, costs))


@pytest.mark.parametrize(("before", "after"), [(0.95, 0.05), (0.05, 0.95)])
def test_a_change_of_acceptance_is_noticed_and_answered(before, after):
    costs = (10, 0.3, 0.8)
    engine = engine_of(4, before, costs)
    rate(engine, 150)
    assert rate(engine, 192) >= 0.93 * max(rates_of(4, before, costs))
    engine.executor._config = dataclasses.replace(engine.executor._config, acceptance=after)
    rate(engine, 400)
    assert rate(engine, 192) >= 0.93 * max(rates_of(4, after, costs))


def test_drafting_that_does_not_pay_is_turned_off_and_comes_back():
    engine = engine_of(8, 0.0, (10, 2, 2))
    rate(engine, 200)
    drafted = engine.core.ledger.drafted
    rate(engine, 256)
    assert engine.core.ledger.drafted - drafted <= 8 * 6  # one probe of one candidate in 64 steps
    engine.executor._config = dataclasses.replace(engine.executor._config, acceptance=1.0)
    rate(engine, 500)
    drafted = engine.core.ledger.drafted
    rate(engine, 64)
    assert engine.core.ledger.drafted - drafted >= 8 * 64 * 5


def test_steps_that_get_dear_shorten_drafts():
    engine = engine_of(4, 0.8, (20, 0.1, 0.2))
    rate(engine, 150)
    engine.executor._config = dataclasses.replace(engine.executor._config, step_ms=1, token_ms=2)
    rate(engine, 300)
    assert rate(engine, 192) >= 0.87 * max(rates_of(4, 0.8, (1, 2, 0.2)))


def test_blocks_that_do_not_pay_let_the_drafter_rest_and_it_comes_back():
    costs = (10, 0.05, 2)
    engine = engine_of(8, 0.05, costs, length="dspark")
    rate(engine, 100)
    assert rate(engine, 600) >= 0.93 * rates_of(8, 0.05, costs)[0]
    engine.executor._config = dataclasses.replace(engine.executor._config, acceptance=0.95)
    rate(engine, 800)
    assert rate(engine, 200) >= 0.9 * max(rates_of(8, 0.95, costs))


def test_tries_that_cost_many_steps_are_rare():
    engine = engine_of(8, 0.0, (1, 1, 40))
    rate(engine, 300)
    assert rate(engine, 600) >= 0.96 * rates_of(8, 0.0, (1, 1, 40))[0]
