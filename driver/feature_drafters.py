"""Drafters with heads of their own, for the conformance kit: on a shipped model that has one."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

from interlock.core.assemble import assemble
from interlock.core.errors import InterlockError, PluginError
from interlock.core.registry import Registry

SHIPPED = ("tiny-gqa", "tiny-mla")
"""Models of the package, with a trained head of every built-in kind."""
SETTINGS = (
    "dtype=float64", "threads=1", "cache.page_size=4", "cache.num_pages=200",
    "scheduler.budget_tokens=12",
)  # fmt: skip
"""Of the contract: prompts come in chunks and end inside pages."""


def on_a_shipped_model(registry: Registry, key: str, overrides: Sequence[str]) -> dict[str, Any]:
    """What `FeatureDrafterContract` lacks, for the first shipped model on which the drafter runs.

    `key` is the choice in words, `overrides` chooses it with its options, such as the one that
    names a head. Raises PluginError where it runs on none, with the reasons and with what to do.
    """
    import pytest

    reasons = []
    for model in SHIPPED:
        settings = [f"model={model}", *SETTINGS, *overrides]
        try:
            assemble(settings, registry).close()
        except InterlockError as error:
            reasons.append(f"model={model}: {' '.join(str(error).split())}")
            continue

        def engine(_self: object, settings: Sequence[str] = settings) -> Iterator[Any]:
            with closing(assemble(settings, registry)) as built:
                yield built

        return {
            "engine": pytest.fixture(engine), "drafter": lambda _self, executor: executor.drafter
        }  # fmt: skip
    raise PluginError(
        f"{key} runs on no shipped model ({'; '.join(reasons)}); give an option that names a head "
        "for one of them, or let the package's tests subclass interlock.core.testing."
        "feature_drafter_contract.FeatureDrafterContract, which writes a head for the kit's small "
        "models"
    )
