"""Hydra on one side, plain dataclasses on the other: publish components, compose, convert.

This file and cli.py are the only ones that import Hydra or OmegaConf.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, OverrideType
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError  # type: ignore[import-untyped]  # a dependency of Hydra, without stubs

from interlock.conf.overrides import Plan, Setting, Vocabulary, apply_values, quoted, quoted_items
from interlock.conf.presets import find_presets
from interlock.conf.read_config import default_options, drop_replaced, read_config
from interlock.conf.sweeps import conditional_problems
from interlock.core.errors import ConfigError
from interlock.core.options import defaults_of
from interlock.core.registry import Registry, load_registry
from interlock.core.seams import SEAMS, children_of
from interlock.core.settings import EngineConfig

CONFIG_MODULE = "interlock.conf"
HYDRA_ARGUMENTS = {"version_base": "1.3"} if hydra.__version__.startswith("1.3") else {}
"""Hydra 1.4 takes no version base; 1.3 without one behaves as 1.1 did."""
STORE_ARGUMENTS: dict[str, Any] = (
    {"replace": True} if "replace" in signature(ConfigStore.store).parameters else {}
)
"""Hydra 1.4 warns when an option is stored again, unless it is told."""
PREFIXES = {
    OverrideType.CHANGE: "",
    OverrideType.ADD: "+",
    OverrideType.FORCE_ADD: "++",
    OverrideType.DEL: "~",
}
UNREADABLE = (HydraException, OmegaConfBaseException, YAMLError)
"""What Hydra raises for configuration files and overrides that it cannot make sense of."""
_plugin_folders: list[str] = []
Seen = dict[tuple[str, ...], dict[str, Any]]
"""Selections -> the values that they come to."""


class PluginFolders(SearchPathPlugin):
    """Adds the config folders of installed plugins to Hydra's search path."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Called by Hydra whenever it builds a search path."""
        for folder in _plugin_folders:
            search_path.append(provider="interlock plugin", path=f"file://{folder}")


def publish(registry: Registry) -> None:
    """Make every setting and every component selectable in Hydra. May be called again."""
    store = partial(ConfigStore.instance().store, **STORE_ARGUMENTS)
    store(name="settings", node=defaults_of(EngineConfig), provider="interlock")
    for seam in SEAMS:
        for name in registry.names(seam):
            origin = registry.origins.get((seam, name), "interlock")
            node = default_options(seam, name, registry)
            store(group=seam, name=name, node=node, provider=str(origin))
    _plugin_folders[:] = registry.config_dirs
    Plugins.instance().register(PluginFolders)


def compose(
    overrides: Sequence[str] = (),
    registry: Registry | None = None,
    config_folders: Sequence[str | Path] = (),
    seen: Seen | None = None,
) -> EngineConfig:
    """The configuration that these overrides ask for, exactly as the command line reads them.

    `seen` keeps what selections of choices come to, for the many configurations of a study that
    differ in values; it belongs to one registry and the files as they are.

    Raises ConfigError with every problem: overrides that cannot be parsed, unknown groups,
    choices and options with the closest match (forced in with '++' or not), wrong types, values
    out of range.
    """
    registry = registry or load_registry()
    plan = plan_overrides(overrides, registry, config_folders)
    problems = list(plan.problems)
    values = _compose_values(plan, config_folders, registry, problems, seen)
    config = None if values is None else read_config(values, registry, problems)
    if problems or config is None:
        raise ConfigError(problems)
    return config


def check_sweep(
    overrides: Sequence[str], registry: Registry, config_folders: Sequence[str | Path] = ()
) -> None:
    """Raise ConfigError with what is wrong with every job of a sweep, whatever it sweeps over.

    Swept values are left to their jobs, so that a refused one stops no other; but an unknown key
    is unknown in all of them.
    """
    plan = plan_overrides(overrides, registry, config_folders, sweeps=True)
    problems = list(plan.problems)
    chosen = [s for s in plan.selections if s.sweep is not None]
    plan.selections = [s for s in plan.selections if s.sweep is None]
    same = _selections(plan, config_folders)
    has = partial(_has, registry=registry, same=same, seen={})
    problems += conditional_problems(chosen, plan.values, has, registry)
    plan.refused += [s.key for s in chosen]
    swept = [replace(s, value=s.sweep[0], sweep=None) for s in plan.values if s.sweep]
    plan.values = [s for s in plan.values if s.sweep is None]
    values = _compose_values(plan, config_folders, registry, problems)
    if values is not None:
        unknown = [s for s in swept if OmegaConf.select(OmegaConf.create(values), s.key) is None]
        problems.extend(apply_values(unknown, plan.refused, values))
        read_config(values, registry, problems)
    if problems:
        raise ConfigError(problems)


def plan_overrides(
    overrides: Sequence[str],
    registry: Registry,
    config_folders: Iterable[str | Path] = (),
    sweeps: bool = False,
) -> Plan:
    """The overrides sorted into selections and values, with what is wrong with their names."""
    problems: list[str] = []
    settings = [parsed for text in overrides if (parsed := _parse(text, problems))]
    folders = [*registry.config_dirs, *config_folders, *_search_path(settings)]
    plan = Vocabulary(registry, find_presets(folders)).sort(settings, sweeps)
    plan.problems[:0] = problems
    return plan


