"""Model directories: what is found, described, merged and refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from interlock.conf.find_model import find_model, shipped_models
from interlock.core.checkpoint import describe_model
from interlock.core.errors import CheckpointError
from interlock.core.testing.tiny import tiny_config, write_tiny_checkpoint
from interlock.plugins.models import model_formats
from interlock.plugins.models.hugging_face import HuggingFaceDirectory
from tests.models.loading import FAMILIES, LOGIT_TOLERANCE, load, whole_logits
from tests.models.oracle import write_oracle


def write_config(directory: Path, **fields: Any) -> Path:
    """A directory with only a config.json: tiny "gqa" unless `fields` say otherwise."""
    directory.mkdir(exist_ok=True)
    config = tiny_config("gqa") | fields
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def edit_config(directory: Path, **fields: Any) -> None:
    config = HuggingFaceDirectory(directory).json("config.json") | fields
    kept = {key: value for key, value in config.items() if value != "absent"}
    (directory / "config.json").write_text(json.dumps(kept))


def refusal(directory: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        describe_model(HuggingFaceDirectory(directory), FAMILIES)
    return str(caught.value)


def test_a_shipped_model_is_found_by_name_and_a_directory_by_path(tmp_path: Path) -> None:
    for name, directory in shipped_models().items():
        assert find_model(name, model_formats()).path == directory
    assert find_model(str(write_config(tmp_path)), model_formats()).path == tmp_path


def test_a_mistyped_model_gets_the_closest_name() -> None:
    with pytest.raises(CheckpointError, match="did you mean 'tiny-gqa'") as caught:
        find_model("tiny-gq", model_formats())
    assert "no directory or file of this name" in str(caught.value)


def test_a_directory_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        find_model(str(tmp_path), model_formats())


@pytest.mark.parametrize("text", ["{", "[1]", "\x00"])
@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_malformed_json_names_the_file(tmp_path: Path, name: str, text: str) -> None:
    write_config(tmp_path)
    (tmp_path / name).write_text(text)
    assert str(tmp_path / name) in refusal(tmp_path)


@pytest.mark.parametrize(
    "architecture",
    ["BertModel", "T5ForConditionalGeneration", "LlamaForSequenceClassification", "LlamaForCausal"],
)
def test_what_is_not_a_causal_decoder_is_refused_with_the_known_ones(
    tmp_path: Path, architecture: str
) -> None:
    message = refusal(write_config(tmp_path, architectures=[architecture]))
    assert architecture in message
    for served in ("DeepseekV3ForCausalLM", "LlamaForCausalLM", "Qwen3MoeForCausalLM"):
        assert served in message
    assert "cache would be wrong" in message


def test_a_config_without_architecture_is_refused(tmp_path: Path) -> None:
    assert "architectures=None" in refusal(write_config(tmp_path, architectures=None))


def test_quantised_checkpoints_are_refused_with_the_reason(tmp_path: Path) -> None:
    directory = write_config(tmp_path, quantization_config={"quant_method": "fp8"})
    assert "quantization_config (fp8)" in refusal(directory)


def test_all_wrong_fields_are_reported_at_once(tmp_path: Path) -> None:
    message = refusal(
        write_config(
            tmp_path, num_key_value_heads=3, hidden_act="gelu", vocab_size=None, rms_norm_eps="x"
        )
    )
    for part in ("num_key_value_heads=3", "hidden_act='gelu'", "vocab_size=None", "rms_norm_eps"):
        assert part in message


def test_head_dim_null_means_hidden_by_heads_and_a_given_one_wins(tmp_path: Path) -> None:
    (inferred, _) = describe_model(
        HuggingFaceDirectory(write_config(tmp_path, head_dim=None)), FAMILIES
    ).attention
    (given, _) = describe_model(
        HuggingFaceDirectory(write_config(tmp_path, head_dim=32)), FAMILIES
    ).attention
    assert (inferred.head_dim, given.head_dim) == (8, 32)
    assert "head_dim is not given" in refusal(write_config(tmp_path, hidden_size=34))


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [(1, None, (1,)), (1, 2, (1, 2)), ([1, 3], [3, 4], (1, 3, 4)), (None, [5], (5,))],
)
def test_end_tokens_of_both_files_are_merged(
    tmp_path: Path, config: Any, generation: Any, expected: tuple[int, ...]
) -> None:
    write_config(tmp_path, eos_token_id=config)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": generation}))
    assert describe_model(HuggingFaceDirectory(tmp_path), FAMILIES).eos_token_ids == expected


def test_an_end_token_outside_the_vocabulary_is_refused(tmp_path: Path) -> None:
    assert "eos_token_id=64" in refusal(write_config(tmp_path, eos_token_id=64))


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_the_dtype_is_read_in_both_spellings(tmp_path: Path, key: str) -> None:
    write_config(tmp_path)
    edit_config(tmp_path, **{"dtype": None, "torch_dtype": None, key: "bfloat16"})
    assert describe_model(HuggingFaceDirectory(tmp_path), FAMILIES).dtype == "bfloat16"
    edit_config(tmp_path, **{key: "float8_e4m3fn"})
    assert "float8_e4m3fn" in refusal(tmp_path)


@pytest.mark.parametrize("stored", ["absent", "equal", "different"])
def test_a_tied_head_is_the_embedding(tmp_path: Path, stored: str) -> None:
    oracle = write_oracle(tmp_path, "llama_mqa_tied", new_tokens=1)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    assert "lm_head.weight" not in tensors
    if stored != "absent":
        embedding = tensors["model.embed_tokens.weight"]
        tensors["lm_head.weight"] = embedding.clone() * (1 if stored == "equal" else 2)
        save_file(tensors, file)
    if stored == "different":
        with pytest.raises(CheckpointError, match="tie_word_embeddings is true, but lm_head"):
            load(tmp_path)
        return
    logits = whole_logits(load(tmp_path), oracle.prompt)
    assert (logits - oracle.logits(oracle.prompt)).abs().max() < LOGIT_TOLERANCE


def test_a_head_that_is_not_tied_must_be_stored(tmp_path: Path) -> None:
    write_oracle(tmp_path, "llama_mqa_tied", new_tokens=1)
    edit_config(tmp_path, tie_word_embeddings=False)
    with pytest.raises(CheckpointError, match=r"missing \(1\): lm_head.weight"):
        load(tmp_path)


def test_padding_rows_of_embedding_and_head_are_cut(tmp_path: Path) -> None:
    write_tiny_checkpoint(tmp_path, "gqa", FAMILIES)
    ids = list(range(50))
    whole = whole_logits(load(tmp_path), ids)
    edit_config(tmp_path, vocab_size=50)
    cut = whole_logits(load(tmp_path), ids)
    assert cut.shape == (50, 50)
    assert torch.equal(cut, whole[:, :50])


def test_a_vocabulary_larger_than_the_embedding_is_refused(tmp_path: Path) -> None:
    write_tiny_checkpoint(tmp_path, "gqa", FAMILIES)
    edit_config(tmp_path, vocab_size=65)
    with pytest.raises(CheckpointError, match=r"embed_tokens.weight is \[64, 32\]"):
        load(tmp_path)


def test_stated_multi_token_prediction_layers_are_left_out_and_others_are_not(
    tmp_path: Path,
) -> None:
    write_tiny_checkpoint(tmp_path, "mla_moe", FAMILIES)
    file = tmp_path / "model.safetensors"
    save_file({**load_file(file), "model.layers.2.eh_proj.weight": torch.zeros(32, 64)}, file)
    with pytest.raises(CheckpointError, match=r"unexpected \(1\): model.layers.2.eh_proj.weight"):
        load(tmp_path)
    edit_config(tmp_path, num_nextn_predict_layers=1)
    load(tmp_path)


def test_old_and_new_spellings_of_the_rotary_fields_give_equal_logits(tmp_path: Path) -> None:
    oracle = write_oracle(tmp_path, "deepseek_v3_yarn", new_tokens=1)
    new = whole_logits(load(tmp_path), oracle.prompt)
    stated = dict(HuggingFaceDirectory(tmp_path).json("config.json")["rope_parameters"])
    theta, kind = stated.pop("rope_theta"), stated.pop("rope_type")
    old = {"rope_scaling": {**stated, "type": kind}, "rope_theta": theta}
    edit_config(tmp_path, rope_parameters="absent", **old)
    assert torch.equal(whole_logits(load(tmp_path), oracle.prompt), new)


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"n_group": 3}, "n_group=3"),
        ({"num_experts_per_tok": 5}, "num_experts_per_tok=5 is more than the 4 experts"),
        ({"scoring_func": "softmax"}, "scoring_func='softmax'"),
        ({"topk_method": "greedy"}, "topk_method='greedy'"),
        ({"num_key_value_heads": 2}, "num_key_value_heads=2 must equal"),
        ({"q_lora_rank": 0}, "q_lora_rank=0"),
    ],
)
def test_a_deepseek_config_that_cannot_be_run_names_the_field(
    tmp_path: Path, fields: dict[str, Any], part: str
) -> None:
    directory = write_config(tmp_path, **(tiny_config("mla_moe") | fields))
    assert part in refusal(directory)
