"""Heads of the EAGLE family inside engines: tokens of plain decoding, rows of committed tokens."""

import pytest

from interlock.core.testing.tiny import write_tiny_checkpoint
from interlock.core.testing.tiny_eagle import write_tiny_eagle
from interlock.plugins.models import model_families
from interlock.plugins.speculative.heads.options import Eagle2Config, Eagle3Config, EagleConfig
from tests.engine.serving import Client, asking, build, outputs, serve, solo, tokens
from tests.parallel.threads import with_threads
from tests.speculative.eagle3_files import write_tiny_eagle3
from tests.speculative.rebuild import Rebuilt

TREE = ((0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 0, 1), (0, 0, 0, 0))
DRAFTERS = {
    "chain": EagleConfig(num_drafts=4),
    "sampled": EagleConfig(num_drafts=4, proposal="sampled"),
    "static": EagleConfig(num_drafts=9, tree=TREE),
    "sampled static": EagleConfig(num_drafts=9, tree=TREE, proposal="sampled"),
    "eagle2": Eagle2Config(num_drafts=10, depth=4, top_k=3),
    "eagle3": Eagle3Config(num_drafts=5),
    "eagle3 tree": Eagle3Config(num_drafts=12, tree="dynamic", depth=4, top_k=3),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Four layers, so that three can be tapped."""
    folder = tmp_path_factory.mktemp("models") / "gqa"
    model = write_tiny_checkpoint(folder, "gqa", model_families(), num_hidden_layers=4)
    write_tiny_eagle(model / "eagle", model)
    write_tiny_eagle3(model / "eagle3", model, ids=(1, 2, 3), draft_vocab=40)
    return model


def requests():
    """Greedy and sampled ones, of lengths on both sides of page edges; two share a prefix."""
    shared = tokens(21, salt=5)
    return [
        asking(0, 3, max_tokens=14, ignore_eos=True),
        asking(1, 16, max_tokens=12, temperature=1.0, seed=3, ignore_eos=True),
        asking(2, shared, max_tokens=9, temperature=0.7, top_p=0.9, seed=4, ignore_eos=True),
        asking(3, (*shared, 7, 9), max_tokens=11, arrival_s=0.0, ignore_eos=True),
        asking(4, 30, max_tokens=6, temperature=1.3, min_p=0.02, seed=9),
    ]


@pytest.fixture(scope="module")
def alone(model):
    """What each request gets alone, without drafts."""
    return solo(model, requests())


SETTINGS = [
    {"page_size": 1, "num_pages": 400, "budget_tokens": 64},
    {"page_size": 4, "num_pages": 64, "budget_tokens": 24, "index": "radix"},
    {"page_size": 4, "num_pages": 18, "budget_tokens": 48, "index": "radix"},
    {"page_size": 16, "num_pages": 24, "budget_tokens": 40, "index": "block_hash"},
]
"""Pages of one token, chunked prompts, a pool that is too small for all, wide pages."""


@pytest.mark.parametrize("settings", SETTINGS, ids=["ones", "chunks", "preempted", "wide"])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_tokens_are_those_of_plain_decoding_and_rows_those_of_committed_tokens(
    model, alone, drafter, settings
):
    engine = build(model, spec=DRAFTERS[drafter], **settings)
    rebuilt = Rebuilt(engine)
    assert outputs(serve(engine, *requests())) == alone
    assert engine.core.ledger.drafted > 0
    assert rebuilt.checked > 0


@pytest.mark.parametrize("drafter", ["chain", "static", "eagle2", "eagle3", "eagle3 tree"])
def test_a_warm_prefix_is_drafted_after_as_a_cold_one(model, drafter):
    prompt = tokens(23, salt=2)
    drafts = {}
    for name, before in (("cold", ()), ("warm", (asking(0, prompt[:19], max_tokens=2),))):
        engine = build(model, spec=DRAFTERS[drafter], index="radix", num_pages=128)
        rebuilt = Rebuilt(engine)
        if before:
            serve(engine, *before)
        client = Client(engine)
        client.submit(asking(1, prompt, max_tokens=12, ignore_eos=True))
        record = client.finish()[1]
        assert (record.cached_tokens > 0) == bool(before)
        ids = max(request for request, _ in rebuilt.drafted)
        drafts[name] = {
            end: draft for (request, end), draft in rebuilt.drafted.items() if request == ids
        }
    last = len(prompt)
    assert {e: d for e, d in drafts["cold"].items() if e >= last} == {
        e: d for e, d in drafts["warm"].items() if e >= last
    }


@pytest.mark.parametrize("drafter", ["sampled static", "eagle2", "eagle3", "eagle3 tree"])
@pytest.mark.parametrize("where", [{"executor": "cuda_graph"}, {"parallel": "threads2"}])
def test_padded_steps_and_ranks_change_no_token(model, alone, drafter, where):
    engine = build(model, with_threads(), spec=DRAFTERS[drafter], **where)
    assert outputs(serve(engine, *requests())) == alone
    assert engine.core.ledger.drafted > 0
    if "executor" in where:
        assert engine.executor.facts()["replayed_steps"]
    engine.close()


@pytest.mark.parametrize("drafter", ["static", "eagle2", "eagle3 tree"])
def test_trees_end_where_a_model_has_no_positions_left(model, drafter):
    asked = [asking(0, 20, max_tokens=40, ignore_eos=True), asking(1, 5, max_tokens=50)]
    engine = build(model, spec=DRAFTERS[drafter], max_model_len=48, num_pages=64)
    assert outputs(serve(engine, *asked)) == solo(model, asked, max_model_len=48)
