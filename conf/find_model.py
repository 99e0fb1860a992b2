"""The setting `model`: a shipped or packaged name, or where a model is stored."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from interlock.core.checkpoint import describe_model, open_model
from interlock.core.closest import unknown_name
from interlock.core.errors import CheckpointError
from interlock.core.model import ModelDescription
from interlock.core.model_files import ModelFiles, ModelFormat
from interlock.core.registry import Registry
from interlock.core.settings import AUTO, EngineConfig


def describe_models(config: EngineConfig, registry: Registry) -> list[ModelDescription]:
    """The model that `config` names, or every shipped one for `model=auto`.

    Raises CheckpointError when it cannot be found, read or served.
    """
    families, formats = list(registry.families.values()), list(registry.formats.values())
    names = shipped_models() if config.model == AUTO else [config.model]
    return [describe_model(find_model(name, formats), families) for name in names]


def shipped_models() -> dict[str, Path]:
    """Name -> directory of every model that is installed with Interlock."""
    spec = importlib.util.find_spec("interlock.models")
    roots = spec.submodule_search_locations if spec else None
    return {
        config.parent.name: config.parent
        for root in roots or ()
        for config in sorted(Path(root).glob("*/config.json"))
    }


def find_model(name_or_path: str, formats: Sequence[ModelFormat]) -> ModelFiles:
    """The model of a shipped or packaged name, or in this directory or file.

    Raises CheckpointError with the closest name when there is neither.
    """
    shipped = shipped_models()
    for form in formats:
        if name_or_path in form.models:
            return form.named(name_or_path)
    path = shipped.get(name_or_path, Path(name_or_path).expanduser())
    if path.exists():
        return open_model(path, formats)
    known = [*shipped, *(name for form in formats for name in form.models)]
    raise CheckpointError(
        f"model={name_or_path}: {unknown_name('model', name_or_path, known)}; "
        "and no directory or file of this name"
    )
