"""executor=cuda_graph without a GPU: shapes and padding, replayed eagerly."""

from collections import Counter
from itertools import product

import numpy as np
import pytest
import torch

from interlock.conf.find_model import describe_models
from interlock.conf.hydra_edge import compose
from interlock.core.assemble import assemble
from interlock.core.capabilities import ServesAttention, ServesTrees, ServesWindows
from interlock.core.errors import ConfigError
from interlock.core.registry import load_registry
from interlock.core.resolver import resolve
from interlock.core.testing.attention_contract import AttentionContract
from interlock.core.testing.executor_contract import ExecutorContract
from interlock.core.testing.replay_drafter import Continuations, ReplayConfig, replay_component
from interlock.driver.activity import counters
from interlock.plugins.executor import GraphConfig
from interlock.plugins.speculative import NgramConfig
from interlock.plugins.speculative.heads.options import EagleConfig
from tests.engine.conftest import model_of  # noqa: F401
from tests.engine.serving import (
    asking,
    build,
    outputs,
    plus,
    registry_with,
    serve,
    solo,
    tokens,
)
from tests.executor.whole_tables import WholeTableAttention


class TestCudaGraph(ExecutorContract):
    overrides = ("executor=cuda_graph", "model=tiny-gqa")


class TestCudaGraphWithDrafts(ExecutorContract):
    overrides = (
        "executor=cuda_graph", "executor.rows=[3,8]", "executor.capture=start", "model=tiny-gqa",
        "spec=ngram",
    )  # fmt: skip


class TestWholeTableAttention(AttentionContract):
    def make(self):
        return WholeTableAttention()


def crowd():
    """Equal and shared prompts, more requests than the pool holds at full length."""
    shared = tokens(9)
    prompts = [shared, shared, shared[:8], shared[:4] + tokens(3, 5), 1, 23, (*shared, 3, 4, 5)]
    sampled = {"temperature": 0.9, "seed": 4}
    return [
        asking(i, p, 9 + i, ignore_eos=True, **(sampled if i % 3 == 2 else {}))
        for i, p in enumerate(prompts)
    ]


