"""Overrides as Hydra's grammar reads them, sorted into selections and values."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, OverrideType
from hydra.errors import HydraException

from interlock.conf.overrides import Plan, Setting, Vocabulary, quoted, quoted_items
from interlock.conf.presets import find_presets
from interlock.core.registry import Registry

PREFIXES = {
    OverrideType.CHANGE: "",
    OverrideType.ADD: "+",
    OverrideType.FORCE_ADD: "++",
    OverrideType.DEL: "~",
}


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
