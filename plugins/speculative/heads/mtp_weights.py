"""How checkpoints name the tensors of multi-token-prediction layers, read as one-layer decoders.

DeepSeek-V3 stores them behind the target's layers, as model.layers.61.* with eh_proj, enorm, hnorm
and shared_head (arXiv 2412.19437; github.com/deepseek-ai/DeepSeek-V3, README_WEIGHTS). Qwen3-Next
has them under mtp.*, where everything but the decoder layers is shared. No torch network here.
"""

import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from interlock.core.errors import CheckpointError
from interlock.core.weights import Part, Shape, WeightSource

AROUND = (
    "enorm.weight", "hnorm.weight", "eh_proj.weight", "shared_head.norm.weight",
    "shared_head.head.weight", "embed_tokens.weight",
)  # fmt: skip
"""DeepSeek-V3's names of what stands around the decoder layer."""
QWEN = {
    "enorm.weight": "mtp.pre_fc_norm_embedding.weight",
    "hnorm.weight": "mtp.pre_fc_norm_hidden.weight",
    "eh_proj.weight": "mtp.fc.weight",
    "shared_head.norm.weight": "mtp.norm.weight",
    "shared_head.head.weight": "mtp.lm_head.weight",
    "embed_tokens.weight": "mtp.embed_tokens.weight",
}
LAYER = "model.layers.0."
"""Where a decoder of one layer finds its layer."""


class LayerWeights(WeightSource):
    """One MTP layer: its decoder layer is layer 0 of a model, the rest has DeepSeek-V3's names.

    The vocabulary of that model is one token, for its tables are the target's: `made` has them, and
    the final norm, which `shared_head.norm` is applied in place of.
    """

    def __init__(self, source: WeightSource, stored: Mapping[str, str], hidden: int) -> None:
        """`stored` says how the source names each tensor."""
        super().__init__(source.title)
        self.stored, self._source = stored, source
        self._made = {
            "model.embed_tokens.weight": torch.zeros(1, hidden),
            "model.norm.weight": torch.ones(hidden),
        }

    @property
    def sparse(self) -> bool:
        """Whether its MLP has experts."""
        return any(
            name.startswith((f"{LAYER}mlp.gate.", f"{LAYER}mlp.experts.")) for name in self.stored
        )

    def names(self) -> frozenset[str]:
        """Of this layer alone."""
        return frozenset(self.stored) | frozenset(self._made)

    def shape(self, name: str) -> Shape | None:
        """As stored."""
        if name in self._made:
            return tuple(self._made[name].shape)
        return self._source.shape(self.stored[name]) if name in self.stored else None

    def read(
        self, name: str, shape: Shape, dtype: torch.dtype, device: torch.device, part: Part = ()
    ) -> Tensor:
        """As stored."""
        if name in self._made:
            made = self._made[name][part] if part else self._made[name]
            return made.to(dtype=dtype, device=device, copy=True)
        return self._source.read(self.stored[name], shape, dtype, device, part)


def mtp_layers(weights: WeightSource, first: int, hidden: int, own: bool) -> list[LayerWeights]:
    """Every MTP layer of a source, in order; `first` is the target's number of layers.

    `own`: the source has nothing else, so other tensors are mistakes, and layers may have any
    number (SGLang's exports start at 0). Raises CheckpointError, also where there is no layer.
    """
    found = _deepseek(weights.names(), 0 if own else first) or _qwen(weights.names())
    if not found:
        stored = ", ".join(sorted(weights.names())[:4]) or "nothing"
        raise CheckpointError(
            f"{weights.title}: no MTP layer: neither model.layers.{first}.eh_proj.weight nor "
            f"mtp.fc.weight is stored; {stored} is"
        )
    known = {name for layer in found for name in layer.values()}
    if own and (unexpected := sorted(weights.names() - known)):
        raise CheckpointError(
            f"{weights.title}: unexpected ({len(unexpected)}): {'; '.join(unexpected)}"
        )
    return [LayerWeights(weights, stored, hidden) for stored in found]


def _deepseek(names: frozenset[str], first: int) -> list[dict[str, str]]:
    numbers = sorted(
        int(match[1])
        for name in names
        if (match := re.fullmatch(r"model\.layers\.(\d+)\.eh_proj\.weight", name))
    )
    return [_under(names, f"model.layers.{n}.", AROUND) for n in numbers if n >= first]


def _qwen(names: frozenset[str]) -> list[dict[str, str]]:
    if QWEN["eh_proj.weight"] not in names:
        return []
    around = {ours: stored for ours, stored in QWEN.items() if stored in names}
    numbers = {
        int(match[1]) for name in names if (match := re.match(r"mtp\.layers\.(\d+)\.", name))
    }
    return [around | _under(names, f"mtp.layers.{n}.", ()) for n in sorted(numbers)]


def _under(names: frozenset[str], prefix: str, around: Sequence[str]) -> dict[str, str]:
    """Our name of every tensor under a prefix."""
    short = {name.removeprefix(prefix): name for name in names if name.startswith(prefix)}
    return {name if name in around else LAYER + name: stored for name, stored in short.items()}
