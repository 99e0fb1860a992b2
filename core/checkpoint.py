"""Open a model where it is stored, describe it, load its decoder."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from interlock.core.closest import unknown_name
from interlock.core.errors import CheckpointError, ConfigError, ContractError
from interlock.core.model import Decoder, ModelDescription, ModelFamily
from interlock.core.model_files import ModelFiles, ModelFormat
from interlock.core.parallel import Placement
from interlock.core.weights import WeightSource

DTYPES = ("float64", "float32", "float16", "bfloat16")


def open_model(path: Path, formats: Sequence[ModelFormat]) -> ModelFiles:
    """The model in an existing directory or file; CheckpointError where no format finds one."""
    for form in formats:
        if (files := form.open(path)) is not None:
            return files
    kind = "directory has no config.json" if path.is_dir() else "file is no model"
    known = " or ".join(form.name for form in formats)
    raise CheckpointError(f"model={path}: this {kind}; a model is {known}")


def describe_model(files: ModelFiles, families: Sequence[ModelFamily]) -> ModelDescription:
    """What the config says, read by the family that serves its architecture.

    Raises CheckpointError for an architecture that no family serves (a model that is not a causal
    decoder among them), for quantised weights, and for what the family itself refuses.
    """
    config, source = files.json("config.json"), files.where("config.json")
    if config is None:
        raise CheckpointError(f"{source}: no such file")
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
        described = family.describe(config, files.path.resolve().name)
    except CheckpointError as error:
        raise CheckpointError(f"{source}: {error}") from error
    return replace(
        described,
        files=files,
        directory=files.directory,
        dtype=_dtype_of(config, source),
        eos_token_ids=_eos_token_ids(config, files, described.vocab_size),
    )


def load_decoder(
    description: ModelDescription,
    families: Sequence[ModelFamily],
    placement: Placement,
    weights: WeightSource | None = None,
) -> Decoder:
    """The decoder with these weights (None: those of `description.files`), where it is placed.

    Raises CheckpointError that names files or tensors when they are not what the config says.
    """
    family = next((f for f in families if f.name == description.family), None)
    if family is None:
        known = [f.name for f in families]
        raise CheckpointError(unknown_name("model family", description.family, known))
    if weights is None:
        if description.files is None:
            raise CheckpointError(f"model {description.name!r} has no files to load weights from")
        weights = description.files.weights()
    with torch.no_grad():
        decoder = family.build(description, weights, placement)
    if placement.adapters.names and not placement.adapters.served:
        raise ConfigError(
            f"adapters={list(placement.adapters.names)}: model family {family.name!r} serves none"
        )
    for setting, plain in (("numerics", "fast"), ("weights", "auto")):
        if getattr(decoder, setting, plain) != (asked := getattr(placement, setting)):
            raise ConfigError(
                f"{setting}={asked}: the decoder of model family {family.name!r} has only {plain}"
            )
    if not weights.finished:
        raise ContractError(f"model family {family.name!r} did not call WeightSource.finish")
    return decoder


def _family_of(
    config: Mapping[str, Any], families: Sequence[ModelFamily], source: str
) -> ModelFamily:
    serving = {name: family for family in families for name in family.architectures}
    named = config.get("architectures")
    if not isinstance(named, list) or not named:
        raise CheckpointError(f"{source}: architectures={named!r} names no model class")
    for name in named:
        if name in serving:
            return serving[name]
        for family in families:
            if name in family.refused:
                raise CheckpointError(f"{source}: {name} is refused: {family.refused[name]}")
    raise CheckpointError(
        f"{source}: {unknown_name('supported architecture', str(named[0]), serving)}. Only causal "
        "decoders of these kinds can be served; another model's cache would be wrong"
    )


def _dtype_of(config: Mapping[str, Any], source: str) -> str:
    """The checkpoint's own dtype; float32 where the config does not say."""
    stated = config.get("dtype") or config.get("torch_dtype") or "float32"
    name = str(stated).removeprefix("torch.")
    if name not in DTYPES:
        raise CheckpointError(f"{source}: dtype={stated!r} is not one of {', '.join(DTYPES)}")
    return name


def _eos_token_ids(
    config: Mapping[str, Any], files: ModelFiles, vocab_size: int
) -> tuple[int, ...]:
    """End tokens of config.json and generation_config.json together, without repeats."""
    ids: dict[int, None] = {}
    generation = files.json("generation_config.json") or {}
    for name, values in (("config.json", config), ("generation_config.json", generation)):
        stated = values.get("eos_token_id")
        for token in stated if isinstance(stated, list) else [stated]:
            if token is None:
                continue
            if type(token) is not int or not 0 <= token < vocab_size:
                raise CheckpointError(
                    f"{files.where(name)}: eos_token_id={stated!r} is not a token id from 0 to "
                    f"{vocab_size - 1}"
                )
            ids[token] = None
    return tuple(ids)
