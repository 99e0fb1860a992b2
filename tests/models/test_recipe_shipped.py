import json
import lzma
import math
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from torch.nn import functional as F
from transformers import AutoModelForCausalLM

from interlock.conf.find_model import shipped_models
from interlock.models.recipe.acceptance import measure_acceptance
from interlock.models.recipe.checkpoint import load_decoder
from interlock.models.recipe.eagle import load_head
from interlock.models.recipe.tokenizer import encode_documents
from interlock.models.recipe.train_lm import nats_per_byte

MODELS = ("tiny-gqa", "tiny-mla")
MOST_BYTES = 60_000_000
HALF_HOUR_S = 1800


def directory(name) -> Path:
    return shipped_models()[name]


def held_out(name, characters=None):
    text = (directory(name) / "held_out.txt").read_text()[:characters]
    return text, encode_documents(
        Tokenizer.from_file(str(directory(name) / "tokenizer.json")), [text]
    )


def test_all_checkpoints_together_stay_small():
    files = [f for name in MODELS for f in directory(name).rglob("*") if f.is_file()]
    assert sum(f.stat().st_size for f in files) <= MOST_BYTES


@pytest.mark.parametrize("name", MODELS)
def test_training_took_at_most_half_an_hour_and_beats_a_general_compressor(name):
    report = json.loads((directory(name) / "training.json").read_text())
    text = (directory(name) / "held_out.txt").read_bytes()
    xz = len(lzma.compress(text, preset=9)) * 8 * math.log(2) / len(text)
    assert report["cpu_seconds"] <= HALF_HOUR_S
    assert report["held_out_nats_per_byte"] <= 1.10 < xz


@pytest.mark.parametrize("name", MODELS)
def test_transformers_computes_the_recipes_loss(name):
    text, ids = held_out(name, 3000)
    model, report = AutoModelForCausalLM.from_pretrained(
        directory(name), dtype=torch.float32, output_loading_info=True
    )
    assert not any(report.values())
    window = ids[:512]
    inputs = torch.cat([window.new_zeros(1), window[:-1]])[None]
    with torch.no_grad():
        theirs = F.cross_entropy(model(inputs).logits[0], window, reduction="sum").item()
    ours = nats_per_byte(load_decoder(directory(name)), window, text) * len(text.encode())
    assert abs(theirs - ours) < 1e-4 * ours  # fp32 sums in another order


@pytest.mark.parametrize("name", [n for n in MODELS if (directory(n) / "eagle").is_dir()])
def test_the_shipped_head_emits_more_than_two_tokens_a_pass(name):
    report = json.loads((directory(name) / "eagle" / "training.json").read_text())
    assert report["cpu_seconds"] <= HALF_HOUR_S
    assert report["acceptance"]["drafts"] == 5
    assert report["acceptance"]["emitted_per_pass"] >= 2.3
    _, ids = held_out(name)
    target, head = load_decoder(directory(name)), load_head(directory(name) / "eagle")
    measured = measure_acceptance(target, head, ids, prompts=16, output_tokens=48)
    assert measured.emitted_per_pass > 2.0  # fewer and shorter outputs than the report's
