"""Options of the EAGLE family, without torch."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from interlock.core.capabilities import (
    Capability,
    DraftsChains,
    RatesDrafts,
    Requirement,
    SamplesDrafts,
    ServesTrees,
    needs,
)
from interlock.core.closest import unknown_name
from interlock.core.component import Component
from interlock.core.errors import ConfigError
from interlock.core.model import ModelDescription
from interlock.core.options import option
from interlock.plugins.speculative.heads.directory import needs_a_head
from interlock.plugins.speculative.heads.tree_paths import NAMED, StaticTree, static_tree

PROPOSALS = ("greedy", "sampled")
"""How candidates come about: the most likely ones, or drawn from the head's law."""
DYNAMIC = "dynamic"
Tree = str | tuple[tuple[int, ...], ...] | None


class Dynamic(NamedTuple):
    """A tree that grows where the head finds it likely: `top_k` paths a depth, down to `depth`."""

    depth: int
    top_k: int


def _proposal() -> Any:
    return option("greedy", "greedy: most likely tokens; sampled: drawn, with their laws")


@dataclass(frozen=True)
class EagleConfig:
    """EAGLE-1: one trained layer over the target's features drafts a chain, or a fixed tree."""

    name: str = "eagle"
    num_drafts: int = option(5, "candidates per request and step, 1 or more")
    path: str | None = option(None, "directory of the head; null: `eagle` in the model's directory")
    proposal: str = _proposal()
    tree: Tree = option(
        None, "null: a chain; mc_sim_7b_63; or paths of child ranks, [[0],[1],[0,0]]"
    )

    def __post_init__(self) -> None:
        _check(
            count_problems(self.num_drafts),
            proposal_problems(self.proposal),
            _tree_problems(self.tree, self.num_drafts, tuple(NAMED)),
        )


@dataclass(frozen=True)
class Eagle2Config:
    """EAGLE-2: EAGLE-1's layer drafts a tree that grows where it is sure."""

    name: str = "eagle2"
    num_drafts: int = option(16, "candidates per request and step: the likeliest of the tree")
    path: str | None = option(None, "directory of the head; null: `eagle` in the model's directory")
    depth: int = option(6, "candidates on the longest path, 1 or more")
    top_k: int = option(4, "paths that go on at every depth, and children of each, 1 or more")

    def __post_init__(self) -> None:
        _check(count_problems(self.num_drafts), _growth_problems(self.depth, self.top_k))


@dataclass(frozen=True)
class Eagle3Config:
    """EAGLE-3: one trained layer over outputs of several target layers drafts a chain or a tree."""

    name: str = "eagle3"
    num_drafts: int = option(5, "candidates per request and step, 1 or more")
    path: str | None = option(
        None, "directory of the head; null: `eagle3` in the model's directory"
    )
    proposal: str = _proposal()
    tree: Tree = option(
        None,
        "null: a chain; dynamic: grown where the head is sure (EAGLE-2); mc_sim_7b_63; or paths of "
        "child ranks, [[0],[1],[0,0]]",
    )
    depth: int | None = option(None, "longest path of a dynamic tree; null: 6")
    top_k: int | None = option(None, "paths that go on at every depth of a dynamic tree; null: 4")

    def __post_init__(self) -> None:
        of_tree = []
        if self.tree == DYNAMIC:
            of_tree = _growth_problems(self.depth, self.top_k)
            if self.proposal == "sampled":
                of_tree.append(
                    "proposal=sampled draws chains and fixed trees, but tree=dynamic takes the "
                    "likeliest tokens: set proposal=greedy, or another tree"
                )
        else:
            for key, value in (("depth", self.depth), ("top_k", self.top_k)):
                if value is not None:
                    of_tree.append(
                        f"{key}={value} is for dynamic trees only: set spec.tree=dynamic"
                    )
        _check(
            count_problems(self.num_drafts),
            proposal_problems(self.proposal),
            _tree_problems(self.tree, self.num_drafts, (DYNAMIC, *NAMED)),
            of_tree,
        )


