"""Speculation inside the engine: step counts, limits of positions, hits under drafters."""

import json
import shutil
from functools import cache

import pytest

from interlock.core.batch import Draft
from interlock.core.drafter import FeatureDrafter
from interlock.core.testing.replay_drafter import Continuations, ReplayConfig, replay_component
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
    tokens,
)


@pytest.mark.parametrize(("num_drafts", "verify_steps"), [(1, 20), (3, 10), (5, 7)])
@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_a_perfect_drafter_is_accepted_whole_at_every_step(
    model_of, num_drafts, verify_steps, page_size
):
    request = asking(0, 9, 40)
    (right,) = solo(model_of(), [request], num_pages=16).values()
    registry = plus(
        replay_component("replay", Continuations([(*request.prompt_token_ids, *right)]))
    )
    spec = ReplayConfig("replay", num_drafts, tree=False, wrong_percent=0)
    engine = build(model_of(), registry, spec=spec, page_size=page_size, num_pages=64)
    record = serve(engine, request)[0]
    assert record.output_token_ids == right
    assert record.accepted_tokens == record.drafted_tokens
    assert record.target_passes == verify_steps
    assert engine.core.ledger.steps == 1 + verify_steps


class TargetAsDrafter(FeatureDrafter):
    """Drafts with the target itself, on cache rows of its own: full acceptance when greedy.

    Its row p holds the target's keys and values of the token at p + 1, at rotary position p.
    Rotary attention sees distances only, so a chain without the very first token is what it reads.
    """

    lookback_tokens = 1

    def __init__(self, context, num_drafts):
        self.num_drafts = num_drafts
        self._model = context.model
        self.attention = context.model.attention

    def propose(self, rows, context):
        lengths = [b - a for a, b in zip(rows.row_offsets, rows.row_offsets[1:], strict=False)]
        drafts = []
        for request, length in enumerate(lengths):
            if not length:
                drafts.append(Draft())
                continue
            first = rows.row_offsets[request]
            new = rows.next_tokens_N[first : first + length]
            start = rows.starts[request]
            chain = []
            for _ in range(max(1, rows.limits[request])):
                logits = self._run(context, request, new, start)
                start += len(new)
                chain.append(int(logits.argmax()))
                new = new.new_tensor([chain[-1]])
            drafts.append(Draft(tuple(chain[: rows.limits[request]])))
        return drafts

    def _run(self, context, request, new_T, start):
        attend, positions_T = context.attend([request], [len(new_T)], [start])
        above = self._model.num_layers

        def own(layer, spec, inputs):
            return attend(above + layer, spec, inputs)

        features_TE = context.decoder.forward(new_T, positions_T, own)
        return context.decoder.logits(features_TE[-1:])[0]


@pytest.mark.parametrize(("num_drafts", "verify_steps"), [(1, 20), (3, 10), (5, 7)])
@pytest.mark.parametrize("page_size", [1, 4])
def test_rows_of_a_drafter_with_a_cache_are_never_stale(
    model_of, num_drafts, verify_steps, page_size
):
    """The drafter misses the first token only, so a stale row would show as a fall somewhere."""
    known_first = asking(0, 9, 40)
    registry = registry_with("spec", lambda context: TargetAsDrafter(context, num_drafts))
    engine = build(model_of(), registry, spec="ours", page_size=page_size, num_pages=64)
    record = serve(engine, known_first)[0]
    (right,) = solo(model_of(), [known_first], num_pages=16).values()
    assert record.output_token_ids == right
    drafted = _chain_without_the_first_token(model_of(), known_first, tuple(right), num_drafts)
    assert (record.drafted_tokens, record.accepted_tokens) == drafted
    assert record.target_passes >= verify_steps


@cache
def _chain_without_the_first_token(model, request, right, num_drafts):
    """Drafted and accepted tokens if every draft is what the target says without the first token.

    Each proposal is computed from scratch on a sequence that ends where the draft begins.
    """
    text = [*request.prompt_token_ids, *right]
    at = request.num_prompt_tokens + 1
    drafted = accepted = 0
    while at < len(text):
        limit = min(num_drafts, len(text) - at - 1)
        chain = []
        if limit:
            alone = asking(0, text[1:at], limit, ignore_eos=True)
            chain = solo(model, [alone])[0]
        same = 0
        while same < limit and chain[same] == text[at + same]:
            same += 1
        drafted, accepted, at = drafted + limit, accepted + same, at + same + 1
    return drafted, accepted


