"""Draft models and block drafters in an engine: the tokens of plain decoding, at every limit."""

import dataclasses

import pytest
import torch

from interlock.core.assemble import build_engine
from interlock.core.errors import ConfigError
from interlock.core.testing.feature_drafter_contract import FeatureDrafterContract
from interlock.core.testing.tiny import write_tiny_checkpoint
from interlock.plugins.models import model_families
from interlock.plugins.speculative.heads.block_options import DFlashConfig, DSparkConfig
from tests.engine.serving import Client, asking, build, configured, outputs, serve, solo, tokens
from tests.speculative.block_oracle import SLOTS, block_config, block_tensors, write_block_head

SPARK = {"markov_rank": 6, "markov_head_type": "rnn", "enable_confidence_head": True}


def write_head(directory, spark=False, **config):
    extra = {"markov": "rnn", "confidence": "both"} if spark else {}
    return write_block_head(
        directory, block_tensors(**extra), block_config(**(SPARK if spark else {}), **config)
    )


class TestDraftModel(FeatureDrafterContract):
    def overrides(self, model):
        write_tiny_checkpoint(model / "draft_model", "gqa", model_families(), seed=5)
        return ["spec=draft_model", "spec.num_drafts=3", "spec.proposal=sampled"]

    def drafter(self, executor):
        return executor.drafter


class TestDFlash(TestDraftModel):
    def overrides(self, model):
        write_head(model / "dflash")
        return ["spec=dflash", "spec.num_drafts=3"]


class TestDFlashTree(TestDraftModel):
    kind = "caps"

    def overrides(self, model):
        write_head(model / "dflash")
        return ["spec=dflash", "spec.num_drafts=9", "spec.tree=ddtree"]


class TestDSpark(TestDraftModel):
    kind = "mla"

    def overrides(self, model):
        write_head(model / "dspark", spark=True)
        return ["spec=dspark", "spec.num_drafts=5", "spec.proposal=sampled"]


def choices(folder):
    """Every way to draft a block, with heads under `folder`."""
    flash = str(write_head(folder / "flash"))
    spark = str(write_head(folder / "spark", spark=True))
    return [
        DFlashConfig(num_drafts=4, path=flash),
        DFlashConfig(num_drafts=2, path=flash, proposal="sampled"),
        DFlashConfig(num_drafts=11, path=flash, tree="ddtree"),
        DSparkConfig(num_drafts=5, path=spark),
        DSparkConfig(num_drafts=3, path=spark, proposal="sampled"),
    ]


@pytest.mark.parametrize(
    ("kind", "temperature"), [("gqa", 0.0), ("mla", 0.9), ("hybrid", 0.9), ("caps", 0.0)]
)
def test_tokens_are_those_without_drafts_at_every_limit(model_of, tmp_path, kind, temperature):
    """Chunks, hits, preemption, page sizes, a full length; whole blocks where fewer are wanted."""
    shared, sampling = tokens(13), {"temperature": temperature, "ignore_eos": True}
    requests = [
        asking(0, shared, 20, **sampling),
        asking(1, (*shared, 5, 6, 7), 14, **sampling),
        asking(2, 25, 60, **sampling),
        asking(3, (*shared, 5, 9), 3, **sampling),
    ]
    model = model_of(kind)
    right = solo(model, requests, max_model_len=48)
    for spec, page_size in zip(choices(tmp_path), (4, 1, 4, 16, 4), strict=True):
        engine = build(
            model, spec=spec, page_size=page_size, num_pages=68 // page_size + (page_size == 16),
            budget_tokens=12, max_model_len=48, index="radix",
        )  # fmt: skip
        records = serve(engine, *requests)
        assert outputs(records) == right
        assert sum(r.preemptions for r in records.values()) > 0 or page_size == 16
        assert engine.core.ledger.drafted > 0
        longest = records[2]
        assert len(longest.output_token_ids) == 48 - 25


def watched(engine):
    """Drafts of every call by (request's seed, anchor's position)."""
    drafter, seen = engine.executor.drafter, {}
    propose = drafter.propose

    def watching(rows, context):
        drafts = propose(rows, context)
        for r, draft in enumerate(drafts):
            length = rows.row_offsets[r + 1] - rows.row_offsets[r]
            if draft.tokens:
                seen[int(rows.seeds[r]), rows.starts[r] + length] = draft
        return drafts

    drafter.propose = watching
    return seen


