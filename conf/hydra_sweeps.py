"""What is wrong with a sweep whatever it sweeps over, before any of its jobs."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from interlock.conf.hydra_edge import (
    UNREADABLE,
    Seen,
    composed_values,
    selected_values,
    selections_of,
)
from interlock.conf.hydra_overrides import plan_overrides
from interlock.conf.overrides import apply_values
from interlock.conf.read_config import read_config
from interlock.conf.sweeps import conditional_problems
from interlock.core.errors import ConfigError
from interlock.core.options import defaults_of
from interlock.core.registry import Registry
from interlock.core.seams import children_of


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
    same = selections_of(plan, config_folders)
    has = partial(_has, registry=registry, same=same, seen={})
    problems += conditional_problems(chosen, plan.values, has, registry)
    plan.refused += [s.key for s in chosen]
    swept = [replace(s, value=s.sweep[0], sweep=None) for s in plan.values if s.sweep]
    plan.values = [s for s in plan.values if s.sweep is None]
    values = composed_values(plan, config_folders, registry, problems)
    if values is not None:
        unknown = [s for s in swept if OmegaConf.select(OmegaConf.create(values), s.key) is None]
        problems.extend(apply_values(unknown, plan.refused, values))
        read_config(values, registry, problems)
    if problems:
        raise ConfigError(problems)


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
            seen[selections] = selected_values(selections, registry)
    except (*UNREADABLE, UnicodeDecodeError):
        return None  # its own job says why
    node: Any = seen[selections]
    for part in key.split("."):
        if not isinstance(node, dict) or part not in node:
            return False if isinstance(node, dict) and "name" in node else None
        node = node[part]
    return True
