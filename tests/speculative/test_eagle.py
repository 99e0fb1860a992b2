import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from interlock.core.batch import NO_DRAFT
from interlock.core.capabilities import Composition, RunsModel, SimulatesDrafts
from interlock.core.component import BuildContext
from interlock.core.drafter import DraftRows
from interlock.core.errors import CheckpointError, ConfigError
from interlock.core.request import SamplingParams
from interlock.core.testing.tiny import tiny_description, tiny_model, write_tiny_checkpoint
from interlock.plugins.models import model_families, model_formats
from interlock.plugins.speculative import components
from interlock.plugins.speculative.heads.directory import head_directory
from interlock.plugins.speculative.heads.eagle import build
from interlock.plugins.speculative.heads.options import EagleConfig
from tests.speculative.eagle_oracle import SIZES, ListCache, chain, head_tensors, last_estimate

TOLERANCE = 1e-10  # fp64 against fp64 in another order of sums; values are of order 1 to 30
TEXT = [[5, 9, 9, 3, 17, 40, 2, 63, 8, 8, 1, 30], [7, 0, 50], [21, 22, 23, 24, 25, 26, 27]]


@pytest.fixture(scope="module")
def decoder():
    return tiny_model("gqa", model_families(), dtype=torch.float64)


def write_head(directory, tensors, **changes):
    directory.mkdir(parents=True, exist_ok=True)
    save_file({n: torch.from_numpy(t) for n, t in tensors.items()}, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps({**SIZES, **changes}))
    return directory


def load(directory, num_drafts=5, dtype=torch.float64, **model):
    context = BuildContext(
        formats=model_formats(),
        model=tiny_description("gqa", model_families(), **model),
        device=torch.device("cpu"),
        dtype=dtype,
    )
    return build(EagleConfig(num_drafts=num_drafts, path=str(directory)), context)


class Target:
    """The tiny model's features of TEXT, and its tables as arrays."""

    def __init__(self, decoder):
        everything = torch.arange(SIZES["vocab_size"])
        eye = torch.eye(SIZES["hidden_size"], dtype=torch.float64)
        self.embedding = decoder.embed(everything).numpy()
        self.head = decoder.logits(eye).T.numpy()
        draw = np.random.default_rng(3)
        self.features = [draw.normal(size=(len(text), SIZES["hidden_size"])) for text in TEXT]

    def rows(self, spans, limits):
        """Committed rows spans[r] = (first, end) of every text."""
        offsets = [0]
        for first, end in spans:
            offsets.append(offsets[-1] + end - first)
        parts = [self.features[r][first:end] for r, (first, end) in enumerate(spans)]
        following = [TEXT[r][first + 1 : end + 1] for r, (first, end) in enumerate(spans)]
        return DraftRows(
            features_NE=torch.from_numpy(np.concatenate(parts)),
            tokens_N=torch.tensor([t for r, (a, b) in enumerate(spans) for t in TEXT[r][a:b]]),
            next_tokens_N=torch.tensor([t for part in following for t in part]),
            row_offsets=tuple(offsets),
            starts=tuple(first for first, _ in spans),
            limits=tuple(limits),
            params=(SamplingParams(),) * len(spans),
            seeds=np.zeros(len(spans), dtype=np.uint64),
        )


