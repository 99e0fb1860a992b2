"""Builds the Medusa drafter, and what it shares with Hydra's."""

from typing import Protocol

from interlock.core.component import BuildContext
from interlock.core.errors import ConfigError
from interlock.plugins.speculative.heads.directory import open_head
from interlock.plugins.speculative.heads.feature_heads import FeatureHeads, FeatureHeadsDrafter
from interlock.plugins.speculative.heads.fixed_tree import FixedTree
from interlock.plugins.speculative.heads.medusa_network import MedusaNetwork
from interlock.plugins.speculative.heads.medusa_options import AUTO, CHAIN, MedusaConfig, Tree


def build(config: MedusaConfig, context: BuildContext) -> FeatureHeadsDrafter:
    """The drafter with the weights of `config.path`, in the engine's dtype.

    Raises CheckpointError that names fields or tensors when the heads are not what was trained for
    this target; ConfigError when they do not reach as far as the options ask.
    """
    files = open_head(config, context, "medusa")
    stated, weights = files.json("config.json") or {}, files.weights()
    network = MedusaNetwork(stated, weights, context)
    return drafter(config, network)


class HeadsOptions(Protocol):
    """Options of heads over one feature."""

    @property
    def name(self) -> str:
        """The component's."""

    @property
    def num_drafts(self) -> int | None:
        """Candidates; None: one for each head of a chain, or for each path."""

    @property
    def proposal(self) -> str:
        """greedy or sampled."""

    @property
    def tree(self) -> Tree:
        """chain, auto or paths."""


def drafter(config: HeadsOptions, heads: FeatureHeads) -> FeatureHeadsDrafter:
    """The drafter with these heads. ConfigError for a tree that they cannot fill."""
    if config.tree == CHAIN:
        tree = FixedTree.chain(config.num_drafts or heads.count)
    elif config.tree == AUTO and config.num_drafts is not None:
        tree = FixedTree.best(config.num_drafts, heads.count)
    else:
        tree = FixedTree.of(path for path in config.tree if not isinstance(path, str))
    entries = heads.vocab_size if heads.token_ids_V is None else len(heads.token_ids_V)
    problems = []
    if tree.depth > heads.count:
        what = "num_drafts" if config.tree == CHAIN else "longest path in tree"
        problems.append(
            f"spec={config.name}: {what}={tree.depth}, but {heads.count} heads are stored: a path "
            f"is at most {heads.count} long"
        )
    widest = max(level.width for level in tree.levels)
    if widest > entries:
        what = f"num_drafts={config.num_drafts} with tree=auto" if config.tree == AUTO else "tree"
        problems.append(
            f"spec={config.name}: {what} has rank {widest - 1}, but the heads know {entries} tokens"
        )
    if problems:
        raise ConfigError(problems)
    return FeatureHeadsDrafter(heads, tree, config.proposal == "sampled")
