"""A converted model is the same model: for us, and for transformers."""

import json
import sys
import warnings

import gguf
import pytest
import torch
import transformers

from interlock.conf.find_model import find_model
from interlock.core.checkpoint import describe_model
from interlock.core.errors import CheckpointError
from interlock.driver import convert as convert_module
from interlock.driver.chat_template import chat_text
from interlock.driver.convert import convert
from interlock.plugins.models import model_formats
from interlock.plugins.models.hugging_face import HuggingFaceDirectory
from interlock.plugins.models.text import load_codec
from tests.models.bpe_oracle import byte_symbols
from tests.models.gguf_files import write_gguf
from tests.models.loading import FAMILIES, LOGIT_TOLERANCE, load, whole_logits
from tests.models.oracle import BASE, random_model_of

IDS = [(7 * i) % 128 for i in range(40)]
TOKENIZER = {
    "ggml.model": "gpt2",
    "ggml.pre": "smollm",
    "ggml.tokens": [*byte_symbols()[:126], "ab", "<|im_end|>"],
    "ggml.token_type": [1] * 127 + [3],
    "ggml.merges": ["a b"],
    "ggml.bos_token_id": 127,
    "ggml.eos_token_id": 127,
    "ggml.add_bos_token": True,
    "chat_template": "{{ bos_token }}{% for m in messages %}{{ m.content }}!{% endfor %}",
}


@pytest.fixture
def model(tmp_path):
    written = random_model_of("Llama", {**BASE, "tie_word_embeddings": True})
    write_gguf(tmp_path / "m.gguf", written, gguf.GGMLQuantizationType.Q4_0, tokenizer=TOKENIZER)
    return find_model(str(tmp_path / "m.gguf"), model_formats())


def theirs(directory):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)


@pytest.mark.parametrize("shard_bytes", [1 << 30, 30_000])
def test_a_converted_file_has_the_logits_of_the_file(model, tmp_path, shard_bytes):
    convert(model, tmp_path / "out", "float32", shard_bytes)
    ours, original = load(tmp_path / "out"), load(model)
    assert torch.equal(whole_logits(ours, IDS), whole_logits(original, IDS))
    with torch.inference_mode():
        logits = theirs(tmp_path / "out")(input_ids=torch.tensor([IDS])).logits[0]
    assert (whole_logits(ours, IDS) - logits).abs().max() < LOGIT_TOLERANCE
    shards = sorted((tmp_path / "out").glob("*.safetensors"))
    assert all(shard.stat().st_size < shard_bytes + 30_000 for shard in shards)
    assert (len(shards) > 1) == (tmp_path / "out" / "model.safetensors.index.json").is_file()


def test_text_chats_and_ends_are_those_of_the_file_for_transformers_too(model, tmp_path):
    convert(model, tmp_path / "out", "bfloat16")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    codec, text = load_codec(model), "ab 12<|im_end|>ba"
    assert codec.encode(text) == tokenizer(text)["input_ids"]
    messages = [{"role": "user", "content": "ab"}]
    rendered = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False)
    assert (
        codec.encode(chat_text(codec, messages, False), add_special_tokens=False)
        == rendered
        == [127, 126, 33]
    )
    converted = describe_model(HuggingFaceDirectory(tmp_path / "out"), FAMILIES)
    assert converted.eos_token_ids == describe_model(model, FAMILIES).eos_token_ids == (127,)
    assert converted.dtype == "bfloat16"
    assert theirs(tmp_path / "out").generation_config.eos_token_id == [127]


def test_a_directory_is_converted_to_another_dtype(model, tmp_path):
    convert(model, tmp_path / "first", "float32")
    again = find_model(str(tmp_path / "first"), model_formats())
    convert(again, tmp_path / "second", "float16")
    assert json.loads((tmp_path / "second" / "config.json").read_text())["torch_dtype"] == "float16"
    half = load(tmp_path / "second").embed(torch.arange(128))
    assert torch.equal(half, load(tmp_path / "first").embed(torch.arange(128)).half().float())


def test_nothing_is_overwritten(model, tmp_path):
    with pytest.raises(CheckpointError, match="exists and is no empty folder"):
        convert(model, tmp_path, "float32")


def test_a_tensor_without_a_place_is_refused(tmp_path):
    extra = {"blk.0.attn_qk_clip.weight": torch.ones(3).numpy()}
    write_gguf(tmp_path / "m.gguf", random_model_of("Llama", BASE), tensors=extra)
    model = find_model(str(tmp_path / "m.gguf"), model_formats())
    with pytest.raises(CheckpointError, match=r"no place for: \['blk.0.attn_qk_clip.weight'\]"):
        convert(model, tmp_path / "out", "float32")


def test_heads_that_the_rows_cannot_hold_are_refused(tmp_path):
    heads = {"attention.head_count": 3, "attention.head_count_kv": 3}
    heads |= {"attention.key_length": 22, "attention.value_length": 22}
    write_gguf(tmp_path / "m.gguf", random_model_of("Llama", BASE), extra=heads)
    model = find_model(str(tmp_path / "m.gguf"), model_formats())
    with pytest.raises(CheckpointError, match=r"m.gguf: blk.0.attn_q.weight .* has no 3 heads"):
        convert(model, tmp_path / "out", "float32")


def test_the_command_converts_and_names_what_is_wrong(model, tmp_path, monkeypatch):
    out = tmp_path / "out"
    monkeypatch.setattr(sys, "argv", ["convert", str(model.path), str(out), "--dtype", "float64"])
    convert_module.main()
    assert describe_model(HuggingFaceDirectory(out), FAMILIES).dtype == "float64"
    with pytest.raises(SystemExit, match="exists and is no empty folder"):
        convert_module.main()
