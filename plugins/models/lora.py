"""LoRA adapters as PEFT saves them (arXiv 2106.09685): y = W x + scale B A x, by token.

adapter_model.safetensors holds base_model.model.<module>.lora_A.weight [R, inputs] and
lora_B.weight [outputs, R]; scale = lora_alpha / r, or lora_alpha / sqrt(r) with use_rslora.
Legend: T tokens, N tokens of one adapter, E inputs, F outputs, R rank.
"""

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from interlock.core.adapters import FILES, AdapterSet
from interlock.core.errors import CheckpointError
from interlock.plugins.models.fields import Fields
from interlock.plugins.models.hugging_face import HuggingFaceDirectory
from interlock.plugins.models.row_tiles import Rows
from interlock.plugins.models.safetensors import SafetensorsDirectory

ROOT = "base_model.model."
PLAIN: dict[str, Any] = {
    "peft_type": "LORA", "bias": "none", "use_dora": False, "fan_in_fan_out": False,
    "modules_to_save": None, "trainable_token_indices": None, "lora_bias": False,
    "use_qalora": False, "alora_invocation_tokens": None, "arrow_config": None,
    "target_parameters": None, "layer_replication": None, "use_bdlora": None, "kasa_config": None,
    "monteclora_config": None,
}  # fmt: skip
"""Fields that must have this value: otherwise the adapter is not a plain low-rank product."""
KEPT_WEIGHTS = (True, False, "gaussian", "orthogonal", "eva")
"""`init_lora_weights` that leave the model's own weights as they are; PiSSA, OLoRA, CorDA, LoftQ
and LoRA-GA subtract the first product from them, which the adapter's files do not show."""


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
        started = self._config.get("init_lora_weights", True)
        fields.require(
            started in KEPT_WEIGHTS,
            f"init_lora_weights={started!r}: the adapter belongs to changed weights of the model; "
            "save it with path_initial_model_for_weight_conversion",
        )
        self._ranks = _patterns(fields, "rank_pattern", whole=True)
        self._alphas = _patterns(fields, "alpha_pattern")
        fields.require(bool(self.weights.names()), f"{FILES[1]} holds no tensors")
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
        rank, alpha = _of(module, self._ranks, self._rank), _of(module, self._alphas, self._alpha)
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
                f"{self._title} does not fit the model; adapters add to the layers' linear "
                "projections, but not to kv_b_proj (which attention takes apart), routers, fused "
                f"experts, the embedding or the output matrix. {error}"
            ) from error


Patterns = list[tuple[re.Pattern[str], float]]


def _patterns(fields: Fields, key: str, whole: bool = False) -> Patterns:
    """PEFT's rank_pattern and alpha_pattern: regular expressions at the end of a module's name."""
    stated = fields.config.get(key) or {}
    kinds = (int,) if whole else (int, float)
    try:
        compiled = [(re.compile(rf"(.*\.)?({one})$"), number) for one, number in stated.items()]
    except (AttributeError, re.error):
        compiled = [(re.compile(""), 0)]
    if all(type(number) in kinds and 0 < number <= sys.float_info.max for _, number in compiled):
        return compiled
    numbers = "integers" if whole else "numbers"
    fields.require(
        False, f"{key}={stated!r:.100} does not map regular expressions to {numbers} > 0"
    )
    return []


def _of(module: str, patterns: Patterns, default: float) -> float:
    return next((number for pattern, number in patterns if pattern.match(module)), default)


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
