"""Files of a model directory: everything that is wrong with them is found before serving."""

import json
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from interlock.core.errors import CheckpointError, ContractError
from interlock.core.testing.random_weights import RandomWeights
from interlock.plugins.models.safetensors import SafetensorsDirectory
from tests.models.loading import LOGIT_TOLERANCE, load, whole_logits
from tests.models.oracle import write_oracle

CPU = torch.device("cpu")


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """A two-layer Llama in several shards with an index."""
    write_oracle(tmp_path, "llama_gqa", shard_size="100KB", new_tokens=1)
    assert len(list(tmp_path.glob("*.safetensors"))) >= 3
    return tmp_path


@pytest.fixture
def single(tmp_path: Path) -> Path:
    write_oracle(tmp_path, "llama_mha", new_tokens=1)
    return tmp_path


def change_tensors(directory: Path, **changes: torch.Tensor | None) -> None:
    """Replace, add or (None) remove tensors of model.safetensors; dots are written as __."""
    file = directory / "model.safetensors"
    tensors = load_file(file)
    for key, value in changes.items():
        name = key.replace("__", ".")
        if value is None:
            del tensors[name]
        else:
            tensors[name] = value
    save_file(tensors, file)


def test_a_sharded_save_gives_the_logits_of_transformers(tmp_path: Path) -> None:
    oracle = write_oracle(tmp_path, "llama_gqa", shard_size="100KB", new_tokens=1)
    logits = whole_logits(load(tmp_path), oracle.prompt)
    assert (logits - oracle.logits(oracle.prompt)).abs().max() < LOGIT_TOLERANCE


def test_a_missing_shard_is_named(sharded: Path) -> None:
    shard = sorted(sharded.glob("*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(CheckpointError, match=f"{shard.name}: this shard is missing"):
        load(sharded)


@pytest.mark.parametrize("kept", [0, 4, 200, 0.5])
def test_a_truncated_shard_is_named(sharded: Path, kept: float) -> None:
    shard = sorted(sharded.glob("*.safetensors"))[0]
    data = shard.read_bytes()
    shard.write_bytes(data[: int(kept if kept > 1 or kept == 0 else len(data) * kept)])
    with pytest.raises(CheckpointError, match=f"{shard.name}: truncated or corrupt"):
        load(sharded)


def test_a_header_that_is_not_json_is_named(single: Path) -> None:
    file = single / "model.safetensors"
    data = file.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    file.write_bytes(data[:8] + b"#" * length + data[8 + length :])
    with pytest.raises(CheckpointError, match=r"model.safetensors: truncated or corrupt"):
        load(single)


def test_a_stale_index_lists_every_file_that_is_not_there(sharded: Path) -> None:
    index = sharded / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    names = [f"model-{i:05}-of-00030.safetensors" for i in range(30)]
    content["weight_map"] = {f"tensor.{i}": name for i, name in enumerate(names)}
    index.write_text(json.dumps(content))
    with pytest.raises(CheckpointError) as caught:
        load(sharded)
    assert all(name in str(caught.value) for name in names)


def test_an_index_that_disagrees_with_a_shard_is_named_both_ways(sharded: Path) -> None:
    index = sharded / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    file = content["weight_map"].pop("model.norm.weight")
    content["weight_map"]["model.ghost.weight"] = file
    index.write_text(json.dumps(content))
    with pytest.raises(CheckpointError) as caught:
        load(sharded)
    assert "are not in it: ['model.ghost.weight']" in str(caught.value)
    assert "does not place here: ['model.norm.weight']" in str(caught.value)


def test_an_index_may_not_point_outside_the_directory(sharded: Path) -> None:
    index = sharded / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["model.norm.weight"] = "../other/model.safetensors"
    index.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"\.\./other/model.safetensors: this shard is missi"):
        load(sharded)


def test_a_directory_with_pickles_only_says_that_they_are_not_read(single: Path) -> None:
    (single / "model.safetensors").rename(single / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"pytorch_model.bin is not read"):
        load(single)


def test_missing_misshapen_and_unexpected_tensors_are_listed_together(single: Path) -> None:
    change_tensors(
        single,
        model__layers__0__self_attn__k_proj__weight=None,
        model__layers__0__self_attn__kk_proj__weight=torch.zeros(64, 64),
        model__layers__1__mlp__up_proj__weight=torch.zeros(95, 64),
        model__extra=torch.zeros(3),
    )
    with pytest.raises(CheckpointError) as caught:
        load(single)
    message = str(caught.value)
    assert "missing (1): model.layers.0.self_attn.k_proj.weight [64, 64]" in message
    assert "model.layers.1.mlp.up_proj.weight is [95, 64], the config asks for [96, 64]" in message
    assert "unexpected (2): model.extra [3]; model.layers.0.self_attn.kk_proj.weight" in message


def test_rotary_buffers_of_old_files_are_left_out(single: Path) -> None:
    change_tensors(single, model__layers__0__self_attn__rotary_emb__inv_freq=torch.zeros(8))
    load(single)


def test_a_bias_in_the_file_is_used_although_the_config_does_not_speak_of_it(single: Path) -> None:
    ids = list(range(2, 20))
    plain = whole_logits(load(single), ids)
    change_tensors(single, model__layers__0__self_attn__q_proj__bias=torch.ones(64))
    assert (whole_logits(load(single), ids) - plain).abs().max() > 0.01


def test_ids_are_read_as_whole_numbers_and_numbers_not_as_ids(single: Path) -> None:
    change_tensors(single, ids=torch.tensor([3, 0, 2]), rates=torch.tensor([0.5]))
    weights = SafetensorsDirectory(single)
    assert weights.take("ids", (3,), torch.int64, CPU).tolist() == [3, 0, 2]
    with pytest.raises(CheckpointError, match="rates is stored as F32; it holds ids, only I64"):
        weights.take("rates", (1,), torch.int64, CPU)


def test_quantised_tensors_are_refused_by_name(single: Path) -> None:
    weight = torch.zeros(64, 64, dtype=torch.float8_e4m3fn)
    change_tensors(single, model__layers__0__self_attn__q_proj__weight=weight)
    with pytest.raises(CheckpointError, match=r"q_proj.weight is stored as F8_E4M3"):
        load(single)


def test_taking_a_tensor_twice_is_an_error_of_the_family(single: Path) -> None:
    for weights in (SafetensorsDirectory(single), RandomWeights(0)):
        weights.take("model.norm.weight", (64,), torch.float32, CPU)
        with pytest.raises(ContractError, match="taken twice"):
            weights.take("model.norm.weight", (64,), torch.float32, CPU)


def test_a_taken_tensor_survives_the_file(single: Path) -> None:
    weights = SafetensorsDirectory(single)
    tensor = weights.take("model.norm.weight", (64,), torch.float32, CPU)
    before = tensor.clone()
    file = single / "model.safetensors"
    file.write_bytes(b"\0" * file.stat().st_size)
    assert torch.equal(tensor, before)


def test_random_weights_depend_on_seed_and_name_only() -> None:
    def draw(seed: int, name: str, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        return RandomWeights(seed).take(name, (5, 7), dtype, CPU)

    assert torch.equal(draw(0, "a"), draw(0, "a"))
    assert not torch.equal(draw(0, "a"), draw(1, "a"))
    assert not torch.equal(draw(0, "a"), draw(0, "b"))
    assert torch.equal(draw(0, "a", torch.float32), draw(0, "a").to(torch.float32))
