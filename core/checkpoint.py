"""Model directories in the Hugging Face layout: find them, describe them, load the decoder."""

import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from interlock.core.closest import unknown_name
from interlock.core.errors import CheckpointError, ContractError
from interlock.core.model import Decoder, ModelDescription, ModelFamily
from interlock.core.parallel import Placement
from interlock.core.weights import SafetensorsDirectory

DTYPES = ("float64", "float32", "float16", "bfloat16")


def shipped_models() -> dict[str, Path]:
    """Name -> directory of every model that is installed with Interlock."""
    spec = importlib.util.find_spec("interlock.models")
    roots = spec.submodule_search_locations if spec else None
    return {
        config.parent.name: config.parent
        for root in roots or ()
        for config in sorted(Path(root).glob("*/config.json"))
    }


def find_model(name_or_dir: str) -> Path:
    """The directory of a shipped model's name, or the directory itself.

    Raises CheckpointError with the closest shipped name when there is neither.
    """
    shipped = shipped_models()
    if name_or_dir in shipped:
        return shipped[name_or_dir]
    directory = Path(name_or_dir).expanduser()
    if directory.is_dir():
        if not (directory / "config.json").is_file():
            raise CheckpointError(f"model={name_or_dir}: this directory has no config.json")
        return directory
    raise CheckpointError(
        f"model={name_or_dir}: {unknown_name('shipped model', name_or_dir, shipped)}; "
        "and no directory of this name"
    )


def read_config(directory: Path) -> dict[str, Any]:
    """The parsed config.json. Raises CheckpointError, naming the file, if it is not an object."""
    return read_json_object(directory / "config.json")


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises CheckpointError that names the file and the place."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: holds a {type(value).__name__}, not an object")
    return value


def describe_model(directory: Path, families: Sequence[ModelFamily]) -> ModelDescription:
    """What the directory's config says, read by the family that serves its architecture.

    Raises CheckpointError for an architecture that no family serves (a model that is not a causal
    decoder among them), for quantised weights, and for what the family itself refuses.
    """
    config = read_config(directory)
    source = directory / "config.json"
    family = _family_of(config, families, source)
    if config.get("quantization_config"):
        stated = config["quantization_config"]
        method = (
            stated.get("quant_method", "unknown method") if isinstance(stated, dict) else stated
        )
        raise CheckpointError(
            f"{source}: quantization_config ({method}): quantised weights are not read, because "
            "they would be taken for plain ones; use a float16, bfloat16 or float32 checkpoint"
        )
    try:
        described = family.describe(config, directory.resolve().name)
    except CheckpointError as error:
        raise CheckpointError(f"{source}: {error}") from error
    return replace(
        described,
        directory=directory,
        dtype=_dtype_of(config, source),
        eos_token_ids=_eos_token_ids(config, directory, described.vocab_size),
    )


def load_decoder(
    description: ModelDescription,
    families: Sequence[ModelFamily],
    placement: Placement,
) -> Decoder:
    """The decoder with the weights of `description.directory`, ready where it is placed.

    Raises CheckpointError that names files or tensors when they are not what the config says.
    """
    family = next((f for f in families if f.name == description.family), None)
    if family is None:
        known = [f.name for f in families]
        raise CheckpointError(unknown_name("model family", description.family, known))
    if description.directory is None:
        raise CheckpointError(f"model {description.name!r} has no directory to load weights from")
    weights = SafetensorsDirectory(description.directory)
    with torch.no_grad():
        decoder = family.build(description, weights, placement)
    if not weights.finished:
        raise ContractError(f"model family {family.name!r} did not call WeightSource.finish")
    return decoder


def _family_of(
    config: Mapping[str, Any], families: Sequence[ModelFamily], source: Path
) -> ModelFamily:
    serving = {name: family for family in families for name in family.architectures}
    named = config.get("architectures")
    if not isinstance(named, list) or not named:
        raise CheckpointError(f"{source}: architectures={named!r} names no model class")
    for name in named:
        if name in serving:
            return serving[name]
    raise CheckpointError(
        f"{source}: {unknown_name('supported architecture', str(named[0]), serving)}. Only causal "
        "decoders of these kinds can be served; another model's cache would be wrong"
    )


def _dtype_of(config: Mapping[str, Any], source: Path) -> str:
    """The checkpoint's own dtype; float32 where the config does not say."""
    stated = config.get("dtype") or config.get("torch_dtype") or "float32"
    name = str(stated).removeprefix("torch.")
    if name not in DTYPES:
        raise CheckpointError(f"{source}: dtype={stated!r} is not one of {', '.join(DTYPES)}")
    return name


def _eos_token_ids(config: Mapping[str, Any], directory: Path, vocab_size: int) -> tuple[int, ...]:
    """End tokens of generation_config.json and config.json together, without repeats."""
    sources: dict[Path, Mapping[str, Any]] = {directory / "config.json": config}
    generation = directory / "generation_config.json"
    if generation.is_file():
        sources[generation] = read_json_object(generation)
    ids: dict[int, None] = {}
    for path, values in sources.items():
        stated = values.get("eos_token_id")
        for token in stated if isinstance(stated, list) else [stated]:
            if token is None:
                continue
            if type(token) is not int or not 0 <= token < vocab_size:
                raise CheckpointError(
                    f"{path}: eos_token_id={stated!r} is not a token id from 0 to {vocab_size - 1}"
                )
            ids[token] = None
    return tuple(ids)
