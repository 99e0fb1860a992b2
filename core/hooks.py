"""What a plugin may contribute: the hooks, each called once, before anything runs.

A plugin is a module named by an entry point of the group `interlock`. It states the contract that
it was written for, `INTERLOCK_CONTRACT = 1`, and implements any of these hooks with `@hookimpl`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pluggy

from interlock.core.component import CONTRACT, Component
from interlock.core.errors import PluginError
from interlock.core.model import ModelFamily
from interlock.core.model_files import ModelFormat
from interlock.core.text import CodecReader

if TYPE_CHECKING:
    from interlock.core.batch import StepPlan, StepResult
    from interlock.core.search import SearchOf

__all__ = ["CONTRACT", "PROJECT", "StepObserver", "check_contract", "hookimpl", "hookspec"]

PROJECT = "interlock"
"""The pluggy project and the entry-point group."""

OLDEST = 1
"""The oldest contract whose plugins are still loaded; `docs/plugins.md` has the rule."""
CHANGES = {1: "hooks, seams and the values that cross them are fixed"}
"""Contract -> what it changed for plugins."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

StepObserver = Callable[["StepPlan", "StepResult"], None]


@hookspec
def interlock_components() -> list[Component]:  # type: ignore[empty-body]  # a specification
    """Components this plugin offers, of any seam."""


@hookspec
def interlock_model_families() -> list[ModelFamily]:  # type: ignore[empty-body]  # a specification
    """Model families this plugin can read."""


@hookspec
def interlock_model_formats() -> list[ModelFormat]:  # type: ignore[empty-body]  # a specification
    """Ways to store a model that this plugin can read."""


@hookspec
def interlock_codec_readers() -> list[CodecReader]:  # type: ignore[empty-body]  # a specification
    """Ways to read a model's tokenizer; the first that finds one is used."""


@hookspec
def interlock_searches() -> list["SearchOf"]:  # type: ignore[empty-body]  # a specification
    """Ways to search over a request's outputs; the first that one asks for is used."""


@hookspec
def interlock_config_dirs() -> list[str]:  # type: ignore[empty-body]  # a specification
    """Absolute folders with more YAML presets, laid out like Interlock's own `conf`."""


@hookspec
def interlock_step_observers() -> list[StepObserver]:  # type: ignore[empty-body]  # a specification
    """Callables that see every finished step. Collected once, then called directly."""


def check_contract(plugin: Any) -> int:
    """The contract that `plugin` states. PluginError unless this core supports it."""
    stated = getattr(plugin, "INTERLOCK_CONTRACT", None)
    if type(stated) is int and OLDEST <= stated <= CONTRACT:
        return stated
    raise PluginError(since(stated))


def since(stated: Any) -> str:
    """The contract that a plugin states, the one there is, and what the plugin has to change."""
    here = f"and this Interlock has plugin contract {CONTRACT}"
    if type(stated) is not int:
        return f"it states no contract version, {here}: write INTERLOCK_CONTRACT = {CONTRACT}"
    changes = "".join(f"; since {n}: {text}" for n, text in CHANGES.items() if n > stated)
    newer = "; it needs a newer Interlock" if stated > CONTRACT else ""
    return f"it was written for plugin contract {stated}, {here}{newer}{changes}"
