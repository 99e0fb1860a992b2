"""MTP layers against transformers' layers, in every layout, and inside engines."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from interlock.core.batch import NO_DRAFT
from interlock.core.capabilities import Composition, RunsModel
from interlock.core.checkpoint import describe_model, load_decoder, open_model
from interlock.core.component import BuildContext
from interlock.core.drafter import DraftRows
from interlock.core.errors import CheckpointError, ConfigError
from interlock.core.parallel import Placement
from interlock.core.request import SamplingParams
from interlock.core.testing.tiny import dense_attend, write_tiny_checkpoint
from interlock.plugins.models import model_families, model_formats
from interlock.plugins.speculative import components
from interlock.plugins.speculative.heads.medusa_options import MtpConfig
from interlock.plugins.speculative.heads.mtp import build as build_mtp
from tests.speculative.eagle_oracle import ListCache
from tests.speculative.mtp_oracle import MtpOracle, chain, stored_name, write_mtp

CPU = torch.device("cpu")
FP32 = 2e-5  # transformers keeps rotary tables and norms of latents in fp32
TEXT = [[5, 9, 9, 3, 17, 40, 2, 63, 8, 8, 1, 30], [7, 0, 50], [21, 22, 23, 24, 25, 26, 27]]
STEPS = [
    ([(0, 4), (0, 0), (0, 5)], (5, 3, 2)),
    ([(4, 6), (0, 2), (5, 6)], (4, 5, 0)),
    ([(6, 11), (2, 2), (6, 6)], (9, 0, 0)),
]
"""(spans, limits) of consecutive steps."""


@pytest.fixture(scope="module")
def model_of(tmp_path_factory):
    found = {}

    def model(kind="gqa"):
        if kind not in found:
            folder = tmp_path_factory.mktemp("mtp") / kind
            found[kind] = write_tiny_checkpoint(folder, kind, model_families())
        return found[kind]

    return model


def context_of(model):
    families = model_families()
    files = open_model(model, model_formats())
    return BuildContext(
        formats=model_formats(), families=families, model=describe_model(files, families),
        device=CPU, dtype=torch.float64,
    )  # fmt: skip


def load(model, path, **options):
    return build_mtp(MtpConfig(path=path and str(path), **options), context_of(model))


def decoder_of(model):
    context = context_of(model)
    return load_decoder(context.model, context.families, Placement(torch.float64, CPU))


class Target:
    """Random features, hidden rows and their texts."""

    def __init__(self, decoder):
        size = decoder.description.hidden_size
        self.embedding = decoder.embed(torch.arange(decoder.description.vocab_size))
        self.head = decoder.logits(torch.eye(size, dtype=torch.float64)).T
        generator = torch.Generator().manual_seed(3)
        self.features, self.hidden = (
            [
                torch.randn(len(text), size, generator=generator, dtype=torch.float64)
                for text in TEXT
            ]
            for _ in range(2)
        )

    def rows(self, spans, limits, tapped=True):
        lengths = [end - first for first, end in spans]
        offsets = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
        parts = [
            torch.cat([kind[r][a:b] for r, (a, b) in enumerate(spans)])
            for kind in (self.features, self.hidden)
        ]
        return DraftRows(
            features_NE=parts[0],
            tokens_N=torch.tensor([t for r, (a, b) in enumerate(spans) for t in TEXT[r][a:b]]),
            next_tokens_N=torch.tensor(
                [t for r, (a, b) in enumerate(spans) for t in TEXT[r][a + 1 : b + 1]]
            ),
            row_offsets=tuple(offsets),
            starts=tuple(first for first, _ in spans),
            limits=tuple(limits),
            params=(SamplingParams(),) * len(spans),
            seeds=torch.zeros(len(spans)).numpy().astype("uint64"),
            taps=(parts[1],) if tapped else (),
        )


@pytest.mark.parametrize(
    ("layers", "layout", "options"),
    [
        (1, "deepseek", {}),
        (1, "export", {"hidden": "after_norm"}),
        (1, "qwen", {"zero_first": True}),
        (2, "deepseek", {}),
        (3, "qwen", {}),
    ],
)
def test_drafts_and_rows_equal_those_of_dense_layers_after_every_step(
    model_of, tmp_path, layers, layout, options
):
    model = model_of()
    ours = write_mtp(tmp_path, model, layers, layout)
    config = json.loads((model / "config.json").read_text())
    oracles = [MtpOracle(config, one) for one in ours]
    decoder = decoder_of(model)
    target = Target(decoder)
    drafter = load(model, tmp_path, num_drafts=5, **options)
    before = options.get("hidden") != "after_norm"
    assert drafter.taps == ((1,) if before else ())
    assert len(drafter.attention) == layers
    context = ListCache(decoder, len(TEXT), expected_layer=2, num_layers=layers)
    for spans, limits in STEPS:
        drafts = drafter.propose(target.rows(spans, limits, before), context)
        for r, ((first, end), limit) in enumerate(zip(spans, limits, strict=True)):
            if first == end:
                assert drafts[r] == NO_DRAFT
                continue
            hidden = (target.hidden if before else target.features)[r][:end]
            following = TEXT[r][1 : end + 1]
            wanted = chain(
                oracles, target.embedding, target.head, hidden, following, min(limit, 5),
                options.get("zero_first", False),
            )  # fmt: skip
            assert drafts[r].tokens == tuple(wanted)
            assert len(drafts[r].confidence) == len(wanted)
    check_rows(context, drafter, model, target, before)


def check_rows(context, drafter, model, target, before):
    """The committed rows of a drafter that took them in steps are those of one that starts anew."""
    fresh = ListCache(context.decoder, len(TEXT), 2, len(drafter.attention))
    ends = [(0, 11), (0, 2), (0, 6)]
    drafter.propose(target.rows(ends, (0, 0, 0), before), fresh)
    for layer, of_requests in fresh.layers.items():
        for request, rows in enumerate(of_requests):
            assert len(rows) == ends[request][1]
            for (k, v), (k2, v2) in zip(
                rows, context.layers[layer][request][: len(rows)], strict=True
            ):
                torch.testing.assert_close(k, k2, rtol=0, atol=1e-12)
                torch.testing.assert_close(v, v2, rtol=0, atol=1e-12)


KINDS = ["gqa", "mla", "mla_moe"]


@pytest.mark.parametrize("kind", KINDS)
def test_layers_of_every_kind_of_target_give_the_rows_of_transformers(model_of, tmp_path, kind):
    model = model_of(kind)
    (ours,) = write_mtp(tmp_path, model)
    config = json.loads((model / "config.json").read_text())
    drafter, decoder = load(model, tmp_path), decoder_of(model)
    layer, target = drafter.head.layers[0], Target(decoder)
    whole = dense_attend(layer.decoder.description)
    following = torch.tensor(TEXT[0][1:])
    hidden = target.hidden[0][:-1]
    found = layer.forward(
        hidden,
        following,
        torch.arange(len(following)),
        lambda number, spec, inputs: whole(number - 2, spec, inputs),
        target.embedding[following],
    )
    oracle = MtpOracle(config, ours)
    wanted = oracle.outputs(target.embedding[following], hidden, list(range(len(following))))
    torch.testing.assert_close(found, wanted.detach(), rtol=0, atol=FP32)


def test_tables_that_repeat_the_targets_are_not_kept_and_others_are(model_of, tmp_path):
    model = model_of()
    write_mtp(tmp_path, model)
    file = tmp_path / "model.safetensors"
    target, own = load_file(model / "model.safetensors"), load_file(file)
    own["model.layers.2.embed_tokens.weight"] = target["model.embed_tokens.weight"]
    own["model.layers.2.shared_head.head.weight"] = -target["lm_head.weight"]
    save_file(own, file)
    drafter, decoder = load(model, tmp_path), decoder_of(model)
    layer = drafter.head.layers[0]
    assert layer.embedding_VE is None
    x = torch.randn(3, 32, dtype=torch.float64)
    context = ListCache(decoder, 1, 2)
    mine = drafter.head.logits(x, context)
    layer.head = None
    torch.testing.assert_close(mine, -drafter.head.logits(x, context), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t, n: t.pop(n("hnorm.weight")), ["missing (1): hnorm.weight [32]"]),
        (
            lambda t, n: t.update({n("self_attn.q_proj.weight"): torch.zeros(8, 32)}),
            ["misshapen (1)", "self_attn.q_proj.weight is [8, 32]"],
        ),
        (
            lambda t, n: t.update({n("mlp.extra.weight"): torch.zeros(1)}),
            ["unexpected (1)", "mlp.extra.weight"],
        ),
        (
            lambda t, n: t.update({"model.norm.weight": torch.zeros(1)}),
            ["unexpected (1)", "model.norm.weight"],
        ),
        (lambda t, n: t.pop(n("eh_proj.weight")), ["no MTP layer", "model.layers.2.eh_proj"]),
    ],
)
def test_wrong_tensors_are_named(model_of, tmp_path, change, words):
    write_mtp(tmp_path, model_of())
    tensors = load_file(tmp_path / "model.safetensors")
    change(tensors, lambda name: stored_name("deepseek", 2, 0, name))
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError) as error:
        load(model_of(), tmp_path)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_layers_of_another_target_are_refused(model_of, tmp_path):
    write_mtp(tmp_path, model_of())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"vocab_size": 99}))
    with pytest.raises(CheckpointError, match="vocab_size=99 is not the target's 64"):
        load(model_of(), tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config | {"hidden_act": "gelu"}))
    with pytest.raises(CheckpointError, match="hidden_act='gelu'"):
        load(model_of(), tmp_path)


def requirements(model, **options):
    component = next(c for c in components() if (c.seam, c.name) == ("spec", "mtp"))
    described = context_of(model).model
    composition = Composition({}, frozenset({RunsModel()}), described)
    checks = component.requires(MtpConfig(**options), described)
    return [reason for check in checks if (reason := check(composition))]


def test_layers_are_looked_for_beside_the_model_and_in_its_checkpoint(model_of, tmp_path):
    model = shutil.copytree(model_of(), tmp_path / "model")
    (reason,) = requirements(model)
    assert f"train_drafter mtp --target {model} --out {model / 'mtp'}" in reason
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": 1}))
    assert requirements(model) == []
    with pytest.raises(CheckpointError, match="no MTP layer"):
        load(model, None)
    write_mtp(model / "mtp", model_of())
    assert requirements(model) == []
    assert len(load(model, None).attention) == 1
    (reason,) = requirements(model, path=str(tmp_path / "nowhere"))
    assert "nowhere does not exist" in reason


def test_all_problems_of_the_options_are_reported_at_once():
    with pytest.raises(ConfigError) as error:
        MtpConfig(num_drafts=0, proposal="best", hidden="middle")
    for words in ("num_drafts=0", "no proposal named 'best'", "no hidden named 'middle'"):
        assert words in str(error.value)
