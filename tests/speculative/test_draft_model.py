"""spec=draft_model: the target as its own drafter, other vocabularies, limits, what is refused."""

import json
import shutil

import pytest
import torch

from interlock.core.capabilities import (
    Composition,
    RunsModel,
    ServesAttention,
    SimulatesDrafts,
)
from interlock.core.component import BuildContext
from interlock.core.errors import CheckpointError, ConfigError
from interlock.core.testing.tiny import dense_attend, tiny_description, write_tiny_checkpoint
from interlock.plugins.attention.reference import ReferenceAttention
from interlock.plugins.models import model_families, model_formats
from interlock.plugins.speculative import components
from interlock.plugins.speculative.heads.block_options import DraftModelConfig
from interlock.plugins.speculative.heads.draft_model import build as build_drafter
from tests.engine.serving import (
    Client,
    asking,
    build,
    outputs,
    registry_with,
    serve,
    solo,
    tokens,
)

KINDS = ("gqa", "mqa", "mla", "hybrid", "caps", "sinks")


def drafting_with(path, num_drafts=4, **options):
    return DraftModelConfig(num_drafts=num_drafts, path=str(path), **options)


@pytest.mark.parametrize(
    ("kind", "proposal"), [(kind, ("greedy", "sampled")[i % 2]) for i, kind in enumerate(KINDS)]
)
def test_the_target_as_its_own_drafter_is_accepted_whole(model_of, kind, proposal):
    model = model_of(kind)
    requests = [
        asking(i, n, k, ignore_eos=True) for i, n, k in ((0, 9, 17), (1, 23, 11), (2, 1, 6))
    ]
    engine = build(model, spec=drafting_with(model, 4, proposal=proposal), budget_tokens=20)
    records = serve(engine, *requests)
    assert outputs(records) == solo(model, requests)
    for record in records.values():
        assert record.accepted_tokens == record.drafted_tokens > 0
    assert records[0].target_passes == 4  # after the prompt 16 tokens, 5 at most a pass


@pytest.mark.parametrize("page_size", [1, 16])
def test_accepted_runs_may_end_anywhere_in_a_page(model_of, page_size):
    model, request = model_of(), asking(0, 7, 30)
    for num_drafts in (1, 2, 7):
        engine = build(
            model, spec=drafting_with(model, num_drafts), page_size=page_size, num_pages=64
        )
        record = serve(engine, request)[0]
        assert record.output_token_ids == solo(model, [request])[0]
        assert record.target_passes == -(-29 // (num_drafts + 1))


@pytest.mark.parametrize("verifier", ["ratio", "block", "recursive"])
def test_drawn_from_the_targets_own_law_every_candidate_is_accepted(model_of, verifier):
    """At any temperature, with filters: any deficit is a wrong row, position or law."""
    model = model_of()
    spec = drafting_with(model, 4, proposal="sampled")
    engine = build(model, spec=spec, verifier=verifier, budget_tokens=16)
    filters = ({}, {"top_k": 7}, {"top_p": 0.8}, {"min_p": 0.05})
    requests = [
        asking(i, 3 + 9 * i, 18, temperature=0.5 * i, ignore_eos=True, **more)
        for i, more in enumerate(filters)
    ]
    for record in serve(engine, *requests).values():
        assert record.accepted_tokens == record.drafted_tokens > 0


@pytest.mark.parametrize("kind", ["gqa", "mla"])
def test_laws_of_the_target_as_its_own_drafter_are_the_targets(model_of, kind):
    """At every candidate the recorded law is that of a dense run over all tokens before it."""
    model = model_of(kind)
    engine = build(model, spec=drafting_with(model, 3, proposal="sampled"), budget_tokens=16)
    drafter, texts, checked = engine.executor.drafter, {}, []
    propose = drafter.propose

    def checking(rows, context):
        drafts = propose(rows, context)
        for r, draft in enumerate(drafts):
            first, end = rows.row_offsets[r : r + 2]
            text = texts.setdefault(int(rows.seeds[r]), [])
            text[rows.starts[r] :] = rows.tokens_N[first:end].tolist()
            if draft.tokens:
                check_laws(drafter.decoder, [*text, int(rows.next_tokens_N[end - 1])], draft)
                checked.append(draft)
        return drafts

    drafter.propose = checking
    sampling = {"temperature": 0.7, "top_k": 20}
    serve(engine, *(asking(i, length, 12, **sampling) for i, length in enumerate((9, 30))))
    assert len(checked) > 6


def check_laws(decoder, text, draft):
    ids = torch.tensor([*text, *draft.tokens])
    attend = dense_attend(decoder.description)
    logits = decoder.logits(decoder.forward(ids, torch.arange(len(ids)), attend))
    rows = logits[len(text) - 1 : -1] / 0.7
    kept = rows.topk(20, dim=-1)
    right = torch.zeros_like(rows).scatter(1, kept.indices, kept.values.softmax(-1))
    torch.testing.assert_close(draft.laws, right, rtol=0, atol=1e-10)
    best = logits[len(text) - 1 : -1].softmax(-1).amax(-1)
    torch.testing.assert_close(torch.tensor(draft.confidence).double(), best, rtol=0, atol=1e-6)


def padded(directory, model, vocab_size, tokenizer=None):
    """The same model with a vocabulary of another size; rows are cut, or new ones added."""
    shutil.copytree(model, directory)
    from safetensors.torch import load_file, save_file

    config = json.loads((model / "config.json").read_text())
    tensors = load_file(model / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        rows = tensors[name][:vocab_size]
        more = 9 * torch.randn(vocab_size - len(rows), rows.shape[1])
        tensors[name] = torch.cat([rows, more]).contiguous()
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps({**config, "vocab_size": vocab_size}))
    for folder in (directory, model) if tokenizer else ():
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return directory


@pytest.fixture
def target(tmp_path):
    return write_tiny_checkpoint(tmp_path / "target", "gqa", model_families())


def a_tokenizer(count, **changed):
    vocab = {f"t{i}": i for i in range(count)}
    return {
        "version": "1.0",
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "t0"},
        "added_tokens": [],
        **changed,
    }


