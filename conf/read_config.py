"""From nested plain values to a typed EngineConfig, every problem at once; and back."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from interlock.conf.check_settings import problems_of
from interlock.conf.decode import decode
from interlock.core.closest import unknown_name
from interlock.core.options import defaults_of, plain
from interlock.core.registry import Registry
from interlock.core.seams import SEAMS, Seam, children_of
from interlock.core.settings import AUTO, Choice, EngineConfig


def read_config(
    values: Mapping[str, Any], registry: Registry, problems: list[str]
) -> EngineConfig | None:
    """The configuration these values state; None when a problem was added to `problems`.

    Each choice's node holds `name` and the options of the component of that name; whatever else it
    holds is an unknown option, however it got there.
    """
    before = len(problems)
    rest = _copy(values)
    choices: dict[str, Choice] = {}
    for seam in sorted(SEAMS.values(), key=lambda seam: -len(seam.path)):
        choice = _take_choice(seam, rest, registry, problems)
        if choice is not None:
            choices[seam.key] = choice
    config = decode(EngineConfig, rest, "", problems, children_of(""))
    if config is None:
        return None
    problems.extend(problems_of(config))
    return dataclasses.replace(config, choices=choices) if len(problems) == before else None


def default_options(seam: str, name: str, registry: Registry) -> dict[str, Any]:
    """The config node of a choice: its name, its options' defaults, places for nested seams."""
    node: dict[str, Any] = {"name": name}
    component = registry.components.get((seam, name))
    if component is not None:
        node |= defaults_of(component.config) | {"name": name}
    return node | dict.fromkeys(children_of(seam))


def drop_replaced(
    values: Mapping[str, Any], selected: Mapping[str, Any], registry: Registry
) -> None:
    """Remove the defaults of components that a file replaced by stating another's name.

    `selected` is what was chosen by group (seam key -> name): its options stay in a node whose
    `name` a file (a saved configuration) then overwrites, though nobody asked for them.
    """
    for seam in SEAMS.values():
        node: Any = values
        for part in seam.path:
            node = node.get(part) if isinstance(node, dict) else None
        name, before = node.get("name") if isinstance(node, dict) else None, selected.get(seam.key)
        replaced = registry.components.get((seam.key, str(before)))
        chosen = registry.components.get((seam.key, str(name)))
        if replaced is None or chosen is None or name == before:
            continue
        kept = defaults_of(chosen.config).keys()
        for key, value in defaults_of(replaced.config).items():
            if key not in kept and key in node and node[key] == value:
                del node[key]


def to_plain(config: EngineConfig) -> dict[str, Any]:
    """The configuration as nested dicts, lists and scalars, choices under their config keys."""
    values: dict[str, Any] = plain(config)
    for key, choice in sorted(config.choices.items()):
        *parents, last = key.split("/")
        node = values
        for name in parents:
            node = node.setdefault(name, {})
        node[last] = {"name": choice.name, **(plain(choice.config) if choice.config else {})}
    return values


def _take_choice(
    seam: Seam, values: dict[str, Any], registry: Registry, problems: list[str]
) -> Choice | None:
    *parents, last = seam.path
    node: Any = values
    for parent in parents:
        node = node.get(parent) if isinstance(node, dict) else None
    chosen = node.pop(last, None) if isinstance(node, dict) else None
    if not isinstance(chosen, dict) or not isinstance(chosen.get("name"), str):
        if chosen is None or isinstance(chosen, dict):
            problems.append(f"nothing is chosen for {seam.key}; write {seam.key}=NAME")
        else:
            problems.append(
                f"{seam.dotted}={chosen!r} sets no options; to choose a component, write "
                f"{seam.key}={chosen}"
            )
        return None
    name = chosen.pop("name")
    if name not in registry.names(seam.key):
        problems.append(registry.unknown(seam.key, name))
        return None
    if name == AUTO:
        problems.extend(
            f"{seam.dotted}.{key}: {seam.key}={AUTO} has no options; choose a component to set them"
            for key in chosen
        )
        return Choice(AUTO)
    component = registry.components[seam.key, name]
    known = {key: value for key, value in chosen.items() if key in defaults_of(component.config)}
    problems.extend(_no_option(seam, name, key, registry) for key in chosen.keys() - known.keys())
    config = decode(component.config, known, seam.dotted, problems)
    return None if config is None else Choice(name, config)


def _no_option(seam: Seam, name: str, key: str, registry: Registry) -> str:
    """The message for an option that the chosen component lacks, and who has it."""
    options = {
        component.name: defaults_of(component.config).keys() - {"name"}
        for (of, _), component in registry.components.items()
        if of == seam.key
    }
    having = [f"{seam.key}={other}" for other in sorted(options) if key in options[other]]
    message = unknown_name(f"option of {seam.key}={name}", key, options[name])
    return f"{message}; it is an option of {', '.join(having)}" if having else message


def _copy(value: Any) -> Any:
    return {k: _copy(v) for k, v in value.items()} if isinstance(value, Mapping) else value
