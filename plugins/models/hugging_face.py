"""Models as `save_pretrained` writes them: a directory with config.json and safetensors."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from interlock.core.errors import CheckpointError
from interlock.core.model_files import ModelFiles, ModelFormat

if TYPE_CHECKING:
    from interlock.core.weights import WeightSource


@dataclass(frozen=True)
class HuggingFaceDirectory(ModelFiles):
    """config.json, safetensors, tokenizer.json and the rest, as `save_pretrained` writes them."""

    path: Path

    @property
    def directory(self) -> Path:
        """The directory itself."""
        return self.path

    def text(self, name: str) -> str | None:
        """The file's text."""
        file = self.path / name
        if not file.is_file():
            return None
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            kind = "JSON" if name.endswith(".json") else "text"
            raise CheckpointError(f"{file}: cannot be read as {kind}: {error}") from error

    def weights(self) -> "WeightSource":
        """The safetensors files."""
        from interlock.plugins.models.safetensors import SafetensorsDirectory  # with torch

        return SafetensorsDirectory(self.path)

    def stored(self) -> Sequence[Path]:
        """config.json and the safetensors files."""
        files = [self.path / "config.json", *sorted(self.path.glob("*.safetensors"))]
        return [file for file in files if file.is_file()]

    def header(self, file: Path) -> bytes:
        """config.json whole; of safetensors the header (its length is the first 8 bytes)."""
        with file.open("rb") as opened:
            if file.suffix == ".json":
                return opened.read()
            length = opened.read(8)
            return length + opened.read(int.from_bytes(length, "little"))

    def where(self, name: str) -> str:
        """The file's path."""
        return str(self.path / name)


class HuggingFaceFormat(ModelFormat):
    """Directories with a config.json."""

    name = "a directory with config.json"

    def open(self, path: Path) -> ModelFiles | None:
        """The model of a directory."""
        return HuggingFaceDirectory(path) if (path / "config.json").is_file() else None