def poisoned(engine):
    """Before each step every page that nobody has is NaN; nothing but the step's rows changes.

    Returns what was seen: steps, and those that were padded.
    """
    execute, planes, seen = engine.executor.execute, engine.planes, Counter()

    def owned(table):
        pool = engine.core.cache.pools[table]
        return torch.from_numpy((pool.refs > 0) | pool.kept)

    def watched(plan):
        batch = plan.batch
        before = {}
        for layer, table in planes.tables.items():
            for name, plane in planes.of_layer[layer].items():
                plane[: planes.scratch[table]][~owned(table)] = float("nan")
                plane[planes.scratch[table]] = float("nan")
                before[layer, name] = plane.clone()
        result = execute(plan)
        for (layer, name), old in before.items():
            table = planes.tables[layer]
            writable = torch.zeros(old.shape[:2], dtype=torch.bool)
            writable[planes.scratch[table]] = True
            for copy in batch.copies:
                writable[copy.target] |= copy.table == table
            for row in range(batch.num_rows):
                length = int(batch.row_offsets[row + 1] - batch.row_offsets[row])
                first = int(batch.starts[row])
                for entry in range(first, first + length + int(plan.draft_limits[row])):
                    page = batch.tables[table][batch.slots[row]][entry // planes.page_size]
                    writable[page, entry % planes.page_size] = True
            new = planes.of_layer[layer][name]
            same = new.view(torch.int64) == old.view(torch.int64)
            assert bool(same[~writable].all()), "a step wrote another's rows"
        seen.update(steps=1, padded=result.padding > 0, trees=bool(batch.drafts))
        return result

    engine.executor.execute = watched
    return seen


@pytest.mark.parametrize(
    ("kind", "spec"),
    [*product(("gqa", "hybrid"), ("none", "eagle", "chain", "tree")), ("mla_moe", "tree")],
)
def test_padding_changes_no_token_and_no_page_of_a_request(model_of, kind, spec):  # noqa: F811
    asked = crowd()
    right = solo(model_of(kind), asked)
    known = [(*r.prompt_token_ids, *right[r.index]) for r in asked]
    registry = plus(replay_component("replay", Continuations(known)))
    chosen = {
        "none": "none",
        "eagle": EagleConfig(num_drafts=3),
        "chain": ReplayConfig(),
        "tree": ReplayConfig(tree=True),
    }[spec]
    engine = build(
        model_of(kind), registry, executor="cuda_graph", spec=chosen, num_pages=19, max_requests=6,
        attention="mla" if kind == "mla_moe" else "gqa",
    )  # fmt: skip
    seen = poisoned(engine)
    assert outputs(serve(engine, *asked)) == right
    ledger, facts = engine.core.ledger, engine.executor.facts()
    assert seen["padded"] > 0
    assert ledger.padding > 0
    assert facts["mode"] == "eager replay, not captured"
    assert sum(facts["replayed_steps"].values()) > sum(facts["eager_steps"].values()) > 0
    steps = sum(facts["replayed_steps"].values()) + sum(facts["eager_steps"].values())
    assert steps == seen["steps"] == ledger.steps
    assert counters(engine)["executor"]["replayed_steps"] == facts["replayed_steps"]
    assert engine.core.queues.counters.preemptions > 0
    if kind != "hybrid":  # where a hit needs its window as well
        assert engine.core.cache.counters.hits > 0 or spec == "eagle"  # a hit leaves one token


@pytest.mark.parametrize("spec", ["none", "chain", "tree"])
@pytest.mark.parametrize("kind", ["gqa", "hybrid"])
def test_a_recorded_pass_serves_every_step_of_its_shape(model_of, kind, spec):  # noqa: F811
    """The plan of the first step of a shape is kept, and its tensors are overwritten."""
    asked = crowd()
    right = solo(model_of(kind), asked)
    known = [(*r.prompt_token_ids, *right[r.index]) for r in asked]
    served = (ServesAttention("heads"), ServesWindows(), ServesTrees())
    registry = registry_with(
        "attention", lambda _context: WholeTableAttention(), provides=lambda *_: served
    )
    replay = replay_component("replay", Continuations(known))
    registry.components = {**registry.components, ("spec", "replay"): replay}
    registry.origins = {**registry.origins, ("spec", "replay"): registry.origins["spec", "none"]}
    chosen = "none" if spec == "none" else ReplayConfig(tree=spec == "tree")
    engine = build(
        model_of(kind), registry, executor="cuda_graph", spec=chosen, num_pages=19, max_requests=6,
        attention="ours",
    )  # fmt: skip
    seen = poisoned(engine)
    assert outputs(serve(engine, *asked)) == right
    facts = engine.executor.facts()
    assert seen["padded"] > 0
    assert sum(facts["replayed_steps"].values()) > facts["recorded_shapes"] > 0


def test_every_shape_can_be_run_before_any_request(model_of):  # noqa: F811
    engine = build(
        model_of("hybrid"), executor=GraphConfig(rows=(1, 3, 8), capture="start"),
        spec=NgramConfig(num_drafts=2),
    )  # fmt: skip
    planes = engine.planes
    for layer, table in planes.tables.items():
        for plane in planes.of_layer[layer].values():
            assert not plane[: planes.scratch[table]].any(), "a page was written"
            assert bool(plane[planes.scratch[table]].any()), "nothing ran"
    assert engine.executor.facts()["replayed_steps"] == {}


def test_requests_beyond_the_largest_bucket_run_eagerly_and_are_counted(model_of):  # noqa: F811
    asked = [asking(i, 5, 6, ignore_eos=True) for i in range(5)]
    engine = build(model_of(), executor=GraphConfig(rows=(1, 2)))
    assert outputs(serve(engine, *asked)) == solo(model_of(), asked)
    facts = engine.executor.facts()
    assert set(facts["eager_steps"]) == {"more than 2 rows"}
    assert facts["replayed_steps"] == {}
    serve(engine, asking(9, 5, 6, ignore_eos=True))
    assert sum(engine.executor.facts()["replayed_steps"].values()) == 5


def test_drafts_do_not_reach_beyond_the_longest_request(model_of):  # noqa: F811
    """A row of padding is never longer than positions the model has."""
    asked = [asking(0, 2, 4, ignore_eos=True)]
    engine = build(
        model_of(positions=6), executor=GraphConfig(capture="start"), spec=NgramConfig(num_drafts=9)
    )
    assert outputs(serve(engine, *asked)) == solo(model_of(positions=6), asked)


def refusals(*overrides):
    registry = load_registry()
    config = compose(["model=tiny-gqa", "executor=cuda_graph", *overrides], registry)
    found = resolve(config, registry, describe_models(config, registry), cuda_devices=lambda: 2)
    return [problem.reason for problem in found.problems]


def test_what_cannot_be_captured_is_refused_on_cuda_and_served_on_a_cpu():
    for overrides, reason in {
        ("attention=reference",): "attention=reference as configured has no plans that can be",
        ("attention.kernel=torch", "attention=gqa"): "attention=gqa as configured has no plans",
        ("parallel=tensor",): "captures no sums over ranks, which parallel=tensor needs",
        ("numerics=batch_invariant",): "the number of launches grows with the longest context",
    }.items():
        assert any(reason in said for said in refusals("device=cuda", *overrides)), reason
        assert refusals("device=cpu", *overrides) == []


def test_options_that_cannot_be_are_refused():
    for override, reason in {
        "executor.rows=[4,2]": r"rows=\[4, 2\] are not rising numbers of at least 1",
        "executor.rows=[0,2]": r"rows=\[0, 2\] are not rising numbers of at least 1",
        "executor.rows=[8,65]": r"no step has more rows than scheduler.max_requests=64",
        "executor.capture=never": "no capture named 'never'",
    }.items():
        with pytest.raises(ConfigError, match=reason):
            assemble(["model=tiny-gqa", "executor=cuda_graph", override])


def test_padding_is_booked(model_of):  # noqa: F811
    engine = build(model_of(), executor=GraphConfig(rows=(4,)))
    serve(engine, *(asking(i, 5, 6, ignore_eos=True) for i in range(3)))
    ledger = engine.core.ledger
    assert ledger.padding == 5  # five decode steps of three rows; the prompts ran eagerly
    assert ledger.tokens_run == 15 + 15 + 5
    assert np.isclose(ledger.tokens()["padding"], 5)


def test_kernels_that_can_be_captured_are_accepted_on_cuda():
    pytest.importorskip("triton")
    assert refusals("device=cuda") == []
    assert refusals("device=cuda", "attention.kernel=triton", "attention=gqa") == []
