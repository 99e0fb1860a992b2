"""A drafter for tests that draws chains and trees from the target's own law, perturbed.

It needs no trained head: it runs the target once more, on cache rows of its own, so that candidates
are likely, and every rule that needs their laws can be exercised.

Legend: N rows of logits, V vocabulary, E features.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from interlock.core.batch import NO_DRAFT, Draft
from interlock.core.capabilities import (
    Capability,
    DraftsChains,
    RatesDrafts,
    Requirement,
    RunsModel,
    SamplesDrafts,
    needs,
)
from interlock.core.component import BuildContext, Component
from interlock.core.drafter import DraftContext, DraftRows, FeatureDrafter
from interlock.core.model import AttentionInput, AttentionSpec, ModelDescription
from interlock.core.options import option

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class SampledConfig:
    """Draw candidates from the target's law, perturbed."""

    name: str = "sampled"
    num_drafts: int = option(3, "candidates of a chain")
    tree: bool = option(False, "draft two levels of two siblings instead of a chain")
    replaced: bool = option(False, "siblings may be equal")
    noise: float = option(1.0, "what is added to each logit is of this size")


@dataclass
class _Growing:
    """A request's draft as far as it is drawn; `level` are the nodes whose children come next."""

    request: int
    end: int
    limit: int
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    laws: "list[Tensor]" = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    level: list[int] = field(default_factory=lambda: [-1])

    def sees(self, node: int) -> set[int]:
        """The node and what leads to it."""
        return {node} | (self.sees(self.parents[node]) if self.parents[node] >= 0 else set())


class SampledDrafter(FeatureDrafter):
    """Row p of its layers holds the target's keys and values of the token at p + 1, rotated to p.

    Rotary attention sees distances only, so its law is the target's without the first token.
    """

    lookback_tokens = 1

    def __init__(self, config: SampledConfig, model: ModelDescription) -> None:
        self._shape = (2, 2) if config.tree else (1,) * config.num_drafts
        self.num_drafts = 6 if config.tree else config.num_drafts
        self.attention = model.attention
        self._above = model.num_layers
        self._config = config

    def propose(self, rows: DraftRows, context: DraftContext) -> list[Draft]:
        """See FeatureDrafter: a pass for the committed rows, and one for each further level."""
        growing, logits_NV = self._take_in(rows, context)
        drafts = [NO_DRAFT] * len(rows.limits)
        trees = growing
        for depth, siblings in enumerate(self._shape, start=1):
            if depth > 1:
                trees = [t for t in trees if t.level and len(t.tokens) < t.limit]
                if not trees:
                    break
                logits_NV = self._run_trees(trees, context)
            self._draw(trees, logits_NV, siblings, depth, context)
        for tree in growing:
            drafts[tree.request] = self._draft(tree)
        return drafts

    def _take_in(self, rows: DraftRows, context: DraftContext) -> "tuple[list[_Growing], Tensor]":
        """The requests that want drafts, and the logits after their anchors."""
        lengths = [b - a for a, b in pairwise(rows.row_offsets)]
        given = [r for r, length in enumerate(lengths) if length]
        attend, positions_N = context.attend(
            given, [lengths[r] for r in given], [rows.starts[r] for r in given]
        )
        features_NE = self._forward(rows.next_tokens_N, positions_N, attend, context)
        wanting = [r for r in given if rows.limits[r] > 0]
        last = [rows.row_offsets[r + 1] - 1 for r in wanting]
        growing = [
            _Growing(r, rows.starts[r] + lengths[r], min(rows.limits[r], self.num_drafts))
            for r in wanting
        ]
        return growing, context.decoder.logits(features_NE[last])

    def _run_trees(self, trees: Sequence[_Growing], context: DraftContext) -> "Tensor":
        """Logits after the nodes of each tree's newest level; all its nodes run as new tokens."""
        import torch

        masks = {}
        for row, tree in enumerate(trees) if self._config.tree else ():
            nodes = range(len(tree.tokens))
            masks[row] = torch.tensor([[b in tree.sees(a) for b in nodes] for a in nodes])
        attend, positions_N = context.attend(
            [tree.request for tree in trees],
            [len(tree.tokens) for tree in trees],
            [tree.end for tree in trees],
            [tree.end - 1 + depth for tree in trees for depth in tree.depths],
            masks,
        )
        tokens_N = torch.tensor([token for tree in trees for token in tree.tokens])
        tokens_N = tokens_N.to(positions_N.device)
        features_NE = self._forward(tokens_N, positions_N, attend, context)
        wanted, first = [], 0
        for tree in trees:
            wanted += [first + node for node in tree.level]
            first += len(tree.tokens)
        return context.decoder.logits(features_NE[wanted])

    def _forward(
        self, tokens_N: "Tensor", positions_N: "Tensor", attend: Any, context: DraftContext
    ) -> "Tensor":
        def own(layer: int, spec: AttentionSpec, inputs: AttentionInput) -> "Tensor":
            attended: Tensor = attend(self._above + layer, spec, inputs)
            return attended

        return context.decoder.forward(tokens_N, positions_N, own)

    def _draw(
        self,
        trees: Sequence[_Growing],
        logits_NV: "Tensor",
        siblings: int,
        depth: int,
        context: DraftContext,
    ) -> None:
        """Give each node of the newest level `siblings` children, up to the trees' limits."""
        import torch

        generator = torch.Generator().manual_seed(depth)
        noise_V = torch.randn(logits_NV.shape[-1], generator=generator, dtype=torch.float64)
        logits_NV = logits_NV + (self._config.noise * noise_V).to(logits_NV)
        owners = [tree for tree in trees for _ in tree.level]
        requests, positions = [t.request for t in owners], [t.end + depth for t in owners]
        drawn = []
        for nth in range(siblings):
            drawn.append(context.draw(logits_NV, requests, positions, nth))
            if not self._config.replaced:
                logits_NV = logits_NV.scatter(1, drawn[-1].tokens_R[:, None], -torch.inf)
        row = 0
        for tree in trees:
            parents, first = tree.level, len(tree.tokens)
            for parent in parents:
                for one in drawn[: tree.limit - len(tree.tokens)]:
                    tree.tokens.append(int(one.tokens_R[row]))
                    tree.parents.append(parent)
                    tree.laws.append(one.laws_RV[row])
                    tree.depths.append(depth)
                row += 1
            tree.level = list(range(first, len(tree.tokens)))

    def _draft(self, tree: _Growing) -> Draft:
        import torch

        laws_NV = torch.stack(tree.laws)
        return Draft(
            tuple(tree.tokens),
            tuple(tree.parents) if self._config.tree else None,
            laws_NV,
            tuple(laws_NV.amax(-1).tolist()),
        )


def sampled_component(name: str, **options: Any) -> Component:
    """A `spec` component of this drafter; `options` are defaults of SampledConfig."""

    def build(config: SampledConfig, context: BuildContext) -> SampledDrafter:
        return SampledDrafter(SampledConfig(**{**vars(config), **options}), context.model)

    def provides(config: SampledConfig, _model: ModelDescription | None) -> Iterable[Capability]:
        tree = options.get("tree", config.tree)
        return (SamplesDrafts(), RatesDrafts(), *(() if tree else (DraftsChains(),)))

    def requires(_config: Any, _model: ModelDescription | None) -> Iterable[Requirement]:
        return (needs(RunsModel(), f"spec={name} draws from the law of a real forward pass"),)

    return Component(
        "spec", name, SampledConfig, build, "draws from a perturbed target, for tests",
        provides=provides, requires=requires,
    )  # fmt: skip
