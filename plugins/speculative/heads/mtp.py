"""Drafts by multi-token-prediction layers (their network: mtp_network.py), and builds the drafter.

Legend: R requests in a pass, E hidden size.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from interlock.core.checkpoint import open_model
from interlock.core.component import BuildContext
from interlock.core.drafter import DraftContext
from interlock.core.errors import CheckpointError, ConfigError
from interlock.core.model import ModelDescription
from interlock.plugins.speculative.heads.chain import ChainDrafter
from interlock.plugins.speculative.heads.conventions import pair_position
from interlock.plugins.speculative.heads.medusa_network import check_sizes
from interlock.plugins.speculative.heads.medusa_options import (
    STATED,
    MtpConfig,
    mtp_directory,
    states_mtp,
)
from interlock.plugins.speculative.heads.mtp_network import MtpHead, MtpLayer
from interlock.plugins.speculative.heads.mtp_weights import LayerWeights, mtp_layers
from interlock.plugins.speculative.heads.pairs import CaughtUp


class MtpDrafter(ChainDrafter):
    """Chains of one or several layers: candidate k + 1 comes from layer k % n.

    A layer's drafted rows follow each other in its own entries, whatever their rotary positions.
    """

    head: MtpHead

    def _pass(
        self, handed_RE: Tensor, tokens_R: Tensor, at: CaughtUp, depth: int, context: DraftContext
    ) -> Tensor:
        active, count = len(handed_RE), len(self.head.layers)
        made = (depth - 1) // count if depth % count == 0 else depth // count
        ends = at.ends[:active]
        attend, positions_R = context.attend(
            at.requests[:active],
            [1] * active,
            [end + made for end in ends],
            [pair_position(end, depth) for end in ends],
        )
        layer = self.head.layers[depth % count]
        return self.head.apply(layer, handed_RE, tokens_R, positions_R, attend, context)

    def _logits(self, handed_RE: Tensor, depth: int, context: DraftContext) -> Tensor:
        layer = self.head.layers[(depth - 1) % len(self.head.layers)]
        return self.head.logits_of(layer, handed_RE, context)


def build(config: MtpConfig, context: BuildContext) -> MtpDrafter:
    """The drafter with the layers of `config.path`, or of the target's own checkpoint.

    Raises CheckpointError that names fields or tensors when they are not what their config says;
    ConfigError when there is nothing to read.
    """
    model = context.model
    directory = mtp_directory(config, model)
    if directory is None and (config.path is not None or not states_mtp(model)):
        raise ConfigError("spec.path=null: the model has no directory that could hold MTP layers")
    if context.dtype is None or context.device is None:
        raise ConfigError("spec=mtp runs a network and needs a device and a dtype")
    files = model.files if directory is None else open_model(directory, context.formats)
    if files is None:
        raise ConfigError(f"spec=mtp: model {model.name!r} has no files that could hold MTP layers")
    stated = files.json("config.json") or {}
    own = directory not in (None, model.directory)
    where = files.where("config.json")
    check_sizes(stated, model, where)
    layers = []
    tables = model.files.weights() if model.files else None
    found = mtp_layers(files.weights(), model.num_layers, model.hidden_size, own)
    for place, weights in enumerate(found):
        described = _described(stated, weights, context, where)
        layers.append(MtpLayer(described, model.num_layers + place, weights, context, tables))
    taps = (model.num_layers - 1,) if config.hidden == "before_norm" else ()
    head = MtpHead(layers, taps, config.zero_first, layers[0].decoder.description.max_positions)
    return MtpDrafter(head, config.num_drafts, config.proposal == "sampled")


def _described(
    config: Mapping[str, Any], weights: LayerWeights, context: BuildContext, where: str
) -> ModelDescription:
    """The layer as a model of one layer and one token, of the target's family."""
    family = next((f for f in context.families if f.name == context.model.family), None)
    if family is None:
        raise ConfigError(f"spec=mtp: no model family {context.model.family!r} is installed")
    changed: dict[str, Any] = {
        "num_hidden_layers": 1,
        "vocab_size": 1,
        "tie_word_embeddings": True,
        "first_k_dense_replace": 0 if weights.sparse else 1,
        "layer_types": ["full_attention"],
        **dict.fromkeys(STATED, 0),
    }
    always = ("num_hidden_layers", "vocab_size", "tie_word_embeddings")
    kept = {key: value for key, value in changed.items() if key in config or key in always}
    try:
        described = family.describe({**config, **kept}, f"{context.model.name} (MTP)")
    except CheckpointError as error:
        raise CheckpointError(f"{where}: {error}") from error
    positions = min(described.max_positions, context.model.max_positions)
    return replace(described, max_positions=positions)
