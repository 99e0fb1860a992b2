"""A random LoRA adapter in PEFT's files, and the model that it amounts to."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

ROOT = "base_model.model."


def write_adapter(
    directory: Path,
    model: Path,
    modules: Sequence[str],
    seed: int = 0,
    rank: int = 2,
    **config: Any,
) -> Path:  # fmt: skip
    """An adapter for the layers of `model` whose names end in one of `modules`.

    `config` are fields of adapter_config.json on top of r=rank and lora_alpha=2 * rank.
    """
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, weight in sorted(load_file(model / "model.safetensors").items()):
        module = name.removesuffix(".weight")
        if module != name and module.endswith(tuple(modules)):
            rows, columns = weight.shape
            a_RE = torch.randn(rank, columns, generator=generator) * columns**-0.5
            b_FR = torch.randn(rows, rank, generator=generator) * 0.5
            tensors[f"{ROOT}{module}.lora_A.weight"] = a_RE
            tensors[f"{ROOT}{module}.lora_B.weight"] = b_FR
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / "adapter_model.safetensors")
    stated = {
        "peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "bias": "none",
        "target_modules": list(modules), "task_type": "CAUSAL_LM", **config,
    }  # fmt: skip
    (directory / "adapter_config.json").write_text(json.dumps(stated, indent=1) + "\n")
    return directory


def write_merged(directory: Path, model: Path, adapter: Path, scale: float = 2.0) -> Path:
    """The model with W + scale B A in place of every W that the adapter adds to (in fp64)."""
    shutil.copytree(model, directory)
    weights = load_file(model / "model.safetensors")
    tensors = load_file(adapter / "adapter_model.safetensors")
    for name, a_RE in tensors.items():
        if ".lora_A." not in name:
            continue
        b_FR = tensors[name.replace(".lora_A.", ".lora_B.")]
        target = name.removeprefix(ROOT).replace(".lora_A", "")
        weights[target] = weights[target].double() + scale * b_FR.double() @ a_RE.double()
    save_file(weights, directory / "model.safetensors")
    return directory