@pytest.mark.parametrize("choice", range(5))
def test_rows_of_a_hit_give_the_same_drafts_as_rows_computed_anew(model_of, tmp_path, choice):
    """Also after another request was served beside it, and with the prompt in one chunk or more."""
    spec, found = choices(tmp_path)[choice], []
    for budget in (64, 7):
        engine = build(model_of(), spec=spec, num_pages=64, index="radix", budget_tokens=budget)
        client, seen = Client(engine), watched(engine)
        for index in range(2):
            client.submit(asking(index, tokens(26), 12, seed=7, temperature=0.5))
            client.submit(asking(9 + index, 11 + index, 9, seed=8))
            client.finish()
            drafts = {place: draft for (seed, place), draft in seen.items() if seed == 7}
            found.append([(place, drafts[place]) for place in sorted(drafts)])
            seen.clear()
        assert client.records[1].cached_tokens > 0
    for other in found[1:]:
        assert other == found[0]  # tokens and parents
        for (_, mine), (_, theirs) in zip(other, found[0], strict=True):
            assert mine.confidence == pytest.approx(theirs.confidence, abs=1e-9)
            if mine.laws is not None:
                torch.testing.assert_close(mine.laws, theirs.laws, rtol=0, atol=1e-9)


def test_blocks_stop_before_the_heads_last_position(model_of, tmp_path):
    head = write_head(tmp_path, max_position_embeddings=24)
    requests = [asking(0, 9, 30, ignore_eos=True), asking(1, 30, 6, ignore_eos=True)]
    engine = build(model_of(), spec=DFlashConfig(num_drafts=4, path=str(head)))
    seen = watched(engine)
    assert outputs(serve(engine, *requests)) == solo(model_of(), requests)
    assert max(place for _, place in seen) <= 24 - SLOTS


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("tree", [None, "ddtree"])
def test_batch_invariant_tokens_are_those_of_a_request_alone(model_of, tmp_path, dtype, tree):
    spec = DFlashConfig(num_drafts=4, path=str(write_head(tmp_path)), tree=tree)
    requests = [asking(i, 5 + 9 * i, 12, temperature=0.4 * i) for i in range(4)]

    def served(these, **more):
        config = configured(model_of(), attention="gqa", num_pages=96, **more)
        made = build_engine(dataclasses.replace(config, dtype=dtype, numerics="batch_invariant"))
        return made, outputs(serve(made, *these))

    made, found = served(requests, spec=spec, budget_tokens=20)
    assert made.core.ledger.drafted > 0
    for request in requests:
        assert served([request])[1][request.index] == found[request.index]


def test_a_head_reads_the_embedding_as_it_is_stored(model_of, tmp_path):
    """Gemma multiplies its own; the head was trained on the matrix."""
    from safetensors.torch import load_file

    model = model_of("caps")
    stored = load_file(model / "model.safetensors")["model.embed_tokens.weight"]
    own = block_tensors() | {"embed_tokens.weight": stored.double().numpy()}
    heads = {"shared": write_head(tmp_path / "shared"),
             "own": write_block_head(tmp_path / "own", own, block_config())}  # fmt: skip
    drafts = []
    for path in heads.values():
        engine = build(model, spec=DFlashConfig(num_drafts=4, path=str(path)))
        seen = watched(engine)
        serve(engine, asking(0, 9, 20))
        drafts.append(seen)
    assert drafts[0] == drafts[1] != {}


def test_a_configuration_chooses_them_by_name(tmp_path):
    from interlock.core.assemble import assemble

    model = write_tiny_checkpoint(tmp_path / "model", "gqa", model_families())
    write_head(model / "dflash", block_size=3)
    settings = [f"model={model}", "dtype=float64", "threads=1", "spec=dflash"]
    with pytest.raises(ConfigError, match="num_drafts=7: blocks of 3 make 2 candidates"):
        assemble(settings)
    assert assemble([*settings, "spec.num_drafts=2"]).executor.drafter.num_drafts == 2
