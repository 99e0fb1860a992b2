"""Block heads in every published layout; what does not fit is one error that names it all."""

from dataclasses import replace

import pytest
import torch

from interlock.core.capabilities import (
    Composition,
    DraftsChains,
    RatesDrafts,
    RunsModel,
    SamplesDrafts,
    ServesTrees,
    SimulatesDrafts,
)
from interlock.core.component import BuildContext
from interlock.core.errors import CheckpointError, ConfigError
from interlock.core.testing.tiny import tiny_description
from interlock.plugins.models import model_families, model_formats
from interlock.plugins.speculative import components
from interlock.plugins.speculative.heads import dflash, dspark
from interlock.plugins.speculative.heads.block_options import DFlashConfig, DSparkConfig
from tests.speculative.block_oracle import (
    MASK,
    SIZES,
    SLOTS,
    block_config,
    block_tensors,
    write_block_head,
)

LAYERS = 7
FLASH = {"block_size": SLOTS, "mask_token_id": MASK, "target_layer_ids": [1, 3]}
SPARK = {
    "markov_rank": 6, "markov_head_type": "gated", "enable_confidence_head": True,
    "confidence_head_with_markov": True,
}  # fmt: skip
LAYOUTS = {
    "z-lab": (False, {**SIZES, "block_size": SLOTS, "num_target_layers": LAYERS, "dflash_config":
                      {"mask_token_id": MASK, "target_layer_ids": [1, 3]}}),
    "z-lab, all nested": (False, {**SIZES, "dflash_config": FLASH}),
    "DeepSpec": (True, {**SIZES, **FLASH, **SPARK, "num_anchors": 512}),
    "SpecForge": (True, {**SIZES, "block_size": SLOTS, "num_target_layers": LAYERS, "dflash_config":
                         {**FLASH, **SPARK, "projector_type": "dspark"}}),
    "TensorRT-LLM": (True, {**SIZES, "block_size": SLOTS, "dflash_config": {
        **FLASH, "projector_type": "dspark", "markov_rank": 6, "markov_head_type": "gated",
        "use_confidence_head": True}}),
    "speculators": (True, {
        "speculators_model_type": "dspark", "transformer_layer_config": SIZES, "block_size": SLOTS,
        "mask_token_id": MASK, "aux_hidden_state_layer_ids": [2, 4], "draft_vocab_size": 64,
        "sample_from_anchor": True, **SPARK}),
}  # fmt: skip
"""By writer: whether it is DSpark, and config.json. All are the same heads: taps 1 and 3."""


def load(directory, spark=False, **options):
    context = BuildContext(
        formats=model_formats(),
        model=tiny_description("gqa", model_families(), num_hidden_layers=LAYERS),
        device=torch.device("cpu"),
        dtype=torch.float64,
    )
    kind, module = (DSparkConfig, dspark) if spark else (DFlashConfig, dflash)
    return module.build(kind(num_drafts=4, path=str(directory), **options), context)


def tensors_of(spark, **more):
    extra = {"markov": "gated", "confidence": "both"} if spark else {}
    return block_tensors(taps=2, **extra, **more)


@pytest.mark.parametrize("writer", LAYOUTS)
@pytest.mark.parametrize("own", [False, True])
def test_every_published_layout_is_read_as_the_same_head(tmp_path, writer, own):
    spark, config = LAYOUTS[writer]
    tensors = tensors_of(spark, own=own)
    drafter = load(write_block_head(tmp_path, tensors, config), spark)
    network = drafter.network
    assert (drafter.taps, network.shape.slots, network.shape.mask_token) == ((1, 3), SLOTS, MASK)
    assert network.shape.from_anchor == spark
    assert [layer.number for layer in network.layers] == [LAYERS, LAYERS + 1]
    assert (network.embed_tokens is not None, network.lm_head is not None) == (own, own)
    stored = torch.from_numpy(tensors["fc.weight"])
    assert torch.equal(network.fc(torch.eye(stored.shape[1], dtype=stored.dtype)), stored.T)
    if spark:
        assert (drafter.heads.shape.kind, drafter.heads.shape.rank) == ("gated", 6)
        assert drafter.heads.shape.reads_token


def test_taps_that_are_not_named_are_spread_over_the_target(tmp_path):
    config = block_config()
    del config["target_layer_ids"]
    assert load(write_block_head(tmp_path, tensors_of(False), config)).taps == (1, 4)


@pytest.mark.parametrize("spark", [False, True])
def test_missing_misshapen_and_unexpected_tensors_are_one_error(tmp_path, spark):
    tensors = tensors_of(spark)
    del tensors["layers.1.self_attn.k_norm.weight"]  # optional in a layer, not in these
    del tensors["hidden_norm.weight"]
    tensors["norm.weight"] = tensors["norm.weight"][:5]
    tensors["layers.0.attention_conv.base_kernel"] = tensors["fc.weight"] + 1
    config = block_config((1, 3)) | (SPARK if spark else {})
    if spark:
        del tensors["markov_head.gate_proj.bias"]
    with pytest.raises(CheckpointError) as error:
        load(write_block_head(tmp_path, tensors, config), spark)
    words = ["hidden_norm.weight [32]", "norm.weight is [5]", "attention_conv.base_kernel"]
    words += ["layers.1.self_attn.k_norm.weight"]
    words += ["markov_head.gate_proj.bias [6]"] if spark else []
    for word in words:
        assert word in str(error.value)