STEPS = [
    ([(0, 4), (0, 0), (0, 5)], (5, 3, 2)),  # a prefill, a request not in this step, a chunk
    ([(4, 6), (0, 2), (5, 6)], (4, 5, 0)),  # two committed, a late prefill, a limit of 0
    ([(6, 6), (2, 2), (6, 6)], (5, 5, 5)),  # nobody brings rows
    ([(6, 11), (2, 2), (6, 6)], (9, 0, 0)),  # more is asked for than num_drafts
]
"""(spans, limits) of consecutive steps."""


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("embedding", [False, True])
def test_drafts_and_rows_equal_those_of_a_dense_head_after_every_step(
    tmp_path, decoder, bias, embedding
):
    tensors = head_tensors(bias=bias, embedding=embedding)
    drafter = load(write_head(tmp_path, tensors))
    target = Target(decoder)
    table = tensors.get("embed_tokens.weight", target.embedding)
    context = ListCache(decoder, len(TEXT), expected_layer=2)
    for spans, limits in STEPS:
        drafts = drafter.propose(target.rows(spans, limits), context)
        for r, ((first, end), limit) in enumerate(zip(spans, limits, strict=True)):
            if first == end:
                assert drafts[r] == NO_DRAFT
                continue
            features, following = target.features[r][:end], TEXT[r][1 : end + 1]
            wanted = chain(tensors, table, target.head, features, following, min(limit, 5))
            assert drafts[r].tokens == tuple(wanted)
            assert drafts[r].parents is None
            _, keys, values = last_estimate(tensors, table[following], features)
            for entry, (k, v) in enumerate(context.rows[r][:end]):
                assert np.abs(k.numpy() - keys[entry]).max() < TOLERANCE
                assert np.abs(v.numpy() - values[entry]).max() < TOLERANCE


@pytest.mark.parametrize("kind", ["caps", "sinks"])
def test_a_head_reads_the_targets_embedding_as_it_is_stored(tmp_path, kind):
    families = model_families()
    stored = load_file(write_tiny_checkpoint(tmp_path / kind, kind, families) / "model.safetensors")
    decoder = tiny_model(kind, families, dtype=torch.float64)
    rows = Target(decoder).rows([(0, 4), (0, 2), (0, 6)], (3, 4, 5))
    tensors = head_tensors()
    own = tensors | {"embed_tokens.weight": stored["model.embed_tokens.weight"].double().numpy()}
    drafts = {}
    for name, head in (("shared", tensors), ("own", own)):
        context = ListCache(decoder, len(TEXT), expected_layer=2)
        drafts[name] = load(write_head(tmp_path / name, head)).propose(rows, context)
    assert [len(draft.tokens) for draft in drafts["own"]] == [3, 4, 5]
    assert drafts["shared"] == drafts["own"]


def test_each_pass_serves_all_requests_that_want_another_draft(tmp_path, decoder):
    drafter = load(write_head(tmp_path, head_tensors()))
    context = ListCache(decoder, len(TEXT), expected_layer=2)
    drafter.propose(Target(decoder).rows([(0, 4), (0, 2), (0, 6)], (1, 3, 2)), context)
    assert context.passes == [
        ((0, 1, 2), (4, 2, 6), (0, 0, 0)),
        ((1, 2), (1, 1), (2, 6)),
        ((1,), (1,), (3,)),
    ]


def test_a_step_without_rows_makes_no_pass(tmp_path, decoder):
    drafter = load(write_head(tmp_path, head_tensors()))
    context = ListCache(decoder, len(TEXT), expected_layer=2)
    drafts = drafter.propose(Target(decoder).rows([(0, 0)] * 3, (5, 5, 5)), context)
    assert drafts == [NO_DRAFT] * 3
    assert context.passes == []


def test_its_rows_are_keys_and_values_of_one_layer(tmp_path):
    drafter = load(write_head(tmp_path, head_tensors()), num_drafts=3)
    (spec,) = drafter.attention
    assert (spec.form, spec.num_kv_heads, spec.head_dim, spec.v_head_dim) == ("heads", 2, 8, 8)
    assert spec.window is None
    assert (drafter.num_drafts, drafter.lookback_tokens, drafter.max_positions) == (3, 1, 512)


