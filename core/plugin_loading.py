"""Load one plugin: import its module, check its contract, take in all it contributes or nothing."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, is_dataclass
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
        about: Any = entry_point.dist.metadata if entry_point.dist else {}
        if "Name" not in about:  # nobody's, or of a folder from which METADATA is gone
            return Origin(f"(plugin {entry_point.name!r} without a distribution)", "")
        return Origin(about["Name"], about["Version"] if "Version" in about else "")


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
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit, and what a skipped test raises
        offered = frozenset((made.seam, made.name) for made in contribution.components)
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
    for hook, place, kind, called in _HOOKS:
        for group in getattr(manager.hook, hook)():
            if isinstance(group, str) or not isinstance(group, Iterable):
                raise TypeError(f"{hook} gave {group!r}, not a list of {called}s")
            for item in group:  # of a generator that fails, what came before is kept
                if not isinstance(item, kind):
                    raise TypeError(f"{hook} gave {item!r}, not a {called}")
                getattr(contribution, place).append(item)
    _check(contribution)


def _check(contribution: Contribution) -> None:
    """Raise what is wrong with its components, as ValueError or TypeError."""
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
    if not (isinstance(component.config, type) and is_dataclass(component.config)):
        raise TypeError(f"{where}: config={component.config!r} is not a dataclass")
    name = getattr(component.config(), "name", component.name)  # every option has a default
    if name != component.name:
        raise ValueError(f"{where}: its config's name is {name!r}, not {component.name!r}")
    taken = {o.name for o in fields(component.config)} & set(children_of(component.seam))
    if taken:
        raise ValueError(f"{where}: option names {sorted(taken)} belong to other seams")