def watched(engine):
    """What every call of the drafter gives."""
    drafter, seen = engine.executor.drafter, []
    propose = drafter.propose

    def watching(rows, context):
        seen.append(propose(rows, context))
        return seen[-1]

    drafter.propose = watching
    return seen


@pytest.mark.parametrize("vocab_size", [60, 96])
def test_a_padded_vocabulary_drafts_the_ids_that_both_models_have(tmp_path, target, vocab_size):
    draft = padded(tmp_path / "draft", target, vocab_size, a_tokenizer(58))
    for proposal in ("greedy", "sampled"):
        engine = build(target, spec=drafting_with(draft, 3, proposal=proposal))
        seen = watched(engine)
        requests = [asking(i, 9 + i, 15, temperature=1.0 * i) for i in range(3)]
        records = serve(engine, *requests)
        assert outputs(records) == solo(target, requests)
        assert records[0].accepted_tokens >= 0.5 * records[0].drafted_tokens
        drafts = [draft for step in seen for draft in step if draft.tokens]
        assert all(token < min(64, vocab_size) for draft in drafts for token in draft.tokens)
        for draft in drafts if proposal == "sampled" else ():
            assert draft.laws.shape == (len(draft.tokens), 64)
            torch.testing.assert_close(
                draft.laws.sum(-1), torch.ones(len(draft.tokens), dtype=torch.float64)
            )
            assert not draft.laws[:, vocab_size:].any()


def load(draft, target, **options):
    from interlock.core.checkpoint import describe_model, open_model

    formats, families = model_formats(), model_families()
    context = BuildContext(
        model=describe_model(open_model(target, formats), families),
        formats=formats,
        families=families,
        device=torch.device("cpu"),
        dtype=torch.float64,
    )
    return build_drafter(drafting_with(draft, **options), context)


def test_another_vocabulary_is_refused(tmp_path, target):
    with pytest.raises(CheckpointError, match=r"60 is not the target's 64 .*no tokenizer.json"):
        load(padded(tmp_path / "a", target, 60), target)
    draft = padded(tmp_path / "b", target, 64, a_tokenizer(58))
    load(draft, target)
    other = a_tokenizer(58, added_tokens=[{"id": 7, "content": "<other>"}])
    (draft / "tokenizer.json").write_text(json.dumps(other))
    with pytest.raises(
        CheckpointError, match=r"1 token ids mean .*id 7 is '<other>' .* 't7' there"
    ):
        load(draft, target)


def test_what_is_no_causal_decoder_is_refused(tmp_path, target):
    draft = padded(tmp_path / "a", target, 64)
    (draft / "config.json").write_text(json.dumps({"architectures": ["BertModel"]}))
    with pytest.raises(CheckpointError, match="BertModel"):
        load(draft, target)


