"""MTP layers in an engine: the tokens of plain decoding, whatever else goes on."""

import dataclasses
import shutil

import pytest
import torch

from interlock.core.testing.feature_drafter_contract import FeatureDrafterContract
from interlock.core.testing.tiny import write_tiny_checkpoint
from interlock.plugins.models import model_families
from interlock.plugins.speculative.heads.medusa_options import MtpConfig
from tests.engine.serving import asking, build, outputs, serve, solo, tokens
from tests.engine.test_drafts import drafts_of
from tests.speculative.mtp_oracle import write_mtp


@pytest.fixture(scope="module")
def model_of(tmp_path_factory):
    found = {}

    def model(kind="gqa"):
        if kind not in found:
            folder = tmp_path_factory.mktemp("mtp") / kind
            found[kind] = write_tiny_checkpoint(folder, kind, model_families())
        return found[kind]

    return model


@pytest.mark.parametrize(("kind", "layout"), [("gqa", "qwen"), ("mla_moe", "deepseek")])
def test_a_checkpoint_with_mtp_layers_serves_with_and_without_them(
    model_of, tmp_path, kind, layout
):
    plain = model_of(kind)
    model = shutil.copytree(plain, tmp_path / "whole")
    ours = write_mtp(model, plain, layout=layout, inside=True)
    requests = [asking(i, 7 + i, 10, ignore_eos=True) for i in range(2)]
    right = solo(plain, requests)
    assert outputs(serve(build(model), *requests)) == right
    path = str(model) if layout == "qwen" else None
    engine = build(model, spec=MtpConfig(path=path))
    assert outputs(serve(engine, *requests)) == right
    assert engine.core.ledger.drafted > 0
    layer = engine.executor.drafter.head.layers[0]
    stored = ours[0]["eh_proj.weight"].double()
    assert torch.equal(layer.eh_proj(torch.eye(stored.shape[1], dtype=torch.float64)), stored.T)


@pytest.mark.parametrize(
    "spec", [MtpConfig(num_drafts=3), MtpConfig(num_drafts=4, proposal="sampled")]
)
@pytest.mark.parametrize(
    ("kind", "layers", "page_size", "num_pages", "temperature"),
    [("gqa", 1, 1, 60, 1.0), ("gqa", 2, 4, 15, 0.0), ("mla_moe", 1, 16, 64, 1.0)],
)
def test_the_tokens_are_those_of_plain_decoding(
    model_of, tmp_path, kind, layers, page_size, num_pages, temperature, spec
):
    model = model_of(kind)
    write_mtp(tmp_path, model, layers)
    requests = [
        asking(i, n, 16, temperature=temperature, top_p=0.9, seed=i + 1, ignore_eos=True)
        for i, n in enumerate((9, 21, 1, 14))
    ]
    spec = dataclasses.replace(spec, path=str(tmp_path))
    engine = build(model, spec=spec, page_size=page_size, num_pages=num_pages, budget_tokens=21)
    records = serve(engine, *requests)
    assert outputs(records) == solo(model, requests)
    assert (sum(r.preemptions for r in records.values()) > 0) == (num_pages < 64)
    assert engine.core.ledger.drafted > 20


@pytest.mark.parametrize(("kind", "layers"), [("gqa", 2), ("mla_moe", 1)])
def test_drafts_do_not_depend_on_a_prefix_hit_or_on_chunks(model_of, tmp_path, kind, layers):
    model = model_of(kind)
    write_mtp(tmp_path, model, layers)
    spec = MtpConfig(path=str(tmp_path))
    prompt = tokens(23, salt=4)
    request = asking(1, (*prompt[:16], *tokens(5, salt=9)), 12, ignore_eos=True)
    cold, _ = drafts_of(build(model, spec=spec, index="radix"), request)
    chunked, _ = drafts_of(build(model, spec=spec, budget_tokens=5), request)
    engine = build(model, spec=spec, index="radix")
    serve(engine, asking(0, prompt, 9))
    warm, record = drafts_of(engine, request)
    assert 8 <= record.cached_tokens <= 16
    assert warm == cold == chunked


class TestMtp(FeatureDrafterContract):
    def overrides(self, model):
        write_mtp(model / "mtp", model, layers=2)
        return ["spec=mtp", "spec.num_drafts=4"]

    def drafter(self, executor):
        return executor.drafter
