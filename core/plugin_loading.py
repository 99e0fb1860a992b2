"""Load one plugin: import its module, check its contract, take in all it contributes or nothing."""

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any

import pluggy

from interlock.core import hooks
from interlock.core.closest import unknown_name
from interlock.core.component import Component
from interlock.core.errors import PluginError
from interlock.core.model import ModelFamily
from interlock.core.model_files import ModelFormat
from interlock.core.seams import SEAMS, children_of
from interlock.core.settings import AUTO
from interlock.core.text import CodecReader

if TYPE_CHECKING:
    from interlock.core.search import SearchOf


@dataclass(frozen=True)
class Origin:
    """The distribution that a component came from."""

    distribution: str
    version: str

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}".strip()

    @staticmethod
    def of(entry_point: EntryPoint) -> "Origin":
        """The distribution that declared this entry point."""
        if entry_point.dist is None:
            return Origin(f"(plugin {entry_point.name!r} without a distribution)", "")
        return Origin(entry_point.dist.name, entry_point.dist.version)


@dataclass
class Contribution:
    """What one plugin contributes; grows as its hooks are called."""

    origin: Origin
    contract: int = hooks.CONTRACT
    components: list[Component] = field(default_factory=list)
    families: list[ModelFamily] = field(default_factory=list)
    formats: list[ModelFormat] = field(default_factory=list)
    codecs: list[CodecReader] = field(default_factory=list)
    searches: "list[SearchOf]" = field(default_factory=list)
    config_dirs: list[str] = field(default_factory=list)
    observers: list[hooks.StepObserver] = field(default_factory=list)


_HOOKS: tuple[tuple[str, str, Any, str], ...] = (
    ("interlock_components", "components", Component, "Component"),
    ("interlock_model_families", "families", ModelFamily, "ModelFamily"),
    ("interlock_model_formats", "formats", ModelFormat, "ModelFormat"),
    ("interlock_codec_readers", "codecs", Callable, "function"),
    ("interlock_searches", "searches", Callable, "function"),
    ("interlock_config_dirs", "config_dirs", str, "text"),
    ("interlock_step_observers", "observers", Callable, "function"),
)
"""Each hook, the list of a contribution that it fills, and of what."""


@dataclass(frozen=True)
class BrokenPlugin:
    """A plugin that could not be loaded, why, and which choices it offered before it failed."""

    origin: Origin
    entry_point: str
    cause: str
    offered: frozenset[tuple[str, str]] = frozenset()

    def __str__(self) -> str:
        return f"plugin {self.origin} ({self.entry_point}) is left out: {self.cause}"


def load_plugin(entry_point: EntryPoint) -> Contribution | BrokenPlugin:
    """All that the plugin contributes, or why it contributes nothing. Never raises."""
    contribution = Contribution(Origin.of(entry_point))
    try:
        plugin = entry_point.load()
        contribution.contract = hooks.check_contract(plugin)
        _collect(plugin, contribution)
    except (Exception, SystemExit) as error:
        made = [c for c in contribution.components if isinstance(c, Component)]
        offered = frozenset((component.seam, component.name) for component in made)
        described = f"{entry_point.name} = {entry_point.value}"
        return BrokenPlugin(contribution.origin, described, cause_of(error), offered)
    return contribution


def cause_of(error: BaseException) -> str:
    """An exception in one line: its type and message."""
    message = " ".join(str(error).split())
    if isinstance(error, PluginError):
        return message
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _collect(plugin: Any, contribution: Contribution) -> None:
    manager = pluggy.PluginManager(hooks.PROJECT)
    manager.add_hookspecs(hooks)
    manager.register(plugin)
    manager.check_pending()
    for hook, place, _, _ in _HOOKS:
        found = getattr(contribution, place)
        for group in getattr(manager.hook, hook)():
            found.extend(group)  # of a generator that fails, what came before
    _check(contribution)


def _check(contribution: Contribution) -> None:
    """Raise what is wrong with it, as ValueError or TypeError."""
    for hook, place, kind, called in _HOOKS:
        for item in getattr(contribution, place):
            if not isinstance(item, kind):
                raise TypeError(f"{hook} gave {item!r}, not a {called}")
    for component in contribution.components:
        _check_component(component)
    names = [(component.seam, component.name) for component in contribution.components]
    for seam, name in names:
        if names.count((seam, name)) > 1:
            raise ValueError(f"it offers {seam}={name} twice")


def _check_component(component: Component) -> None:
    if component.seam not in SEAMS:
        raise ValueError(unknown_name("seam", component.seam, SEAMS))
    where = f"{component.seam}={component.name}"
    if not re.fullmatch(r"[a-zA-Z][\w-]*", component.name) or component.name == AUTO:
        raise ValueError(f"{where}: a name is letters, digits, _ and -, and not {AUTO!r}")
    if not (isinstance(component.config, type) and dataclasses.is_dataclass(component.config)):
        raise TypeError(f"{where}: config={component.config!r} is not a dataclass")
    component.config()  # every option has a default
    options = {o.name for o in dataclasses.fields(component.config)}
    taken = options & set(children_of(component.seam))
    if taken:
        raise ValueError(f"{where}: option names {sorted(taken)} belong to other seams")
