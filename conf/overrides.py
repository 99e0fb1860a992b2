"""What is wrong with overrides before anything is composed: unknown groups, options and keys."""

import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from interlock.conf.presets import Preset
from interlock.core.closest import unknown_name
from interlock.core.registry import Registry
from interlock.core.seams import SEAMS

QUOTING = """\
Quoting: the shell takes one pair of quotes, Hydra the inner one.
  'workload.path="a=b,c #1.jsonl"'        '=' ',' '#' or other signs in a value
  'workload.path=my file.jsonl'           blanks alone need the shell's quotes only
  'sampling.stop_token_ids=[1, 2]'        a list
  'adapters=["a=b", fr:/x/french]'        a list of texts, one of which needs quotes
  'sampling.logit_bias={5: 1.5, 7: -2}'   a mapping
  cache.num_pages=null                    no value
  sampling.min_p=1e-3                     a number
  -m 'cache=radix,none'                   a comma makes a sweep, with -m"""


@dataclass(frozen=True)
class Setting:
    """One parsed override: `key=value`; `prefix` is '', '+', '++' or '~'."""

    text: str
    prefix: str
    key: str
    value: Any
    package: str | None = None
    sweep: tuple[Any, ...] | None = None
    """Every value of a sweep; () when they cannot be listed."""


@dataclass
class Plan:
    """Overrides sorted by what they do, with every problem found on the way."""

    selections: list[Setting] = field(default_factory=list)
    values: list[Setting] = field(default_factory=list)
    hydra: list[Setting] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """Config groups whose selection was refused: their options cannot be judged."""


class Vocabulary:
    """Every config group and what can be selected in it."""

    def __init__(self, registry: Registry, presets: Iterable[Preset]) -> None:
        self._registry = registry
        self.options: dict[str, set[str]] = {key: set(registry.names(key)) for key in SEAMS}
        for preset in presets:
            self.options.setdefault(preset.group, set()).add(preset.name)

    def sort(self, settings: Iterable[Setting], sweeps: bool) -> Plan:
        """Each setting in its place; with `sweeps` a comma-separated selection is allowed."""
        plan = Plan()
        for setting in settings:
            if setting.key.split("/")[0].split(".")[0] == "hydra":
                plan.hydra.append(setting)
            elif problem := self._form_problem(setting, sweeps):
                plan.problems.append(problem)
            elif setting.key in self.options and not isinstance(setting.value, Mapping):
                self._select(setting, plan)
            elif "/" in setting.key:
                plan.problems.append(unknown_name("config group", setting.key, self.options))
            else:
                plan.values.append(setting)
        return plan

    def _form_problem(self, setting: Setting, sweeps: bool) -> str | None:
        if setting.prefix == "~":
            return (
                f"{setting.text}: nothing can be removed from the configuration; write "
                f"{setting.key}=VALUE (null or none, where that is a value)"
            )
        chosen = any(f"{seam}/".startswith(f"{setting.key}/") for seam in SEAMS)
        if setting.prefix and chosen and not isinstance(setting.value, Mapping):
            return f"{setting.text}: {setting.key} is chosen already; write it without '+'"
        if setting.package is not None:
            plain = setting.key.split("@")[0]
            return f"{setting.text}: an option has one place; write {plain}=... without '@'"
        if setting.sweep is not None and not sweeps:
            return (
                f"{setting.text}: several values make a sweep, which needs -m; for one value "
                f"with a comma, write {quoted(setting.text)}"
            )
        seam = next((s for s in SEAMS.values() if setting.key == f"{s.dotted}.name"), None)
        if seam is not None:
            return f"{setting.text}: to choose a component, write {seam.key}={setting.value}"
        return None

    def _select(self, setting: Setting, plan: Plan) -> None:
        values = setting.sweep if setting.sweep is not None else (setting.value,)
        listed = [item for v in values for item in (v if isinstance(v, list) else [v])]
        known = self.options[setting.key]
        unknown = [str(name) for name in listed if str(name) not in known]
        for name in unknown:
            plan.problems.append(self._registry.unknown(setting.key, name, known))
        if unknown:
            plan.refused.append(setting.key)
        else:
            plan.selections.append(setting)


def quoted(text: str) -> str:
    """An override whose value is taken literally, as it is typed in a shell."""
    key, _, value = text.partition("=")
    return shlex.quote(f"{key}={_literal(value)}")


def quoted_items(text: str) -> str | None:
    """An override with a list whose items are taken literally; None where it holds no list."""
    key, _, value = text.partition("=")
    if value[:1] + value[-1:] != "[]":
        return None
    return shlex.quote(f"{key}=[{','.join(map(_literal, value[1:-1].split(',')))}]")


def literal(value: str) -> str:
    """A value that an override takes as it is."""
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _literal(value: str) -> str:
    return literal(value.strip(" \"'"))


def apply_values(
    settings: Iterable[Setting], refused: Iterable[str], onto: dict[str, Any]
) -> Iterator[str]:
    """Write values into nested dicts as they stand; keys and types are judged when it is read.

    Gives what is wrong on the way: a `+` before what is there (the command line takes it for new
    keys only). Options of a refused choice are left out: they belong to a component that is not
    there.
    """
    unsure = [
        f"{seam.dotted}."
        for seam in SEAMS.values()
        if any(f"{seam.key}/".startswith(f"{group}/") for group in refused)
    ]
    for setting in settings:
        if any(setting.key.startswith(prefix) for prefix in unsure):
            continue
        *parents, last = setting.key.split(".")
        node = onto
        for name in parents:
            if not isinstance(node.get(name), dict):
                node[name] = {}
            node = node[name]
        if setting.prefix == "+" and last in node:
            yield f"{setting.text}: {setting.key} is there already; write it without '+'"
        _merge(node, last, setting.value)


def _merge(node: dict[str, Any], key: str, value: Any) -> None:
    if isinstance(value, Mapping) and isinstance(node.get(key), dict):
        for name, item in value.items():
            _merge(node[key], str(name), item)
    else:
        node[key] = dict(value) if isinstance(value, Mapping) else value
