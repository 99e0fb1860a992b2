"""The heads that lie beside the shipped models, measured again from their files."""

import json
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from interlock.conf.find_model import shipped_models
from interlock.models.recipe.acceptance import chains_of
from interlock.models.recipe.checkpoint import load_decoder
from interlock.models.recipe.decode import continue_prompts
from interlock.models.recipe.drafters import (
    dflash,
    draft_model,
    dspark,
    eagle3,
    hydra,
    medusa,
    mtp,
)
from interlock.models.recipe.drafters.facts import TargetFacts
from interlock.models.recipe.tokenizer import encode_documents
from tests.models.recipe_windows import windows_of

PROMPTS, PROMPT, ANSWER = 24, 64, 48
LONGEST_TRAINING_S = 900
SMALLER_SAMPLE = 0.8
"""Fewer and shorter answers than the report's may do that much worse."""


@dataclass
class Kind:
    folder: str
    module: object
    least: float  # tokens a target pass that the report must reach


KINDS = [
    Kind("eagle3", eagle3, 2.0),
    Kind("medusa", medusa, 1.6),
    Kind("hydra", hydra, 1.6),
    Kind("mtp", mtp, 2.0),
    Kind("dflash", dflash, 1.6),
    Kind("dspark", dspark, 2.0),
    Kind("draft_model", draft_model, 1.6),
]
SHIPPED = [
    pytest.param(name, kind, id=f"{name}-{kind.folder}")
    for name in ("tiny-gqa", "tiny-mla")
    for kind in KINDS
    if (shipped_models()[name] / kind.folder / "model.safetensors").is_file()
]


def facts_of(target, config, unused):
    """As the recipe finds them; `unused` is the mask token that the head was trained with."""
    counts = torch.ones(target.shape.vocab_size, dtype=torch.long)
    counts[unused] = 0
    table = target.embed_tokens.weight.detach()
    latent = config["model_type"] == "deepseek_v3"
    return TargetFacts(
        config=config,
        hidden=config["hidden_size"],
        vocab_size=config["vocab_size"],
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        kv_heads=2 if latent else config["num_key_value_heads"],
        head_dim=config["v_head_dim"] if latent else config["head_dim"],
        intermediate=config["intermediate_size"],
        norm_eps=config["rms_norm_eps"],
        rope_theta=config["rope_theta"],
        max_positions=config["max_position_embeddings"],
        embed_VE=table,
        head_VE=table,
        norm_E=target.norm.weight.detach(),
        counts_V=counts,
    )


def loaded(kind, target, folder, target_config):
    """The recipe's head with the weights of its files."""
    config = json.loads((folder / "config.json").read_text())
    options = json.loads((folder / "training.json").read_text())["options"]
    nested = config.get("dflash_config", {})
    mask = config.get("mask_token_id", nested.get("mask_token_id", 0))
    head = kind.module.Head(facts_of(target, target_config, mask), **options).requires_grad_(False)
    tensors = {n: t.float() for n, t in load_file(folder / "model.safetensors").items()}
    if kind.module is draft_model:
        head.decoder.load_state_dict(load_decoder(folder).state_dict())
    elif kind.module is mtp:
        prefix = f"model.layers.{target.shape.layers}."
        head.layer.load_state_dict({n.removeprefix(prefix): t for n, t in tensors.items()})
    elif kind.module is eagle3:
        head.fc.set_weight(tensors.pop("fc.weight"))
        own = {n: t for n, t in tensors.items() if n not in ("d2t", "t2d")}
        head.load_state_dict(head.state_dict() | own)
    elif kind.module in (medusa, hydra):
        head.token_scale = 1.0  # Hydra's: it is a part of the stored matrices
        head.load_state_dict(tensors)
    else:
        for part in ("markov_head", "confidence_head"):
            own = {n[len(part) + 1 :]: tensors.pop(n) for n in list(tensors) if part in n}
            if own:
                getattr(head, part).load_state_dict(own)
        head.network.take(tensors)
    return head


@cache
@torch.no_grad()
def answered(directory):
    """The target, its greedy answers to held-out prompts, and what it computes over them."""
    target = load_decoder(directory).requires_grad_(False)
    text = (directory / "held_out.txt").read_text()
    ids = encode_documents(Tokenizer.from_file(str(directory / "tokenizer.json")), [text])
    places = torch.linspace(0, len(ids) - PROMPT, PROMPTS).long().tolist()
    prompts = torch.stack([ids[place : place + PROMPT] for place in places])
    answers = continue_prompts(target, prompts, ANSWER, torch.zeros(PROMPTS))
    return target, answers, windows_of(target, answers)


@pytest.mark.parametrize(("name", "kind"), SHIPPED)
def test_a_shipped_head_drafts_about_as_well_as_its_report_says(name, kind):
    directory = shipped_models()[name]
    report = json.loads((directory / kind.folder / "training.json").read_text())
    assert report["cpu_seconds"] <= LONGEST_TRAINING_S
    drafts = report["acceptance"]["drafts"]
    assert drafts == min(7, len(report["agreement"]))
    assert report["acceptance"]["emitted_per_pass"] >= kind.least

    target, answers, windows = answered(directory)
    target_config = json.loads((directory / "config.json").read_text())
    head = loaded(kind, target, directory / kind.folder, target_config)
    guess = head.guess(windows)
    matches = torch.zeros_like(guess, dtype=torch.bool)
    for k in range(guess.shape[2]):
        wanted = answers[:, 1 + k :]
        matches[:, : wanted.shape[1], k] = guess[:, : wanted.shape[1], k] == wanted
    spans = [(PROMPT, PROMPT + ANSWER - 1)] * PROMPTS
    measured = chains_of(list(matches), spans, drafts).emitted_per_pass
    assert measured >= SMALLER_SAMPLE * report["acceptance"]["emitted_per_pass"]