def test_lower_precision_follows_the_oracle_within_its_rounding(tmp_path, decoder):
    tensors = head_tensors()
    drafter = load(write_head(tmp_path, tensors), dtype=torch.bfloat16)
    target = Target(decoder)
    rows = target.rows([(0, 11), (0, 0), (0, 0)], (0, 0, 0))
    context = ListCache(decoder, len(TEXT), expected_layer=2)
    attend, positions = context.attend([0], [11], [0])
    found = drafter.head.forward(rows.features_NE, rows.next_tokens_N, positions, attend, context)
    wanted, _, _ = last_estimate(tensors, target.embedding[TEXT[0][1:]], target.features[0][:11])
    assert found.dtype == torch.bfloat16
    error = np.abs(found[-1].double().numpy() - wanted).max() / np.abs(wanted).max()
    assert error < 0.03  # bf16 rounds at 2**-9; some twenty roundings lie on the path


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.pop("fc.weight"), ["missing (1): fc.weight [32, 64]"]),
        (
            lambda t: t.update({"layers.0.self_attn.q_proj.weight": np.zeros((8, 32))}),
            ["misshapen (1)", "q_proj.weight is [8, 32]", "[32, 32]"],
        ),
        (
            lambda t: t.update({"layers.0.input_layernorm.weight": np.zeros(32)}),
            ["unexpected (1)", "layers.0.input_layernorm.weight"],
        ),
    ],
)
def test_wrong_tensors_are_named(tmp_path, change, words):
    tensors = head_tensors()
    change(tensors)
    with pytest.raises(CheckpointError) as error:
        load(write_head(tmp_path, tensors))
    assert all(word in str(error.value) for word in words)


def test_all_problems_of_the_config_are_reported_at_once(tmp_path):
    head = write_head(
        tmp_path,
        head_tensors(),
        hidden_size=64,
        num_hidden_layers=2,
        hidden_act="gelu",
        rope_scaling={"type": "yarn", "factor": 2.0},
        rms_norm_eps="small",
        intermediate_size=None,
    )
    with pytest.raises(CheckpointError) as error:
        load(head)
    for words in (
        "hidden_size=64 is not the target's 32",
        "num_hidden_layers=2 is not supported, only 1",
        "hidden_act='gelu'",
        "rope_scaling=",
        "rms_norm_eps='small' is not a finite number > 0",
        "intermediate_size=None is not an integer >= 1",
        "config.json",
    ):
        assert words in str(error.value)


def test_a_head_of_another_vocabulary_is_refused(tmp_path):
    head = write_head(tmp_path, head_tensors())
    with pytest.raises(CheckpointError, match="vocab_size=64 is not the target's 80"):
        load(head, vocab_size=80)


def requirements(config, model, *capabilities):
    component = next(c for c in components() if (c.seam, c.name) == ("spec", "eagle"))
    composition = Composition({}, frozenset(capabilities), model)
    reasons = [check(composition) for check in component.requires(config, model)]
    return [reason for reason in reasons if reason is not None]


def test_a_missing_head_is_refused_with_the_command_that_trains_one(tmp_path):
    model = replace(tiny_description("gqa", model_families()), directory=tmp_path)
    (reason,) = requirements(EagleConfig(), model, RunsModel())
    assert str(tmp_path / "eagle") in reason
    assert f"train_drafter eagle --target {tmp_path} --out {tmp_path / 'eagle'}" in reason
    write_head(tmp_path / "eagle", head_tensors())
    assert requirements(EagleConfig(), model, RunsModel()) == []
    assert head_directory(EagleConfig(), model, "eagle") == tmp_path / "eagle"


def test_a_head_with_pickled_weights_alone_is_refused_with_what_to_do(tmp_path):
    (write_head(tmp_path / "eagle", head_tensors()) / "model.safetensors").rename(
        tmp_path / "eagle" / "pytorch_model.bin"
    )
    model = replace(tiny_description("gqa", model_families()), directory=tmp_path)
    (reason,) = requirements(EagleConfig(), model, RunsModel())
    assert "has pytorch_model.bin; store its tensors with safetensors" in reason


def test_a_simulated_run_needs_no_head_and_an_idle_executor_is_refused(tmp_path):
    model = replace(tiny_description("gqa", model_families()), directory=tmp_path)
    assert requirements(EagleConfig(), model, SimulatesDrafts()) == []
    (reason,) = requirements(EagleConfig(), model)
    assert "spec=eagle" in reason
    assert "executor" in reason


def test_a_model_without_directory_needs_a_path():
    model = tiny_description("gqa", model_families())
    (reason,) = requirements(EagleConfig(), model, RunsModel())
    assert "spec.path" in reason


def test_num_drafts_below_one_is_refused():
    with pytest.raises(ConfigError, match="num_drafts=0 is not a whole number >= 1"):
        EagleConfig(num_drafts=0)
