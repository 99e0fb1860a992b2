"""LoRA adapters as PEFT saves them (arXiv 2106.09685): y = W x + scale B A x, by token.

adapter_model.safetensors holds base_model.model.<module>.lora_A.weight [R, inputs] and
lora_B.weight [outputs, R]; scale = lora_alpha / r, or lora_alpha / sqrt(r) with use_rslora.
Legend: T tokens, N tokens of one adapter, E inputs, F outputs, R rank.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from interlock.core.adapters import FILES, AdapterSet
from interlock.core.errors import CheckpointError
from interlock.core.model_files import HuggingFaceDirectory
from interlock.core.weights import SafetensorsDirectory
from interlock.plugins.models.fields import Fields
from interlock.plugins.models.row_tiles import Rows

ROOT = "base_model.model."
PLAIN: dict[str, Any] = {
    "peft_type": "LORA", "bias": "none", "use_dora": False, "fan_in_fan_out": False,
    "modules_to_save": None, "trainable_token_indices": None, "lora_bias": False,
    "use_qalora": False, "alora_invocation_tokens": None, "arrow_config": None,
    "target_parameters": None, "layer_replication": None,
}  # fmt: skip
"""Fields that must have this value: otherwise the adapter is not a plain low-rank product."""


Axis = tuple[int, slice]
"""Its whole size, and a rank's part of it."""


class LowRank(NamedTuple):
    """One adapter's term for some outputs of a layer; the scale is in B."""

    outputs: slice
    a_RE: Tensor
    b_FR: Tensor


class AdapterFile:
    """The tensors of one adapter, each taken once."""

    def __init__(self, name: str, directory: Path) -> None:
        self._config = HuggingFaceDirectory(directory).json(FILES[0]) or {}
        self._title = f"adapter {name} ({directory})"
        self.weights = SafetensorsDirectory(directory, FILES[1])
        fields = Fields(self._config)
        self._rank, self._alpha = fields.integer("r"), fields.number("lora_alpha", 8)
        self._rooted = fields.flag("use_rslora", False)
        for key, plain in PLAIN.items():
            stated = self._config.get(key, plain)
            empty = plain in (None, False) and not stated
            fields.require(empty or stated == plain, f"{key}={stated!r} is not served")
        if fields.problems:
            raise CheckpointError(f"{self._title}: {'; '.join(fields.problems)}")

    def term(
        self, module: str, rows: Axis, columns: Axis, outputs: slice, dtype: torch.dtype,
        device: torch.device,
    ) -> LowRank | None:  # fmt: skip
        """The term of a module [rows, columns] for a rank's slices of both, if it has one."""
        names = [f"{ROOT}{module}.lora_{part}.weight" for part in "AB"]
        if not any(self.weights.has(name) for name in names):
            return None
        rank = self._of_pattern("rank_pattern", module, self._rank)
        alpha = self._of_pattern("alpha_pattern", module, self._alpha)
        scale = alpha / (rank**0.5 if self._rooted else rank)
        whole = slice(None)
        a_RE = self.weights.take(
            names[0], (int(rank), columns[0]), dtype, device, (whole, columns[1])
        )
        b_FR = self.weights.take(names[1], (rows[0], int(rank)), dtype, device, (rows[1], whole))
        return LowRank(outputs, a_RE, b_FR * scale)

    def finish(self) -> None:
        """Raise CheckpointError with every tensor that no layer of the model has taken."""
        try:
            self.weights.finish()
        except CheckpointError as error:
            raise CheckpointError(
                f"{self._title} does not fit the model; only the layers' linear projections take "
                f"adapters. {error}"
            ) from error

    def _of_pattern(self, key: str, module: str, default: float) -> float:
        """PEFT's rank_pattern and alpha_pattern: regular expressions at the end of a name."""
        patterns: Mapping[str, float] = self._config.get(key) or {}
        for pattern, value in patterns.items():
            if re.match(rf"(.*\.)?({pattern})$", module):
                return value
        return default


class Lora:
    """The low-rank terms of every adapter for the layers of one decoder."""

    def __init__(self, adapters: AdapterSet) -> None:
        self.adapters = adapters
        named = zip(adapters.names, adapters.directories, strict=True)
        self.files = [AdapterFile(name, directory) for name, directory in named]

    def leave(self, pattern: str) -> None:
        """Modules of this shell pattern belong to other ranks."""
        for file in self.files:
            file.weights.leave(f"{ROOT}{pattern}")

    def finish(self) -> None:
        """Every tensor of every adapter has found its layer."""
        for file in self.files:
            file.finish()
        self.adapters.served = True


class Terms:
    """What the adapters add to one layer."""

    def __init__(self, adapters: AdapterSet, of: Mapping[int, list[LowRank]]) -> None:
        self._adapters = adapters
        self._of = dict(of)

    def add(self, x_TE: Tensor, y_TF: Tensor, rows: Rows) -> None:
        """Add each token's terms to `y_TF` in place."""
        for number, token_N in self._adapters.active:
            for low in self._of.get(number, ()):
                low_NR = rows.linear(x_TE[token_N], low.a_RE)
                y_TF[token_N, low.outputs] += rows.linear(low_NR, low.b_FR)

    def reorder(self, order: Tensor) -> None:
        """Follow a permutation of the layer's outputs; each term covers all of them."""
        for number, terms in self._of.items():
            self._of[number] = [low._replace(b_FR=low.b_FR[order]) for low in terms]
