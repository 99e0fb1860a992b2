"""The family keeps Interlock's contract, and its logits are those of transformers."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from interlock_example_gpt2.family import GPT2Family
from safetensors.torch import load_file, save_file

from interlock.core.checkpoint import describe_model, load_decoder, open_model
from interlock.core.errors import CheckpointError
from interlock.core.model import Decoder, ModelFamily
from interlock.core.parallel import Placement
from interlock.core.registry import load_registry
from interlock.core.testing.family_contract import FamilyContract
from interlock.core.testing.tiny import dense_attend

CONFIG = {
    "architectures": ["GPT2LMHeadModel"],
    "vocab_size": 96,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
}


class TestGPT2(FamilyContract):
    required = ("vocab_size", "n_embd", "n_layer", "n_head", "n_positions")

    def make(self) -> ModelFamily:
        return GPT2Family()

    def config(self) -> dict[str, Any]:
        return CONFIG


def loaded(directory: Path) -> Decoder:
    families = [GPT2Family()]
    placement = Placement(torch.float64, torch.device("cpu"))
    files = open_model(directory, list(load_registry().formats.values()))
    return load_decoder(describe_model(files, families), families, placement)


def written(directory: Path, **fields: Any) -> Any:
    """A random model of transformers in `directory`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import GPT2Config, GPT2LMHeadModel

        sizes = {key: value for key, value in CONFIG.items() if key != "architectures"}
        config = GPT2Config(**sizes, bos_token_id=None, eos_token_id=None, **fields)
        model = GPT2LMHeadModel(config).double().eval()
        for number, parameter in enumerate(model.parameters()):
            draw = torch.Generator().manual_seed(number)
            parameter.data += torch.randn(parameter.shape, generator=draw).double() * 0.1
        model.save_pretrained(directory)
    return model


@pytest.mark.parametrize("fields", [{}, {"n_inner": 48, "tie_word_embeddings": False}])
def test_logits_equal_transformers(tmp_path: Path, fields: dict[str, Any]) -> None:
    model, decoder = written(tmp_path, **fields), loaded(tmp_path)
    ids = torch.randint(96, (40,), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        features = decoder.forward(ids, torch.arange(40), dense_attend(decoder.description))
        expected = model(input_ids=ids[None], use_cache=False).logits[0]
        assert (decoder.logits(features) - expected).abs().max() < 1e-9


def test_files_without_the_prefix_and_with_stored_masks_are_read(tmp_path: Path) -> None:
    written(tmp_path)
    ids = torch.arange(9)
    attend = dense_attend(loaded(tmp_path).description)
    expected = loaded(tmp_path).forward(ids, ids, attend)
    file = tmp_path / "model.safetensors"
    bare = {name.removeprefix("transformer."): one for name, one in load_file(file).items()}
    save_file({**bare, "h.0.attn.bias": torch.ones(1, 1, 64, 64)}, file)
    assert torch.equal(loaded(tmp_path).forward(ids, ids, attend), expected)


@pytest.mark.parametrize(
    "fields", [{"activation_function": "relu"}, {"n_head": 5}, {"scale_attn_weights": False}]
)
def test_what_it_does_not_compute_is_refused_by_name(fields: dict[str, Any]) -> None:
    (name,) = fields
    with pytest.raises(CheckpointError, match=f"{name}={fields[name]!r}|of {name}="):
        GPT2Family().describe({**CONFIG, **fields}, "gpt2")
