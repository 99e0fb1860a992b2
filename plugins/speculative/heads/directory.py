"""Where a trained head is found, and what is said where it is missing. No torch.

A head is a directory with config.json and model.safetensors: `spec.path`, or the directory of its
kind inside the model's.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from interlock.core.capabilities import Composition, Requirement, RunsModel, SimulatesDrafts
from interlock.core.component import BuildContext
from interlock.core.errors import ConfigError
from interlock.core.model import ModelDescription
from interlock.core.model_files import ModelFiles

FILES = ("config.json", "model.safetensors")


class HasPath(Protocol):
    """Options of a drafter whose network is read from a directory."""

    @property
    def name(self) -> str:
        """The component's name."""

    @property
    def path(self) -> str | None:
        """The directory that the user named."""


def head_directory(config: HasPath, model: ModelDescription | None, kind: str) -> Path | None:
    """Where the head of this kind is expected; None for a model without a directory."""
    if config.path is not None:
        return Path(config.path).expanduser()
    return model.directory / kind if model and model.directory else None


def needs_a_head(
    config: HasPath, model: ModelDescription | None, kind: str
) -> Iterable[Requirement]:
    """Requirements of every drafter that runs a trained head: a real pass, and the head's files.

    `kind` is what `train_drafter` calls it, and its directory in the model's.
    """

    def a_forward_pass(composition: Composition) -> str | None:
        if composition.has(RunsModel()) or composition.has(SimulatesDrafts()):
            return None
        return (
            f"spec={config.name} drafts from the features of a real forward pass, or has its "
            "drafts simulated, and the executor does neither"
        )

    def a_head(composition: Composition) -> str | None:
        if not composition.has(RunsModel()):
            return None
        directory = head_directory(config, model, kind)
        if directory is None:
            return (
                f"spec={config.name} has no trained head: set spec.path, the model has no directory"
            )
        missing = [name for name in FILES if not (directory / name).is_file()]
        if not missing:
            return None
        if directory.exists() and not directory.is_dir():
            return (
                f"spec={config.name} has no trained head: {directory} is a file; set spec.path to "
                f"a directory with {' and '.join(FILES)}"
            )
        if (directory / "pytorch_model.bin").is_file() and missing == ["model.safetensors"]:
            return (
                f"spec={config.name} reads no pickled weights: {directory} has pytorch_model.bin; "
                "store its tensors with safetensors.torch.save_file as model.safetensors"
            )
        target = model.directory if model and model.directory else "MODEL"
        return (
            f"spec={config.name} has no trained head: {lack(directory, missing)}; "
            f"train one with `python -m interlock.models.recipe.train_drafter {kind} --target "
            f"{target} --out {directory}`, or set spec.path"
        )

    return (a_forward_pass, a_head)


def lack(directory: Path, missing: Sequence[str]) -> str:
    """Why these files are not found there."""
    if directory.is_dir():
        return f"{directory} lacks {' and '.join(missing)}"
    return f"{directory} does not exist"


def open_head(config: HasPath, context: BuildContext, kind: str) -> ModelFiles:
    """The head's files. ConfigError where there is no directory to look in, or no device."""
    from interlock.core.checkpoint import open_model

    directory = head_directory(config, context.model, kind)
    if directory is None:
        raise ConfigError("spec.path=null: the model has no directory that could hold a head")
    if context.dtype is None or context.device is None:
        raise ConfigError(f"spec={config.name} runs a network and needs a device and a dtype")
    return open_model(directory, context.formats)
