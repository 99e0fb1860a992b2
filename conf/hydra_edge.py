"""Hydra on one side, plain dataclasses on the other: publish components, compose, convert.

Few files import Hydra or OmegaConf: `hydra_*.py` in conf, driver and study, and the command line.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError  # type: ignore[import-untyped]  # a dependency of Hydra, without stubs

from interlock.conf.hydra_overrides import plan_overrides
from interlock.conf.overrides import Plan, apply_values
from interlock.conf.read_config import default_options, drop_replaced, read_config
from interlock.core.errors import ConfigError
from interlock.core.options import defaults_of
from interlock.core.registry import Registry, load_registry
from interlock.core.seams import SEAMS
from interlock.core.settings import EngineConfig

CONFIG_MODULE = "interlock.conf"
HYDRA_ARGUMENTS = {"version_base": "1.3"} if hydra.__version__.startswith("1.3") else {}
"""Hydra 1.4 takes no version base; 1.3 without one behaves as 1.1 did."""
STORE_ARGUMENTS: dict[str, Any] = (
    {"replace": True} if "replace" in signature(ConfigStore.store).parameters else {}
)
"""Hydra 1.4 warns when an option is stored again, unless it is told."""
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
    values = composed_values(plan, config_folders, registry, problems, seen)
    config = None if values is None else read_config(values, registry, problems)
    if problems or config is None:
        raise ConfigError(problems)
    return config


def from_hydra(composed: DictConfig, registry: Registry) -> EngineConfig:
    """The configuration inside a job that Hydra composed; ConfigError with every problem."""
    problems: list[str] = []
    values = _resolved(composed)
    drop_replaced(values, HydraConfig.get().runtime.choices, registry)
    config = read_config(values, registry, problems)
    if config is None:
        raise ConfigError(problems)
    return config


def composed_values(
    plan: Plan,
    config_folders: Sequence[str | Path],
    registry: Registry,
    problems: list[str],
    seen: Seen | None = None,
) -> dict[str, Any] | None:
    """What selections and values come to, as plain values; None, with a problem, where to nothing.

    `seen`: see `compose`.
    """
    seen, key = {} if seen is None else seen, tuple(selections_of(plan, config_folders))
    try:
        if key not in seen:
            seen[key] = selected_values(key, registry)
        values = deepcopy(seen[key])
        problems.extend(apply_values(plan.values, plan.refused, values))
        return _resolved(OmegaConf.create(values))
    except (*UNREADABLE, UnicodeDecodeError) as error:
        problems.append(" ".join(str(error).split()))
        problems.extend(map(str, registry.broken))
        return None


def selections_of(plan: Plan, config_folders: Sequence[str | Path]) -> list[str]:
    """The overrides by which Hydra chooses files and components, and where it looks for them."""
    selections = [s.text for s in plan.selections]
    if config_folders:
        folders = ",".join(f'"file://{Path(folder).resolve()}"' for folder in config_folders)
        selections.append(f"hydra.searchpath=[{folders}]")
    return [*selections, *(s.text for s in plan.hydra if s.key == "hydra.searchpath")]


def selected_values(selections: Sequence[str], registry: Registry) -> dict[str, Any]:
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
