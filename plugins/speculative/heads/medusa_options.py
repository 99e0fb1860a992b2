"""Options of Medusa and Hydra heads and of MTP layers, without torch."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from interlock.core.capabilities import (
    Capability,
    DraftsChains,
    RatesDrafts,
    Requirement,
    RunsModel,
    SamplesDrafts,
    ServesTrees,
)
from interlock.core.closest import unknown_name
from interlock.core.component import Component
from interlock.core.errors import ConfigError
from interlock.core.model import ModelDescription
from interlock.core.options import option
from interlock.plugins.speculative.heads.directory import head_directory, needs_a_head
from interlock.plugins.speculative.heads.options import (
    chain_offers,
    count_problems,
    proposal_problems,
)
from interlock.plugins.speculative.heads.tree_paths import path_problems

CHAIN, AUTO = "chain", "auto"
STATED = ("num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers")
"""Fields of a target's config that count its MTP layers."""
Tree = str | tuple[tuple[int, ...], ...]
TREE = option(
    CHAIN,
    "chain; auto: the num_drafts likeliest nodes; or paths of child ranks: [[0],[1],[0,0]]",
)


@dataclass(frozen=True)
class HeadsConfig:
    """What Medusa and Hydra heads have in common."""

    num_drafts: int | None = option(
        None, "candidates per request and step, in a chain at most the heads; null: all heads"
    )
    proposal: str = option("greedy", "greedy: most likely tokens; sampled: drawn, with their laws")
    tree: Tree = TREE

    def __post_init__(self) -> None:
        problems = [] if self.num_drafts is None else count_problems(self.num_drafts)
        problems += proposal_problems(self.proposal) + _tree_problems(self.tree, self.num_drafts)
        if self.proposal == "sampled" and self.tree != CHAIN:
            problems.append(
                "proposal=sampled draws chains only: set tree=chain, or proposal=greedy"
            )
        if problems:
            raise ConfigError(problems)


@dataclass(frozen=True)
class MedusaConfig(HeadsConfig):
    """Medusa: each head guesses a token further ahead from one feature of the target."""

    name: str = "medusa"
    path: str | None = option(
        None, "directory of the heads; null: `medusa` in the model's directory"
    )


@dataclass(frozen=True)
class HydraConfig(HeadsConfig):
    """Hydra: Medusa's heads, each of which also reads the tokens drafted before."""

    name: str = "hydra"
    path: str | None = option(
        None, "directory of the heads; null: `hydra` in the model's directory"
    )


HIDDEN = ("before_norm", "after_norm")
"""What an MTP layer reads of the target: around its final norm."""


@dataclass(frozen=True)
class MtpConfig:
    """Multi-token prediction: decoder layers of the target's kind, in its checkpoint or not."""

    name: str = "mtp"
    num_drafts: int = option(3, "candidates per request and step, 1 or more")
    path: str | None = option(
        None, "directory of the layers; null: `mtp` in the model's directory, or its checkpoint"
    )
    proposal: str = option("greedy", "greedy: most likely tokens; sampled: drawn, with their laws")
    hidden: str = option("before_norm", "read the target's output before_norm or after_norm")
    zero_first: bool = option(False, "leave out the first row's embedding, as vLLM does")

    def __post_init__(self) -> None:
        problems = count_problems(self.num_drafts) + proposal_problems(self.proposal)
        if self.hidden not in HIDDEN:
            problems.append(unknown_name("hidden", self.hidden, HIDDEN))
        if problems:
            raise ConfigError(problems)


def mtp_directory(config: MtpConfig, model: ModelDescription | None) -> Path | None:
    """Where the layers lie; None: in the target's own checkpoint."""
    directory = head_directory(config, model, "mtp")
    if config.path is not None or directory is None or directory.is_dir():
        return directory
    return None if states_mtp(model) else directory


def states_mtp(model: ModelDescription | None) -> bool:
    """Whether the target's config says that its checkpoint has MTP layers."""
    return model is not None and any(model.config.get(key) for key in STATED)


def components() -> list[Component]:
    """Heads over one feature, and MTP layers."""
    here = "interlock.plugins.speculative.heads"
    return [
        Component(
            "spec", "medusa", MedusaConfig, f"{here}.medusa:build",
            "heads that each guess one token further ahead: a chain or a fixed tree",
            provides=_heads_offer, requires=_medusa_needs,
        ),
        Component(
            "spec", "hydra", HydraConfig, f"{here}.hydra:build",
            "heads that also read the tokens drafted before: a chain or a fixed tree",
            provides=_heads_offer, requires=_hydra_needs,
        ),
        Component(
            "spec", "mtp", MtpConfig, f"{here}.mtp:build",
            "decoder layers of the target's kind, trained for further tokens, draft a chain",
            provides=chain_offers, requires=_mtp_needs,
        ),
    ]  # fmt: skip


def _tree_problems(tree: Tree, num_drafts: int | None) -> list[str]:
    if isinstance(tree, str):
        if tree == AUTO and num_drafts is None:
            return ["tree=auto takes the likeliest nodes: set num_drafts, 16 for example"]
        known = f"tree={tree} is neither {CHAIN} nor {AUTO} nor a list of paths, [[0],[1],[0,0]]"
        return [] if tree in (CHAIN, AUTO) else [known]
    if problems := path_problems(tree):
        return problems
    if num_drafts in (None, len(tree)):
        return []
    return [f"num_drafts={num_drafts} but tree has {len(tree)} paths: set num_drafts={len(tree)}"]


def _heads_offer(config: HeadsConfig, _model: ModelDescription | None) -> Iterable[Capability]:
    yield RatesDrafts()
    if config.tree == CHAIN:
        yield DraftsChains()
    if config.proposal == "sampled":
        yield SamplesDrafts()


def _medusa_needs(config: MedusaConfig, model: ModelDescription | None) -> Iterable[Requirement]:
    return (*needs_a_head(config, model, "medusa"), *_tree_needs(config))


def _hydra_needs(config: HydraConfig, model: ModelDescription | None) -> Iterable[Requirement]:
    return (*needs_a_head(config, model, "hydra"), *_tree_needs(config))


def _mtp_needs(config: MtpConfig, model: ModelDescription | None) -> Iterable[Requirement]:
    a_forward_pass, a_head = needs_a_head(config, model, "mtp")
    if config.path is None and mtp_directory(config, model) is None and states_mtp(model):
        return (a_forward_pass,)
    return (a_forward_pass, a_head)


def _tree_needs(config: MedusaConfig | HydraConfig) -> Iterable[Requirement]:
    if config.tree == CHAIN:
        return ()
    reason = (
        f"spec={config.name} with a tree needs an attention component that computes trees: set "
        "spec.tree=chain, or choose another one"
    )
    return (
        lambda composition: (
            reason if composition.has(RunsModel()) and not composition.has(ServesTrees()) else None
        ),
    )