WRONG = [
    ({"vocab_size": 65}, "vocab_size=65 is not the target's 64"),
    ({"hidden_size": 64}, "hidden_size=64 is not the target's 32"),
    ({"mask_token_id": 64}, "mask_token_id=64 is outside the vocabulary 0 .. 63"),
    ({"mask_token_id": None}, "mask_token_id=None"),
    ({"block_size": 0}, "block_size=0 is not an integer >= "),
    ({"target_layer_ids": [1, 6]}, "target_layer_ids=[1, 6]"),
    ({"target_layer_ids": [-1]}, "target_layer_ids=[-1]"),
    ({"target_layer_ids": "all"}, "target_layer_ids="),
    ({"num_target_layers": 36}, "num_target_layers=36 is not the target's 7"),
    ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_attention: only full_atte"),
    ({"attention_bias": True}, "attention_bias=True is not supported"),
    ({"is_causal": True}, "is_causal=True is not supported"),
    ({"dflash_config": {"projector_type": "domino"}}, "projector_type='domino' is not supported"),
    ({"dflash_config": [1]}, "dflash_config=[1] is not a group"),
    ({"markov_head_type": "lstm"}, "markov_head_type='lstm' is not one of vanilla, gated, rnn"),
    ({"markov_rank": 0}, "confidence_head_with_markov=True needs a markov_rank above 0"),
    ({"sample_from_anchor": "yes"}, "sample_from_anchor='yes' is not true or false"),
]


@pytest.mark.parametrize(("fields", "words"), WRONG)
def test_a_config_that_does_not_fit_is_refused_by_name(tmp_path, fields, words):
    config = {**block_config((1, 3)), **SPARK, **fields}
    with pytest.raises(CheckpointError) as error:
        load(write_block_head(tmp_path, tensors_of(True), config), spark=True)
    assert words in str(error.value)
    assert str(tmp_path) in str(error.value)


def test_a_plain_block_head_is_no_dspark_head_unless_it_says_so(tmp_path):
    """Its slots would be read one place off, and hardly a candidate accepted."""
    plain = write_block_head(tmp_path / "plain", tensors_of(False), block_config((1, 3)))
    with pytest.raises(CheckpointError, match=r"neither a Markov nor .* set spec=dflash"):
        load(plain, spark=True)
    for more in ({"sample_from_anchor": True}, {"architectures": ["Qwen3DSparkModel"]}):
        stated = write_block_head(
            tmp_path / "stated", tensors_of(False), block_config((1, 3), **more)
        )
        assert load(stated, spark=True).network.shape.from_anchor


def test_all_wrong_fields_are_told_at_once(tmp_path):
    config = block_config((1, 3), vocab_size=65, mask_token_id=-1, hidden_act="gelu")
    with pytest.raises(CheckpointError) as error:
        load(write_block_head(tmp_path, tensors_of(False), config))
    assert all(word in str(error.value) for word in ("vocab_size=65", "mask_token_id", "gelu"))


def component(name):
    return next(c for c in components() if (c.seam, c.name) == ("spec", name))


def refusals(config, model, *capabilities, numerics="fast"):
    composition = Composition(
        {"attention": ("gqa", None)},
        frozenset(capabilities),
        model,
        settings={"numerics": numerics},
    )
    found = [check(composition) for check in component(config.name).requires(config, model)]
    return [reason for reason in found if reason is not None]


@pytest.mark.parametrize("kind", [DFlashConfig, DSparkConfig])
def test_a_missing_head_is_refused_with_the_command_that_trains_one(tmp_path, kind):
    model = replace(tiny_description("gqa", model_families()), directory=tmp_path)
    (reason,) = refusals(kind(), model, RunsModel())
    assert f"train_drafter {kind().name} --target {tmp_path}" in reason
    assert refusals(kind(), model, SimulatesDrafts()) == []
    write_block_head(tmp_path / kind().name, block_tensors(), block_config())
    assert refusals(kind(), model, RunsModel()) == []
    (reason,) = refusals(kind(proposal="sampled"), model, RunsModel(), numerics="batch_invariant")
    assert "set spec.proposal=greedy" in reason
    assert refusals(kind(), model, RunsModel(), numerics="batch_invariant") == []


def test_trees_need_a_backend_that_computes_them(tmp_path):
    write_block_head(tmp_path, block_tensors(), block_config())
    config = DFlashConfig(path=str(tmp_path), tree="ddtree")
    model = tiny_description("gqa", model_families())
    (reason,) = refusals(config, model, RunsModel())
    assert "attention=gqa does not compute" in reason
    assert refusals(config, model, RunsModel(), ServesTrees()) == []


def test_what_is_drafted_is_declared():
    def provided(config):
        return {type(c) for c in component(config.name).provides(config, None)}

    for kind in (DFlashConfig, DSparkConfig):
        assert provided(kind()) == {DraftsChains, RatesDrafts}
        assert provided(kind(proposal="sampled")) == {DraftsChains, RatesDrafts, SamplesDrafts}
    assert provided(DFlashConfig(tree="ddtree")) == {RatesDrafts}


def test_wrong_options_are_told_at_once():
    with pytest.raises(ConfigError) as error:
        DFlashConfig(num_drafts=0, proposal="any", tree="oak")
    assert all(word in str(error.value) for word in ("num_drafts=0", "any", "oak"))
    with pytest.raises(ConfigError, match="set proposal=greedy, or tree=null"):
        DFlashConfig(proposal="sampled", tree="ddtree")
    with pytest.raises(ConfigError, match="num_drafts=0"):
        DSparkConfig(num_drafts=0)