@pytest.mark.parametrize("index", ["none", "radix"])
def test_pages_of_rejected_candidates_are_given_back_at_once(model_of, index):
    """Page tables end with the page of the newest computed token."""
    requests = [asking(i, 5 + i, 20, ignore_eos=True) for i in range(3)]
    right = solo(model_of(), requests)
    known = Continuations([(*r.prompt_token_ids, *right[r.index]) for r in requests])
    registry = plus(replay_component("replay", known))
    spec = ReplayConfig("replay", 7, wrong_percent=100)
    engine = build(model_of(), registry, spec=spec, page_size=2, index=index)
    for request in requests:
        engine.submit(request)
    looked_at = 0
    while engine.has_work:
        engine.step()
        for live in engine.core.queues.running.values():
            if live.holding is not None:
                assert live.holding.counts[0] == max(1, -(-live.computed // 2))
                looked_at += 1
    assert looked_at > 20
    assert engine.core.ledger.drafted > engine.core.ledger.accepted


def drafts_of(engine, request):
    """Every verified draft of a request, in order, and its tokens."""
    client = Client(engine)
    found = []
    engine_plan = engine.executor.execute

    def watching(plan):
        found.extend(draft.tokens for draft in plan.batch.drafts.values())
        return engine_plan(plan)

    engine.executor.execute = watching
    client.submit(request)
    record = client.finish()[request.index]
    return found, record


@pytest.mark.parametrize("kind", ["gqa", "mla_moe", "hybrid", "caps", "sinks"])
@pytest.mark.parametrize("index", ["radix", "block_hash"])
def test_drafts_do_not_depend_on_a_prefix_hit(model_of, kind, index):
    model = model_of(kind)
    prompt = tokens(23, salt=4)
    continued = (*prompt[:16], *tokens(5, salt=9))
    request = asking(1, continued, 12)
    spec = EagleConfig(num_drafts=3)
    cold, cold_record = drafts_of(build(model, spec=spec, index=index), request)
    warm_engine = build(model, spec=spec, index=index)
    serve(warm_engine, asking(0, prompt, 9))
    warm, warm_record = drafts_of(warm_engine, request)
    assert cold_record.cached_tokens == 0
    assert 8 <= warm_record.cached_tokens <= 16
    assert warm == cold
    assert warm_record.accepted_tokens == cold_record.accepted_tokens
    assert warm_record.output_token_ids == cold_record.output_token_ids


def test_a_hit_leaves_the_token_that_a_drafters_row_looks_back_from(model_of):
    """Two prompts equal up to a page's end differ in the drafter's last row of that page."""
    model = model_of()
    first, second = (*tokens(8, salt=1), 5, 6), (*tokens(8, salt=1), 7, 8)
    engine = build(model, spec=EagleConfig(num_drafts=2), index="radix")
    serve(engine, asking(0, first, 3))
    record = serve(engine, asking(1, second, 3))[1]
    assert record.cached_tokens == 4
    plain = build(model, index="radix")
    serve(plain, asking(0, first, 3))
    assert serve(plain, asking(1, second, 3))[1].cached_tokens == 8


@pytest.mark.parametrize("drafter", ["none", "replay", "eagle"])
@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_no_position_at_the_models_limit_is_touched(model_of, drafter, page_size):
    model = model_of(positions=32)
    request = asking(0, 30, 10, ignore_eos=True)
    right = solo(model, [request])[0]
    registry, spec = None, drafter
    if drafter == "replay":
        registry = plus(
            replay_component("replay", Continuations([(*request.prompt_token_ids, *right, 2, 2)]))
        )
        spec = ReplayConfig("replay", 4, wrong_percent=0)
    elif drafter == "eagle":
        spec = EagleConfig(num_drafts=4)
    engine = build(model, registry, spec=spec, page_size=page_size, num_pages=-(-32 // page_size))
    execute = engine.executor.execute

    def watching(plan):
        assert int(plan.batch.positions.max()) < 32
        return execute(plan)

    engine.executor.execute = watching
    record = serve(engine, request)[0]
    assert len(right) == 2
    assert record.output_token_ids == right
    assert record.finish_reason.value == "length"


def test_past_the_drafters_limit_decoding_goes_on_without_drafts(model_of, tmp_path):
    model = model_of()
    head = shutil.copytree(model / "eagle", tmp_path / "eagle")
    config = json.loads((head / "config.json").read_text())
    (head / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 24}))
    request = asking(0, 15, 17, ignore_eos=True)
    right = solo(model, [request])
    drafts = []
    spec = EagleConfig(num_drafts=4, path=str(head))
    engine = build(model, spec=spec, max_model_len=32)
    execute = engine.executor.execute

    def watching(plan):
        for row, draft in plan.batch.drafts.items():
            drafts.append(int(plan.batch.starts[row]) + 1 + len(draft.tokens))
        return execute(plan)

    engine.executor.execute = watching
    assert outputs(serve(engine, request)) == right
    assert max(drafts) == 24
    assert drafts.count(24) > 1, "drafts grow shorter towards the drafter's last position"
    again = serve(engine, asking(1, request.prompt_token_ids, 17, ignore_eos=True))
    assert again[1].cached_tokens == 12
    assert again[1].output_token_ids == right[0]


def test_a_draft_is_cut_to_the_steps_budget(model_of):
    requests = [asking(i, 6, 10) for i in range(3)]
    right = solo(model_of(), requests)
    known = [(*r.prompt_token_ids, *right[r.index]) for r in requests]
    registry = plus(replay_component("replay", Continuations(known)))
    engine = build(
        model_of(), registry, spec=ReplayConfig("replay", 6, wrong_percent=0), budget_tokens=8
    )
    client = Client(engine)
    client.submit(*requests)
    assert outputs(client.finish()) == right
    assert client.most_tokens == 8
