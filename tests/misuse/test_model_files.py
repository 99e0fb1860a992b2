"""Model and head directories that are not what they should be stop the start, by their name."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from interlock.core.assemble import assemble
from interlock.core.errors import ConfigError, InterlockError

GARBAGE = bytes(range(256)) * 8


def edited(**fields):
    def edit(file):
        file.write_text(json.dumps(json.loads(file.read_text()) | fields))

    return edit


def holding(data):
    return lambda file: file.write_bytes(data if isinstance(data, bytes) else data.encode())


def cut(count):
    return lambda file: file.write_bytes(file.read_bytes()[:count])


def without(file):
    file.unlink()


def tensors(change):
    return lambda file: save_file(change(load_file(file)), file)


BROKEN = {
    "weights cut short": ("model.safetensors", cut(-100), "truncated or corrupt"),
    "weights empty": ("model.safetensors", cut(0), "truncated or corrupt"),
    "weights of a list": ("model.safetensors", holding(b"\2" + b"\0" * 7 + b"[]"), "corrupt"),
    "weights of garbage": ("model.safetensors", holding(GARBAGE), "truncated or corrupt"),
    "no weights": ("model.safetensors", without, "no model.safetensors"),
    "integer weights": (
        "model.safetensors",
        tensors(lambda t: t | {"lm_head.weight": t["lm_head.weight"].to(torch.int8)}),
        "stored as I8; quantised weights are not read",
    ),
    "one tensor more": (
        "model.safetensors",
        tensors(lambda t: t | {"extra.weight": torch.zeros(2)}),
        r"unexpected \(1\): extra.weight",
    ),
    "config of garbage": ("config.json", holding(b"\xff\xfe"), "cannot be read as JSON"),
    "config cut short": ("config.json", cut(20), "cannot be read as JSON"),
    "config of a list": ("config.json", holding("[]"), "holds a list, not an object"),
    "config without end": ("config.json", holding("[" * 99_999), "cannot be read as JSON"),
    "no config": ("config.json", without, "has no config.json"),
    "no decoder": (
        "config.json",
        edited(architectures=["BertForMaskedLM"]),
        "no supported architecture named 'BertForMaskedLM'.*Only causal decoders",
    ),
    "another size": ("config.json", edited(hidden_size=64), "is .32, 32., the config asks for .64"),
    "more layers": ("config.json", edited(num_hidden_layers=3), r"missing \(9\): model.layers.2"),
    "quantised": ("config.json", edited(quantization_config="fp8"), "quantised weights are not"),
    "endless angles": ("config.json", edited(rope_theta=float("inf")), "rope_theta=inf is not"),
    "angles of text": ("config.json", edited(rope_theta="x"), "rope_theta='x'"),
    "no heads": ("config.json", edited(num_attention_heads=0), "num_attention_heads=0 is not"),
    "an end outside": ("config.json", edited(eos_token_id=999), "eos_token_id=999 is not a token"),
    "another type": ("config.json", edited(torch_dtype="int4"), "dtype='int4' is not one of"),
    "a tied head that differs": ("config.json", edited(tie_word_embeddings=True), "differs from"),
    "tokenizer cut short": ("tokenizer.json", cut(99), "tokenizer.json: not a tokenizer"),
    "tokenizer of garbage": ("tokenizer.json", holding(b"\xff"), "tokenizer.json: cannot be read"),
    "tokenizer config of a list": ("tokenizer_config.json", holding("[1]"), "holds a list"),
    "template of garbage": ("chat_template.jinja", holding(b"\xff"), "cannot be read"),
}
BROKEN_HEAD = {
    "cut short": ("model.safetensors", cut(-10), "truncated or corrupt"),
    "of another size": (
        "config.json",
        edited(hidden_size=40),
        "hidden_size=40 is not the target's",
    ),
    "of another vocabulary": (
        "config.json",
        edited(vocab_size=9),
        "vocab_size=9 is not the target",
    ),
    "of two layers": ("config.json", edited(num_hidden_layers=2), "num_hidden_layers=2"),
    "without config": ("config.json", without, "lacks config.json; train one with"),
    "empty config": ("config.json", holding("{}"), "vocab_size=None is not an integer >= 1"),
    "with endless angles": ("config.json", edited(rope_theta=float("inf")), "rope_theta=inf"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_model_directory_is_named_with_what_is_wrong(tiny, tmp_path, name):
    file, break_it, reason = BROKEN[name]
    model = shutil.copytree(tiny, tmp_path / "broken")
    break_it(model / file)
    with pytest.raises(InterlockError, match=f"(?s)broken.*{reason}"):
        assemble([f"model={model}", "cache.num_pages=8"])


@pytest.mark.parametrize("name", BROKEN_HEAD)
def test_a_broken_head_is_named_with_what_is_wrong(tiny, tmp_path, name):
    file, break_it, reason = BROKEN_HEAD[name]
    head = shutil.copytree(tiny / "eagle", tmp_path / "broken")
    break_it(head / file)
    with pytest.raises(InterlockError, match=f"(?s)broken.*{reason}"):
        assemble([f"model={tiny}", "spec=eagle", f"spec.path={head}", "cache.num_pages=8"])


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["model=tiny-gpa"], "no model named 'tiny-gpa'; did you mean 'tiny-gqa'"),
        (["model=/etc/passwd"], "this file is no model; a model is a directory with config.json"),
        (["model={tiny}", "spec=eagle", "spec.path=/nowhere"], "/nowhere does not exist; train"),
        (["model={tiny}", "spec=eagle", "spec.path=README.md"], "README.md is a file; set spec.p"),
        (["model={tiny}", "attention=mla"], "attention=mla does not compute.*attention=gqa"),
        (["model=tiny-mla", "attention=gqa"], "'latent' attention, which attention=gqa does not.*"
         "would work: attention=reference, attention=mla"),
        (["model={tiny}", "max_model_len=1000"], "max_model_len=1000 is beyond the 512 positions"),
        (["executor=fixed", "sampling.logprobs=3"], "sampling.logprobs=3 cannot be served: "
         "executor=fixed computes no probabilities; any of these would work: executor=torch"),
        (["executor=fixed", "sampling.min_tokens=3"], "sampling.min_tokens=3 cannot be served: "
         "executor=fixed draws from no logits; any of these would work: executor=torch"),
        (["workload=trace", "workload.path=x"], "on token ids, but the workload carries none; "
         "any of these would work: executor=fixed"),
    ],
)  # fmt: skip
def test_a_choice_that_cannot_work_says_which_would(tiny, overrides, reason):
    with pytest.raises(InterlockError, match=reason):
        assemble([text.format(tiny=tiny) for text in overrides])


@pytest.mark.skipif(torch.cuda.is_available(), reason="refused only where there is none")
def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match=r"device=cuda: torch sees 0 CUDA devices; .*device=cpu"):
        assemble(["device=cuda"])


def test_a_model_without_a_tokenizer_takes_token_ids_only(tiny, tmp_path):
    bare = shutil.copytree(tiny, tmp_path / "bare")
    (bare / "tokenizer.json").unlink()
    engine = assemble([f"model={bare}", "cache.num_pages=8"])
    with pytest.raises(ValueError, match=r"no tokenizer\.json: submit token ids, not text"):
        engine.submit("text")
    engine.submit([1, 2, 3])
    assert [o.finished.status.value for o in engine.outputs() if o.finished] == ["finished"]


def test_no_request_goes_beyond_the_length_where_its_rotary_scaling_is_exact(tiny, tmp_path):
    model = shutil.copytree(tiny, tmp_path / "scaled")
    edited(rope_scaling={"type": "dynamic", "factor": 4.0})(model / "config.json")
    reason = "rotary scaling 'dynamic' is exact within the original 512 positions"
    with pytest.raises(ConfigError, match=f"max_model_len=600 is beyond the 512.*{reason}"):
        assemble([f"model={model}", "max_model_len=600"])
    engine = assemble([f"model={model}", "cache.num_pages=8"])
    engine.submit([1] * 512)
    (refused,) = [o.finished for o in engine.outputs() if o.finished]
    assert refused.error is not None
    assert reason in refused.error
