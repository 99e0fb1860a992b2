"""EAGLE-1: a chain of drafts from one decoder layer over the target's features.

Row p pairs the target's final-norm feature of position p with the token at p + 1, sits at rotary
position p and estimates the feature of p + 1; the target's own head turns that into the token at
p + 2 (arXiv 2401.15077, section 3). Greedy chains only: no sampled drafts, no draft tree.

A token's embedding is its row of the head's own matrix, or of the target's as it is stored: where a
target scales embeddings (Gemma), its head does not, because heads are trained on the matrix alone.
The target's cap on logits bends a head's logits as well, which changes no greedy draft.

Legend: N rows over all requests, R requests in a pass, E hidden size.
"""

from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

from interlock.core.batch import NO_DRAFT, Draft
from interlock.core.checkpoint import open_model
from interlock.core.component import BuildContext
from interlock.core.drafter import DraftContext, DraftRows, FeatureDrafter
from interlock.core.errors import ConfigError
from interlock.plugins.speculative import EagleConfig, eagle_directory
from interlock.plugins.speculative.eagle_network import EagleNetwork, read_shape


class EagleDrafter(FeatureDrafter):
    """Drafts up to `num_drafts` tokens a request by feeding the head its own estimates.

    Its layer is numbered after the target's last one, so its cache rows share the target's pages; a
    row depends on the token after it (`lookback_tokens` 1).
    """

    lookback_tokens = 1

    def __init__(self, network: EagleNetwork, num_drafts: int) -> None:
        self.network = network
        self.num_drafts = num_drafts
        self.max_positions = network.shape.max_positions
        self.attention = (network.spec,)

    @torch.no_grad()
    def propose(self, rows: DraftRows, context: DraftContext) -> list[Draft]:
        """One pass over all committed rows, then a pass of one row per request for each draft.

        Speculative rows become the entries after a request's last committed row; the next call
        writes true ones over them.
        """
        lengths = [end - first for first, end in pairwise(rows.row_offsets)]
        drafts = [NO_DRAFT] * len(lengths)
        present = [request for request, length in enumerate(lengths) if length]
        if not present:
            return drafts
        starts = [rows.starts[r] for r in present]
        attend, positions_N = context.attend(present, [lengths[r] for r in present], starts)
        embedded_NE = self._embed(rows.next_tokens_N, context)
        features_NE = self.network.forward(embedded_NE, rows.features_NE, positions_N, attend)

        limits = [min(limit, self.num_drafts) for limit in rows.limits]
        order = sorted((r for r in present if limits[r] > 0), key=lambda r: -limits[r])
        if order:
            last_R = torch.tensor([rows.row_offsets[r + 1] - 1 for r in order])
            ends = [rows.starts[r] + lengths[r] for r in order]
            features_RE = features_NE[last_R.to(features_NE.device)]
            wanted = [limits[r] for r in order]
            for request, draft in zip(
                order, self._chains(features_RE, order, wanted, ends, context), strict=True
            ):
                drafts[request] = draft
        return drafts

    def _chains(
        self,
        features_RE: Tensor,
        requests: list[int],
        wanted: list[int],
        ends: list[int],
        context: DraftContext,
    ) -> list[Draft]:
        """wanted[i] tokens for requests[i], longest first, so that those not done lead each pass.

        `features_RE` estimates the feature after each request's last committed row, which is entry
        ends[i] - 1. Nothing is read from the device before the chains are whole.
        """
        made = [context.decoder.logits(features_RE).argmax(-1)]
        for depth in range(1, wanted[0]):
            active = sum(length > depth for length in wanted)
            attend, positions_R = context.attend(
                requests[:active], [1] * active, [end + depth - 1 for end in ends[:active]]
            )
            features_RE = self.network.forward(
                self._embed(made[-1][:active], context), features_RE[:active], positions_R, attend
            )
            made.append(context.decoder.logits(features_RE).argmax(-1))
        tokens = [passed.tolist() for passed in made]
        return [
            Draft(tuple(passed[place] for passed in tokens[:length]))
            for place, length in enumerate(wanted)
        ]

    def _embed(self, tokens_N: Tensor, context: DraftContext) -> Tensor:
        own = self.network.embed_tokens
        return context.decoder.embed(tokens_N) if own is None else F.embedding(tokens_N, own)


def build(config: EagleConfig, context: BuildContext) -> EagleDrafter:
    """The drafter with the weights of `config.path`, in the engine's dtype.

    Raises CheckpointError that names fields or tensors when the head is not what its config says
    or was trained for another target; ConfigError when there is no directory to look in.
    """
    directory = eagle_directory(config, context.model)
    if directory is None:
        raise ConfigError("spec.path=null: the model has no directory that could hold a head")
    if context.dtype is None or context.device is None:
        raise ConfigError("spec=eagle runs a network and needs a device and a dtype")
    files = open_model(directory, context.formats)
    stated = files.json("config.json") or {}
    shape = read_shape(stated, context.model, files.where("config.json"))
    weights = files.weights()
    layer = context.model.num_layers
    network = EagleNetwork(shape, layer, weights, context.dtype, context.device)
    return EagleDrafter(network, config.num_drafts)