def test_drafts_end_where_the_draft_models_positions_end(tmp_path, target):
    config = json.loads((target / "config.json").read_text())
    draft = padded(tmp_path / "draft", target, 64)
    (draft / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 24}))
    requests = [asking(0, 9, 30), asking(1, 30, 6)]
    engine = build(target, spec=drafting_with(draft, 4))
    records = serve(engine, *requests)
    assert outputs(records) == solo(target, requests)
    assert 0 < records[0].drafted_tokens == records[0].accepted_tokens <= 14
    assert records[1].drafted_tokens == 0


@pytest.mark.parametrize(("kind", "temperature"), [("gqa", 0.0), ("hybrid", 0.9)])
def test_tokens_are_those_without_drafts_at_every_limit(model_of, kind, temperature):
    """Chunks, hits, preemption, a full length; a draft model of another form and other windows."""
    model, other = model_of(kind), model_of("mla" if kind == "gqa" else "gqa", seed=3)
    shared, sampling = tokens(13), {"temperature": temperature, "ignore_eos": True}
    requests = [
        asking(0, shared, 20, **sampling),
        asking(1, (*shared, 5, 6, 7), 14, **sampling),
        asking(2, 25, 60, **sampling),
        asking(3, (*shared, 5, 9), 12, **sampling),
    ]
    right = solo(model, requests, max_model_len=48)
    for spec in (drafting_with(model, 3), drafting_with(other, 5, proposal="sampled")):
        engine = build(
            model, spec=spec, num_pages=17, budget_tokens=12, max_model_len=48, index="radix"
        )
        records = serve(engine, *requests)
        assert outputs(records) == right
        assert sum(r.preemptions for r in records.values()) > 0
        assert engine.core.ledger.drafted > 0


def test_rows_of_a_hit_give_the_same_drafts_as_rows_computed_anew(model_of):
    """The draft model of another seed, the same request three times, the last two from cache."""
    model, other = model_of(), model_of(seed=3)
    engine = build(model, spec=drafting_with(other, 4), num_pages=64, index="radix")
    client, drafted = Client(engine), []
    for index in range(3):
        client.submit(asking(index, tokens(26), 12))
        client.finish()
        record = client.records[index]
        drafted.append((record.drafted_tokens, record.accepted_tokens, record.target_passes))
    assert client.records[2].cached_tokens > 0
    assert len(set(drafted)) == 1


def requirements(config, model, *capabilities):
    component = next(c for c in components() if (c.seam, c.name) == ("spec", "draft_model"))
    composition = Composition({}, frozenset(capabilities), model)
    reasons = [check(composition) for check in component.requires(config, model)]
    return [reason for reason in reasons if reason is not None]


def test_a_missing_draft_model_is_refused_with_what_to_do(tmp_path):
    from dataclasses import replace

    model = replace(tiny_description("gqa", model_families()), directory=tmp_path)
    (reason,) = requirements(DraftModelConfig(), model, RunsModel())
    assert f"{tmp_path / 'draft_model'} does not exist; set spec.path" in reason
    assert f"train_drafter draft_model --target {tmp_path}" in reason
    assert requirements(DraftModelConfig(), model, SimulatesDrafts()) == []
    (reason,) = requirements(DraftModelConfig(), model)
    assert "the executor does neither" in reason
    write_tiny_checkpoint(tmp_path / "draft_model", "gqa", model_families())
    assert requirements(DraftModelConfig(), model, RunsModel()) == []


def test_wrong_options_are_named():
    with pytest.raises(ConfigError, match="num_drafts=0 is not a whole number >= 1"):
        DraftModelConfig(num_drafts=0)
    with pytest.raises(ConfigError, match="proposal"):
        DraftModelConfig(proposal="random")


def test_layers_that_the_chosen_attention_does_not_compute_get_another(model_of):
    """A draft model with windows, beside a target without any under a backend that has none."""

    def make(context):
        return ReferenceAttention(context.cache_dtype)

    plain = registry_with("attention", make, provides=lambda *_: (ServesAttention("heads"),))
    request = asking(0, 20, 20, ignore_eos=True)
    for kind, same in (("gqa", True), ("hybrid", False)):
        engine = build(model_of(), plain, attention="ours", spec=drafting_with(model_of(kind)))
        assert outputs(serve(engine, request)) == solo(model_of(), [request])
        parts = engine.executor._parts
        assert (parts.draft_attention is parts.attention) == same
