"""What an EAGLE-3 head's config.json says, in each published form. No torch.

SafeAILab and SpecForge write one flat file, the tap layers and norms flat or under `eagle_config`;
speculators (vLLM) keeps the layer's sizes under `transformer_layer_config`. All count tap layers as
inputs (see conventions).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from interlock.core.model import ModelDescription
from interlock.plugins.speculative.heads.conventions import eagle3_taps, taps_of_inputs
from interlock.plugins.speculative.heads.fields import Fields, LayerShape, read_layer

TAPS = "eagle_aux_hidden_state_layer_ids"


@dataclass(frozen=True)
class Eagle3Fields:
    """A head's sizes and variants. `as_wide`: its hidden size is the target's."""

    shape: LayerShape
    taps: tuple[int, ...]
    vocab_size: int
    draft_vocab: int
    target_hidden: int
    max_positions: int
    norm_before_residual: bool
    norm_before_fc: bool
    fc_norm: bool
    norm_output: bool
    source: str

    @property
    def as_wide(self) -> bool:
        """Whether the target's embedding and head fit."""
        return self.shape.hidden == self.target_hidden

    @staticmethod
    def prefix(names: Collection[str]) -> str:
        """What the layer's tensors are called: `midlayer.` (EAGLE, SpecForge), or `layers.0.`."""
        return "layers.0." if any(n.startswith("layers.0.") for n in names) else "midlayer."


def read_eagle3(config: Mapping[str, Any], target: ModelDescription, source: str) -> Eagle3Fields:
    """The fields, checked against the target; CheckpointError with every problem."""
    fields = Fields(config, source)
    nested = [config.get(key) for key in ("transformer_layer_config", "eagle_config")]
    layer_group, eagle_group = (group if isinstance(group, Mapping) else {} for group in nested)
    layer = fields.inside({**config, **layer_group})
    eagle = fields.inside({**config, **eagle_group})
    layer.only("num_hidden_layers", 1)
    layer.only("use_sliding_window", False, None)
    shape = read_layer(layer, target, own_width=True)
    target_hidden = target.hidden_size
    if config.get("target_hidden_size") is not None:
        fields.same("target_hidden_size", config["target_hidden_size"], target_hidden, target)
    vocab_size = layer.integer("vocab_size")
    fields.same("vocab_size", vocab_size, target.vocab_size, target)
    draft_vocab = fields.integer("draft_vocab_size", vocab_size)
    if draft_vocab > vocab_size:
        fields.problems.append(f"draft_vocab_size={draft_vocab} is more than {vocab_size=}")
    stated = Eagle3Fields(
        shape=shape,
        taps=_taps(eagle, target),
        vocab_size=vocab_size,
        draft_vocab=draft_vocab,
        target_hidden=target_hidden,
        max_positions=layer.integer("max_position_embeddings", target.max_positions),
        norm_before_residual=eagle.flag("norm_before_residual"),
        norm_before_fc=eagle.flag("norm_before_fc"),
        fc_norm=eagle.flag("fc_norm"),
        norm_output=eagle.flag("norm_output"),
        source=source,
    )
    if stated.norm_before_fc and stated.fc_norm:
        fields.problems.append("norm_before_fc and fc_norm are both true: taps are normed once")
    fields.finish()
    return stated


def _taps(eagle: Fields, target: ModelDescription) -> tuple[int, ...]:
    ids = eagle.config.get(TAPS)
    try:
        if ids is None:
            return eagle3_taps(target.num_layers)
        if not isinstance(ids, list):
            raise ValueError(f"{TAPS}={ids!r} is not a list of layers")
        return taps_of_inputs(ids, target.num_layers, TAPS)
    except ValueError as error:
        advice = (
            f"; {TAPS} is not stated, which a head for few layers must do" if ids is None else ""
        )
        eagle.problems.append(f"{error}{advice}")
        return (0,)
