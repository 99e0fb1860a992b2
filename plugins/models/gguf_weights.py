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
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)
"""Modules of Hugging Face's models; gguf says what its architectures call them."""
QUERIES, KEYS = ".self_attn.q_proj.", ".self_attn.k_proj."


class Place(NamedTuple):
    """Where a parameter is stored, and what is done to its rows.

    `pairs` heads, if any, have their rows in pairs (2i, 2i+1); the decoder wants (i, i + D/2).
    """

    tensor: str
    pairs: int = 0


class GGUFWeights(WeightSource):
    """A GGUF file's tensors. Names that gguf's map does not know stay as they are in the file."""

    def __init__(self, file: GGUFFile, layout: Layout, config: dict[str, Any]) -> None:
        super().__init__(str(file.path))
        self._file = file
        self._places = _places(file, layout, config)

    def names(self) -> frozenset[str]:
        """Every tensor but rope_freqs, which config.json holds."""
        placed = {place.tensor for place in self._places.values()}
        return frozenset(self._places) | (self._file.tensors.keys() - placed - {ROPE_FREQS})

    def has(self, name: str) -> bool:
        """True when the file holds it."""
        return name in self._places

    def shape(self, name: str) -> Shape | None:
        """The shape in the file's table."""
        stored = self._stored(name)
        return stored.shape if stored else None

    def read(
        self, name: str, shape: Shape, dtype: torch.dtype, device: torch.device, part: Part = ()
    ) -> Tensor:
        """The part, dequantised in fp32 a few rows at a time: memory is bounded by the result."""
        place = self._places[name]
        rows_R = _row_order(shape[0], place.pairs)
        rows_R = rows_R[part[0]] if part else rows_R
        result = torch.empty(part_shape(shape, part), dtype=dtype, device=device)
        step = max(1, CHUNK_VALUES // prod(shape[1:]))
        for first in range(0, len(rows_R), step):
            values = read_rows(self._file, place.tensor, rows_R[first : first + step])
            chunk = torch.from_numpy(values)[(slice(None), *part[1:])]
            result[first : first + step].copy_(chunk)
        return result

    def _stored(self, name: str) -> StoredTensor | None:
        place = self._places.get(name)
        return self._file.tensors.get(place.tensor if place else name)


def read_rows(file: GGUFFile, tensor: str, chosen: Array) -> Array:
    """These rows of a stored tensor, in fp32 or wider; of a vector, these entries.

    Raises CheckpointError for a type that gguf cannot dequantise.
    """
    gguf, stored = gguf_package(), file.tensors[tensor]
    kind = gguf.GGMLQuantizationType(stored.kind)
    data = np.memmap(file.path, np.uint8, "r", stored.offset, (stored.num_bytes,))
    vector = len(stored.shape) == 1
    taken = np.asarray(data[None] if vector else data.reshape(stored.shape[0], -1)[chosen])
    try:
        if kind == gguf.GGMLQuantizationType.F64:
            values = taken.view(np.float64)
        else:
            values = gguf.quants.dequantize(taken, kind)
    except NotImplementedError as error:
        raise CheckpointError(
            f"{file.path}: tensor {tensor} is stored as {kind.name}, which gguf does not dequantise"
        ) from error
    values = values[0][chosen] if vector else values.reshape(-1, *stored.shape[1:])
    return np.require(values, requirements="W")


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
    places = {}
    for module in modules:
        for suffix in (".weight", ".bias"):
            stored, name = f"{known.get_name(module)}{suffix}", f"{module}{suffix}"
            if stored in file.tensors:
                places[name] = Place(stored, _pairs(name, layout, config))
    return places


def _pairs(name: str, layout: Layout, config: dict[str, Any]) -> int:
    """How many heads' rows are in pairs."""
    heads = config["num_attention_heads"]
    if not layout.permuted or not (QUERIES in name or KEYS in name):
        return 0
    return int(heads if QUERIES in name else config.get("num_key_value_heads", heads))
