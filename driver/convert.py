"""Write a model, however it is stored, as a Hugging Face directory.

python -m interlock.driver.convert model.gguf DIRECTORY [--dtype float32]
"""

import argparse
import json
import sys
from collections.abc import Iterator
from math import prod
from pathlib import Path

import torch
from safetensors.torch import save_file

from interlock.conf.find_model import find_model
from interlock.core.checkpoint import DTYPES, describe_model
from interlock.core.errors import CheckpointError, InterlockError
from interlock.core.model_files import ModelFiles
from interlock.core.planes import torch_dtype
from interlock.core.registry import load_registry

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
TEXTS = ("generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
SHARD_BYTES = 4 << 30


def convert(model: ModelFiles, target: Path, dtype: str, shard_bytes: int = SHARD_BYTES) -> None:
    """Write `model` into the new or empty folder `target`, every tensor in `dtype`.

    Shards hold at most `shard_bytes` (or one tensor), which bounds the memory too. The config comes
    last: an interrupted conversion leaves no model behind.

    Raises CheckpointError for a model that no family serves, a tensor without a name in Hugging
    Face's layout, and a target that holds something.
    """
    describe_model(model, list(load_registry().families.values()))
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise CheckpointError(f"{target}: exists and is no empty folder")
    weights = model.weights()
    unnamed = sorted(name for name in weights.names() if not weights.has(name))
    if unnamed:
        raise CheckpointError(
            f"{weights.title}: tensors that the config has no place for: {unnamed}"
        )
    target.mkdir(parents=True, exist_ok=True)
    shapes = {name: weights.shape(name) or () for name in sorted(weights.names())}
    stored, cpu = torch_dtype(dtype), torch.device("cpu")
    sizes = {name: prod(shape) * stored.itemsize for name, shape in shapes.items()}
    shards = list(_shards(sizes, shard_bytes))
    files = _file_names(len(shards))
    for file, names in zip(files, shards, strict=True):
        tensors = {name: weights.take(name, shapes[name], stored, cpu) for name in names}
        save_file(tensors, target / file, metadata={"format": "pt"})
    weights.finish()
    if len(shards) > 1:
        places = {name: file for file, names in zip(files, shards, strict=True) for name in names}
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": places}
        (target / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    for name in TEXTS:
        if (text := model.text(name)) is not None:
            (target / name).write_text(text, encoding="utf-8")
    config = (model.json("config.json") or {}) | {"torch_dtype": dtype}
    config.pop("dtype", None)  # the newer name of the same field
    (target / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _shards(sizes: dict[str, int], most_bytes: int) -> Iterator[list[str]]:
    """The names in order, as many in a shard as fit."""
    names: list[str] = []
    held = 0
    for name, size in sizes.items():
        if names and held + size > most_bytes:
            yield names
            names, held = [], 0
        names.append(name)
        held += size
    yield names


def _file_names(shards: int) -> list[str]:
    if shards == 1:
        return [SINGLE]
    return [f"model-{place:05}-of-{shards:05}.safetensors" for place in range(1, shards + 1)]


def main() -> None:
    """Convert what the command line names."""
    parser = argparse.ArgumentParser(description="Write a model as a Hugging Face directory.")
    parser.add_argument("model", help="a .gguf file, a model's directory, or a name (smollm2)")
    parser.add_argument("directory", type=Path, help="a new or empty folder")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="of every tensor")
    arguments = parser.parse_args()
    try:
        formats = list(load_registry().formats.values())
        convert(find_model(arguments.model, formats), arguments.directory, arguments.dtype)
    except InterlockError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
