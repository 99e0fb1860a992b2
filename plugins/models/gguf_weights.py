"""The tensors of a GGUF file under Hugging Face's names, dequantised as they are taken."""

from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from interlock.core.errors import CheckpointError
from interlock.core.weights import Part, Shape, WeightSource, part_shape
from interlock.plugins.models.gguf_config import ROPE_FREQS, Layout
from interlock.plugins.models.gguf_file import GGUFFile, StoredTensor, gguf_package

Array = np.ndarray[Any, np.dtype[Any]]
CHUNK_VALUES = 1 << 22
"""Most values that are dequantised at a time: 16 MiB in fp32."""
WHOLE = ("model.embed_tokens", "model.norm", "lm_head")
IN_LAYER = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "self_attn.q_norm",
    "self_attn.k_norm",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
    "mlp.gate",
    "mlp.shared_expert.gate_proj",
    "mlp.shared_expert.up_proj",
    "mlp.shared_expert.down_proj",
    "mlp.shared_expert_gate",
    "mlp.experts.gate_proj",
    "mlp.experts.up_proj",
    "mlp.experts.down_proj",
)
"""Modules of Hugging Face's models; gguf says what its architectures call them."""
QUERIES, KEYS, EXPERTS, ONE_ROW = "self_attn.q_proj", "self_attn.k_proj", ".experts.", "expert_gate"


class Place(NamedTuple):
    """Where a parameter is stored, and what is done to its rows."""

    tensor: str
    shape: Shape
    first: int = 0
    """Rows of the stored tensor that come before: those of other experts."""
    pairs: int = 0
    """Heads, if any, whose rows are in pairs (2i, 2i+1); the decoder wants (i, i + D/2)."""
    offset: float = 0.0
    """Taken off the stored values."""


class GGUFWeights(WeightSource):
    """A GGUF file's tensors. Names that gguf's map does not know stay as they are in the file."""

    def __init__(self, file: GGUFFile, layout: Layout, config: dict[str, Any]) -> None:
        super().__init__(str(file.path))
        self._file = file
        try:
            self._places = _places(file, layout, config)
        except CheckpointError as error:
            raise CheckpointError(f"{file.path}: {error}") from error

    def names(self) -> frozenset[str]:
        """Every tensor but rope_freqs, which config.json holds."""
        placed = {place.tensor for place in self._places.values()}
        return frozenset(self._places) | (self._file.tensors.keys() - placed - {ROPE_FREQS})

    def has(self, name: str) -> bool:
        """True when the file holds it."""
        return name in self._places

    def shape(self, name: str) -> Shape | None:
        """The shape in the file's table."""
        if name in self._places:
            return self._places[name].shape
        stored = self._file.tensors.get(name)
        return stored.shape if stored else None

    def read(
        self, name: str, shape: Shape, dtype: torch.dtype, device: torch.device, part: Part = ()
    ) -> Tensor:
        """The part, dequantised in fp32 a few rows at a time: memory is bounded by the result."""
        place = self._places[name]
        rows_R = place.first + _row_order(shape[0], place.pairs)
        rows_R = rows_R[part[0]] if part else rows_R
        result = torch.empty(part_shape(shape, part), dtype=dtype, device=device)
        columns = prod(shape[1:])
        step = max(1, CHUNK_VALUES // columns)
        for first in range(0, len(rows_R), step):
            values = read_rows(self._file, place.tensor, rows_R[first : first + step], columns)
            values = (values - values.dtype.type(place.offset)).reshape(-1, *shape[1:])
            chunk = torch.from_numpy(values)[(slice(None), *part[1:])]
            result[first : first + step].copy_(chunk)
        return result


def read_rows(file: GGUFFile, tensor: str, chosen: Array, columns: int) -> Array:
    """[chosen, columns], in fp32 or wider, of a tensor seen as one matrix with so many columns.

    Raises CheckpointError for a type that gguf cannot dequantise.
    """
    gguf, stored = gguf_package(), file.tensors[tensor]
    kind = gguf.GGMLQuantizationType(stored.kind)
    data = np.memmap(file.path, np.uint8, "r", stored.offset, (stored.num_bytes,))
    vector = len(stored.shape) == 1  # whole: its rows may be shorter than a block
    taken = np.asarray(data[None] if vector else data.reshape(-1, _row_bytes(stored))[chosen])
    try:
        if kind == gguf.GGMLQuantizationType.F64:
            values = taken.view(np.float64)
        else:
            values = gguf.quants.dequantize(taken, kind)
    except NotImplementedError as error:
        raise CheckpointError(
            f"{file.path}: tensor {tensor} is stored as {kind.name}, which gguf does not dequantise"
        ) from error
    values = values.reshape(-1, columns)
    return values[chosen] if vector else values


def _row_bytes(stored: StoredTensor) -> int:
    return stored.num_bytes // prod(stored.shape[:-1])


def _row_order(rows: int, pairs: int) -> Array:
    """Where each row of the result lies in the file."""
    order_R = np.arange(rows)
    if not pairs:
        return order_R
    return order_R.reshape(pairs, -1, 2).swapaxes(1, 2).reshape(-1)


def _places(file: GGUFFile, layout: Layout, config: dict[str, Any]) -> dict[str, Place]:
    """Hugging Face's name -> place, for every stored tensor that gguf's map knows."""
    gguf = gguf_package()
    named = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    layers = config["num_hidden_layers"]
    known = gguf.get_tensor_name_map(named[file.metadata["general.architecture"]], layers)
    modules = [*WHOLE, *(f"model.layers.{n}.{name}" for n in range(layers) for name in IN_LAYER)]
    places: dict[str, Place] = {}
    for module in modules:
        for suffix in ("weight", "bias"):
            stored = f"{known.get_name(module)}.{suffix}"
            if stored in file.tensors:
                shape = file.tensors[stored].shape
                places |= _placed(module, suffix, stored, shape, layout, config)
    return places


def _placed(
    module: str, suffix: str, stored: str, shape: Shape, layout: Layout, config: dict[str, Any]
) -> dict[str, Place]:
    """One parameter, or one of each expert."""
    if EXPERTS in module and len(shape) > 1:
        before, part = module.split(EXPERTS)
        return {
            f"{before}{EXPERTS}{index}.{part}.{suffix}": Place(stored, shape[1:], index * shape[1])
            for index in range(shape[0])
        }
    if module.endswith(ONE_ROW) and len(shape) == 1:
        shape = (1, *shape)
    heads = {QUERIES: "num_attention_heads", KEYS: "num_key_value_heads"}
    count = next((heads[name] for name in heads if module.endswith(name)), None)
    pairs = config.get(count, config["num_attention_heads"]) if count and layout.permuted else 0
    if pairs and shape[0] % (2 * pairs):
        raise CheckpointError(f"{stored} {list(shape)} has no {pairs} heads of pairs of rows")
    offset = layout.norm_offset if module.endswith("norm") else 0.0
    return {f"{module}.{suffix}": Place(stored, shape, pairs=pairs, offset=offset)}
