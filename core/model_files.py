"""A model on disk: what a plugin's format reads as if it were a Hugging Face directory."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from interlock.core.errors import CheckpointError

if TYPE_CHECKING:
    from interlock.core.weights import WeightSource


class ModelFiles(ABC):
    """Config, tokenizer and templates under Hugging Face's file names, and the weights."""

    path: Path
    """The directory or file that the model is; errors name it."""

    @property
    @abstractmethod
    def directory(self) -> Path:
        """Where files that accompany the model lie (a draft head, a text for workloads)."""

    @abstractmethod
    def text(self, name: str) -> str | None:
        """The content of config.json, tokenizer.json and so on; None where there is none.

        Raises CheckpointError, naming the file, when it cannot be read.
        """

    @abstractmethod
    def weights(self) -> "WeightSource":
        """The tensors under Hugging Face's names. CheckpointError names a broken file."""

    @abstractmethod
    def stored(self) -> Sequence[Path]:
        """The files that config and weights are read from."""

    @abstractmethod
    def header(self, file: Path) -> bytes:
        """The part of a stored file that describes its tensors; a file without tensors whole."""

    def where(self, name: str) -> str:
        """How errors call the file of this name."""
        return f"{self.path} ({name})"

    def identity(self) -> str:
        """Different for models whose cached rows must not be shared."""
        return str(self.path)

    def json(self, name: str) -> dict[str, Any] | None:
        """The JSON object in the file of this name; None where there is none."""
        text = self.text(name)
        return None if text is None else json_object(text, self.where(name))


class ModelFormat(ABC):
    """A way to store a model, contributed by a plugin."""

    name: str
    models: Mapping[str, str] = MappingProxyType({})
    """What `model=` may name, because a package carries it, and what that is."""

    @abstractmethod
    def open(self, path: Path) -> ModelFiles | None:
        """The model in this file or directory; None when it is not in this format.

        Raises CheckpointError, naming the file, when it is but cannot be read.
        """

    def named(self, model: str) -> ModelFiles:
        """The model of a name in `models`. CheckpointError says what to install."""
        raise NotImplementedError(f"{type(self).__name__} names models but finds none")


def json_object(text: str, where: str) -> dict[str, Any]:
    """The JSON object in a text. Raises CheckpointError that names the file and the place."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{where}: cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{where}: holds a {type(value).__name__}, not an object")
    return value