def from_hydra(composed: DictConfig, registry: Registry) -> EngineConfig:
    """The configuration inside a job that Hydra composed; ConfigError with every problem."""
    problems: list[str] = []
    values = _resolved(composed)
    drop_replaced(values, HydraConfig.get().runtime.choices, registry)
    config = read_config(values, registry, problems)
    if config is None:
        raise ConfigError(problems)
    return config


def _parse(text: str, problems: list[str]) -> Setting | None:
    try:
        parsed: Override = OverridesParser.create().parse_override(text)
        listed = parsed.is_discrete_sweep() and not isinstance(parsed.value(), Glob)
        sweep = tuple(parsed.sweep_iterator()) if listed else None
    except HydraException as error:
        if "=" not in text and not text.startswith("~"):
            problems.append(f"{text!r} is no override; write KEY=VALUE or GROUP=NAME")
            return None
        reason = str(error).splitlines()[0]
        key, _, rest = text.partition("=")
        if "/" in key and "." in key:
            right = f"{key.replace('/', '.')}={rest}"
            problems.append(f"{text!r}: options are set with dots; write {right!r}")
            return None
        each = f", or for a list of texts {items}" if (items := quoted_items(text)) else ""
        problems.append(
            f"cannot read the override {text!r} ({reason}); to take the value as it stands, "
            f"write {quoted(text)}{each} (see Quoting in --help)"
        )
        return None
    if sweep is None and parsed.is_sweep_override():
        sweep = ()
    value = None if sweep is not None else parsed.value()
    prefix = PREFIXES[parsed.type]
    return Setting(text, prefix, parsed.key_or_group, value, parsed.package, sweep)


def _search_path(settings: Iterable[Setting]) -> list[str]:
    listed = [s.value for s in settings if s.key == "hydra.searchpath"]
    folders = [str(item).removeprefix("file://") for items in listed for item in items or ()]
    return [folder for folder in folders if "://" not in folder]


def _compose_values(
    plan: Plan,
    config_folders: Sequence[str | Path],
    registry: Registry,
    problems: list[str],
    seen: Seen | None = None,
) -> dict[str, Any] | None:
    seen, key = {} if seen is None else seen, tuple(_selections(plan, config_folders))
    try:
        if key not in seen:
            seen[key] = _selected(key, registry)
        values = deepcopy(seen[key])
        problems.extend(apply_values(plan.values, plan.refused, values))
        return _resolved(OmegaConf.create(values))
    except (*UNREADABLE, UnicodeDecodeError) as error:
        problems.append(" ".join(str(error).split()))
        problems.extend(map(str, registry.broken))
        return None


def _selections(plan: Plan, config_folders: Sequence[str | Path]) -> list[str]:
    selections = [s.text for s in plan.selections]
    if config_folders:
        folders = ",".join(f'"file://{Path(folder).resolve()}"' for folder in config_folders)
        selections.append(f"hydra.searchpath=[{folders}]")
    return [*selections, *(s.text for s in plan.hydra if s.key == "hydra.searchpath")]


def _has(
    group: str, choice: str, key: str, registry: Registry, same: Sequence[str], seen: Seen
) -> bool | None:
    """Whether a swept choice has an option, beside the choices that all jobs make (`same`)."""
    component = registry.components.get((group, choice))
    if component is not None:
        option = key.split(".")[group.count("/") + 1]
        nested = option in children_of(group)  # whose options depend on what is chosen there
        return None if nested else option in defaults_of(component.config)
    selections = (*same, f"{group}={choice}")
    try:
        if selections not in seen:
            seen[selections] = _selected(selections, registry)
    except (*UNREADABLE, UnicodeDecodeError):
        return None  # its own job says why
    node: Any = seen[selections]
    for part in key.split("."):
        if not isinstance(node, dict) or part not in node:
            return False if isinstance(node, dict) and "name" in node else None
        node = node[part]
    return True


def _selected(selections: Sequence[str], registry: Registry) -> dict[str, Any]:
    """What these choices come to, before any option is set."""
    publish(registry)
    with _hydra():
        composed = hydra.compose("config", overrides=list(selections), return_hydra_config=True)
    selected = composed.hydra.runtime.choices
    values: dict[str, Any] = OmegaConf.to_container(composed)  # type: ignore[assignment]
    del values["hydra"]
    drop_replaced(values, selected, registry)
    return values


def _resolved(composed: DictConfig) -> dict[str, Any]:
    try:
        values: dict[str, Any] = OmegaConf.to_container(composed, resolve=True)  # type: ignore[assignment]
    except OmegaConfBaseException as error:
        raise ConfigError(" ".join(str(error).split())) from error
    return values


@contextmanager
def _hydra() -> Iterator[None]:
    """Hydra set up for composing, whether or not a Hydra job is running around us."""
    outer = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with hydra.initialize_config_module(CONFIG_MODULE, **HYDRA_ARGUMENTS):
            yield
    finally:
        GlobalHydra.instance().hydra = outer
