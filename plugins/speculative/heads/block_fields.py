"""The config.json of a block drafter, in every layout that is published. No torch.

z-lab and DeepSpec write flat fields, newer z-lab files and SpecForge put those of the block into
`dflash_config`, speculators keep the layer's sizes in `transformer_layer_config`. A field is looked
for in `dflash_config`, then at the top, then in `transformer_layer_config`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from interlock.core.errors import CheckpointError
from interlock.core.model import ModelDescription
from interlock.plugins.speculative.heads.conventions import (
    spread_taps,
    taps_of_inputs,
    taps_of_outputs,
)
from interlock.plugins.speculative.heads.fields import Fields, LayerShape, read_layer

INPUT_IDS = ("aux_hidden_state_layer_ids", "eagle_aux_hidden_state_layer_ids")


@dataclass(frozen=True)
class BlockShape:
    """Sizes of a block drafter.

    A block has `slots` rows: the anchor, then mask tokens. With `from_anchor` slot j predicts the
    token after its own position, and a block makes as many candidates as it has slots; else slot j
    >= 1 predicts the token at its own position. Embeddings are multiplied by `embedding_scale`,
    logits by `logit_scale`; `softcap` c turns a logit x into c tanh(x / c).
    """

    layer: LayerShape
    num_layers: int
    slots: int
    mask_token: int
    taps: tuple[int, ...]
    from_anchor: bool
    vocab_size: int
    draft_vocab_size: int
    max_positions: int
    embedding_scale: float
    logit_scale: float
    softcap: float | None

    @property
    def num_drafts(self) -> int:
        """Candidates that a block makes."""
        return self.slots if self.from_anchor else self.slots - 1


def block_fields(config: Mapping[str, Any], source: str) -> Fields:
    """The fields of a config.json, wherever its layout has them."""
    groups = []
    for name in ("transformer_layer_config", "dflash_config"):
        group = config.get(name) or {}
        if not isinstance(group, Mapping):
            raise CheckpointError(f"{source}: {name}={group!r} is not a group of fields")
        groups.append(group)
    return Fields({**groups[0], **config, **groups[1]}, source)


def read_block(fields: Fields, target: ModelDescription, from_anchor: bool) -> BlockShape:
    """The sizes, checked against the target's; `from_anchor` is what holds if it is not said.

    Problems go to `fields`; call its `finish`.
    """
    layer, num_layers = read_layer(fields, target), fields.integer("num_hidden_layers")
    fields.only("attention_bias", False)
    fields.only("is_causal", False, None)
    others = sorted(set(fields.config.get("layer_types") or ()) - {"full_attention"})
    if others:
        fields.problems.append(
            f"layer_types has {', '.join(others)}: only full_attention is supported"
        )
    vocab_size = fields.integer("vocab_size")
    fields.same("vocab_size", vocab_size, target.vocab_size, target)
    if fields.config.get("num_target_layers") is not None:
        stated = fields.integer("num_target_layers")
        fields.same("num_target_layers", stated, target.num_layers, target)
    mask_token = fields.integer("mask_token_id", least=0)
    if mask_token >= target.vocab_size:
        fields.problems.append(
            f"mask_token_id={mask_token} is outside the vocabulary 0 .. {target.vocab_size - 1}"
        )
    softcap = fields.config.get("final_logit_softcapping")
    from_anchor = fields.flag("sample_from_anchor", from_anchor)
    return BlockShape(
        layer=layer,
        num_layers=num_layers,
        slots=fields.integer("block_size", least=1 if from_anchor else 2),
        mask_token=mask_token,
        taps=_taps(fields, num_layers, target.num_layers),
        from_anchor=from_anchor,
        vocab_size=vocab_size,
        draft_vocab_size=fields.integer("draft_vocab_size", vocab_size),
        max_positions=fields.integer("max_position_embeddings", target.max_positions),
        embedding_scale=fields.number("input_embedding_scale", 1.0),
        logit_scale=fields.number("output_multiplier", 1.0),
        softcap=fields.number("final_logit_softcapping", 1.0) if softcap else None,
    )


def _taps(fields: Fields, num_layers: int, target_layers: int) -> tuple[int, ...]:
    """Outputs of the target's layers that it reads, whichever way they are counted."""
    try:
        if fields.config.get("target_layer_ids") is not None:
            return taps_of_outputs(
                fields.config["target_layer_ids"], target_layers, "target_layer_ids"
            )
        for key in INPUT_IDS:
            if fields.config.get(key) is not None:
                return taps_of_inputs(fields.config[key], target_layers, key)
        return spread_taps(num_layers, target_layers)
    except (TypeError, ValueError) as error:
        fields.problems.append(str(error))
        return (0,)
