"""Options of drafters that run a block at once, and of draft models. No torch."""

from collections.abc import Iterable
from dataclasses import dataclass

from interlock.core.capabilities import (
    Capability,
    Composition,
    RatesDrafts,
    Requirement,
    RunsModel,
    ServesTrees,
)
from interlock.core.closest import unknown_name
from interlock.core.component import Component
from interlock.core.errors import ConfigError
from interlock.core.model import ModelDescription
from interlock.core.options import option
from interlock.plugins.speculative.heads.directory import head_directory, lack, needs_a_head
from interlock.plugins.speculative.heads.options import (
    chain_offers,
    count_problems,
    proposal_problems,
)

TREES = ("ddtree",)
"""How a tree of candidates is made from one block."""
PROPOSAL = "greedy: most likely tokens; sampled: drawn, with their laws"


@dataclass(frozen=True)
class DraftModelConfig:
    """A small language model of the target's vocabulary drafts a chain."""

    name: str = "draft_model"
    num_drafts: int = option(4, "candidates per request and step, 1 or more")
    path: str | None = option(
        None, "directory or file of the model; null: `draft_model` in the target's directory"
    )
    proposal: str = option("greedy", PROPOSAL)

    def __post_init__(self) -> None:
        _raise(count_problems(self.num_drafts) + proposal_problems(self.proposal))


@dataclass(frozen=True)
class DFlashConfig:
    """DFlash: a block of mask tokens after the anchor becomes candidates in one pass."""

    name: str = "dflash"
    num_drafts: int = option(
        7, "candidates per request and step: below the head's block size, or nodes of the tree"
    )
    path: str | None = option(
        None, "directory of the head; null: `dflash` in the model's directory"
    )
    proposal: str = option("greedy", PROPOSAL)
    tree: str | None = option(
        None, "null: a chain; ddtree: the most likely tree of num_drafts nodes over the block"
    )

    def __post_init__(self) -> None:
        problems = count_problems(self.num_drafts) + proposal_problems(self.proposal)
        if self.tree is not None and self.tree not in TREES:
            problems.append(unknown_name("tree", self.tree, TREES))
        if self.tree is not None and self.proposal == "sampled":
            problems.append(
                f"tree={self.tree} takes the most likely tokens of each place, which are not drawn "
                "from a law: set proposal=greedy, or tree=null"
            )
        _raise(problems)


@dataclass(frozen=True)
class DSparkConfig:
    """DSpark: a block in one pass, tied together by a Markov head, with a confidence head."""

    name: str = "dspark"
    num_drafts: int = option(7, "candidates per request and step, up to the head's block size")
    path: str | None = option(
        None, "directory of the head; null: `dspark` in the model's directory"
    )
    proposal: str = option("greedy", PROPOSAL)

    def __post_init__(self) -> None:
        _raise(count_problems(self.num_drafts) + proposal_problems(self.proposal))


BlockConfig = DFlashConfig | DSparkConfig


def _raise(problems: list[str]) -> None:
    if problems:
        raise ConfigError(problems)


def components() -> list[Component]:
    """Draft models and block drafters."""
    here = "interlock.plugins.speculative.heads"
    return [
        Component(
            "spec", "draft_model", DraftModelConfig, f"{here}.draft_model:build",
            "a small model of the target's vocabulary drafts a chain",
            provides=chain_offers, requires=_draft_model_needs,
        ),
        Component(
            "spec", "dflash", DFlashConfig, f"{here}.dflash:build",
            "a block of mask tokens over the target's layers becomes a chain or tree in one pass",
            provides=_dflash_offers, requires=_dflash_needs,
        ),
        Component(
            "spec", "dspark", DSparkConfig, f"{here}.dspark:build",
            "the same, tied together by a Markov head, with a confidence head",
            provides=chain_offers, requires=_block_needs,
        ),
    ]  # fmt: skip


def _dflash_offers(config: DFlashConfig, model: ModelDescription | None) -> Iterable[Capability]:
    return chain_offers(config, model) if config.tree is None else (RatesDrafts(),)


def _draft_model_needs(
    config: DraftModelConfig, model: ModelDescription | None
) -> Iterable[Requirement]:
    def a_model(composition: Composition) -> str | None:
        if not composition.has(RunsModel()):
            return None
        path = head_directory(config, model, "draft_model")
        if path is None:
            return "spec=draft_model has no draft model: set spec.path, the target has no directory"
        if path.is_file() or (path / "config.json").is_file():
            return None
        target = model.directory if model and model.directory else "MODEL"
        return (
            f"spec=draft_model has no draft model: {lack(path, ['config.json'])}; set spec.path to "
            "a model with the target's vocabulary, or train one with `python -m "
            f"interlock.models.recipe.train_drafter draft_model --target {target} --out {path}`"
        )

    a_forward_pass, _ = needs_a_head(config, model, "draft_model")
    return (a_forward_pass, a_model)


def _block_needs(config: BlockConfig, model: ModelDescription | None) -> Iterable[Requirement]:
    def laws_of_the_tokens_alone(composition: Composition) -> str | None:
        invariant = composition.settings.get("numerics") == "batch_invariant"
        if not invariant or config.proposal != "sampled":
            return None
        return (
            f"spec={config.name} computes the laws of its candidates for a whole batch at once, so "
            "what is accepted would depend on the batch, against numerics=batch_invariant: set "
            "spec.proposal=greedy, whose candidates change no token, or numerics=fast"
        )

    return (*needs_a_head(config, model, config.name), laws_of_the_tokens_alone)


def _dflash_needs(config: DFlashConfig, model: ModelDescription | None) -> Iterable[Requirement]:
    def trees(composition: Composition) -> str | None:
        if config.tree is None or not composition.has(RunsModel()):
            return None
        if composition.has(ServesTrees()):
            return None
        chosen = composition.chosen["attention"][0]
        return (
            f"spec.tree={config.tree} drafts trees, which attention={chosen} does not compute: "
            "set spec.tree=null"
        )

    return (*_block_needs(config, model), trees)