def tree_shape(config: EagleConfig | Eagle2Config | Eagle3Config) -> StaticTree | Dynamic | None:
    """The tree that these options ask for; None for a chain."""
    tree: Tree = getattr(config, "tree", DYNAMIC)
    if tree == DYNAMIC:
        return Dynamic(getattr(config, "depth", None) or 6, getattr(config, "top_k", None) or 4)
    return None if tree is None else static_tree(tree, config.num_drafts)


def draws(config: EagleConfig | Eagle2Config | Eagle3Config) -> bool:
    """Whether candidates are drawn from the head's law."""
    return getattr(config, "proposal", PROPOSALS[0]) == "sampled"


def count_problems(num_drafts: int) -> list[str]:
    """What is wrong with a number of candidates."""
    return [] if num_drafts >= 1 else [f"num_drafts={num_drafts} is not a whole number >= 1"]


def proposal_problems(proposal: str) -> list[str]:
    """What is wrong with a way of proposing."""
    return [] if proposal in PROPOSALS else [unknown_name("proposal", proposal, PROPOSALS)]


def _growth_problems(depth: int | None, top_k: int | None) -> list[str]:
    values = (("depth", depth), ("top_k", top_k))
    return [
        f"{key}={value} is not a whole number >= 1"
        for key, value in values
        if value is not None and value < 1
    ]


def _tree_problems(tree: Tree, num_drafts: int, names: tuple[str, ...]) -> list[str]:
    if isinstance(tree, str) and tree not in names:
        others = "; or a list of paths of child ranks, [[0],[1],[0,0]], or null for a chain"
        return [unknown_name("tree", tree, names) + others]
    if tree is None or tree == DYNAMIC or num_drafts < 1:  # that is a problem of its own
        return []
    try:
        static_tree(tree, num_drafts)
    except ValueError as error:
        return [str(error)]
    return []


def _check(*found: list[str]) -> None:
    if problems := [problem for part in found for problem in part]:
        raise ConfigError(problems)


def chain_offers(config: Any, _model: ModelDescription | None) -> Iterable[Capability]:
    """What a drafter of chains provides that fills in `Draft.confidence`."""
    sampled = [SamplesDrafts()] if config.proposal == "sampled" else []
    return (DraftsChains(), RatesDrafts(), *sampled)


def components() -> list[Component]:
    """The EAGLE family."""
    here = "interlock.plugins.speculative.heads"
    return [
        Component(
            "spec", "eagle", EagleConfig, f"{here}.eagle:build",
            "a trained layer over the target's features drafts a chain or a fixed tree",
            provides=_offers, requires=_eagle_needs,
        ),
        Component(
            "spec", "eagle2", Eagle2Config, f"{here}.eagle:build",
            "the layer of `eagle` drafts a tree that grows where it is sure",
            provides=_offers, requires=_eagle_needs,
        ),
        Component(
            "spec", "eagle3", Eagle3Config, f"{here}.eagle3:build",
            "a trained layer over outputs of several target layers drafts a chain or a tree",
            provides=_offers, requires=_eagle3_needs,
        ),
    ]  # fmt: skip


def _offers(
    config: EagleConfig | Eagle2Config | Eagle3Config, _model: ModelDescription | None
) -> Iterable[Capability]:
    yield RatesDrafts()
    if tree_shape(config) is None:
        yield DraftsChains()
    if draws(config):
        yield SamplesDrafts()


def _eagle_needs(
    config: EagleConfig | Eagle2Config, model: ModelDescription | None
) -> Iterable[Requirement]:
    return (*needs_a_head(config, model, "eagle"), *_trees_served(config))


def _eagle3_needs(config: Eagle3Config, model: ModelDescription | None) -> Iterable[Requirement]:
    return (*needs_a_head(config, model, "eagle3"), *_trees_served(config))


def _trees_served(config: EagleConfig | Eagle2Config | Eagle3Config) -> Iterable[Requirement]:
    if tree_shape(config) is None:
        return ()
    return (
        needs(
            ServesTrees(),
            f"spec={config.name} drafts trees, which the chosen attention does not serve",
        ),
    )
