"""A study file read into a Study, with everything that is wrong with it said at once."""

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from interlock.core.closest import unknown_name
from interlock.core.errors import ConfigError
from interlock.core.registry import Registry
from interlock.study.designs import DESIGNS, design_problems
from interlock.study.metrics import DEFAULTS, REPLAY_DEFAULTS, metric_of
from interlock.study.plan import check_overrides
from interlock.study.read_factors import read_also, read_factors
from interlock.study.spec import Factor, Level, Metric, Study
from interlock.study.study_yaml import read_yaml

KEYS = (
    "name", "title", "base", "factors", "baseline", "design", "design_options", "metrics",
    "repeats", "warmup_runs", "seed", "confidence", "timeout_s", "launcher", "also",
)  # fmt: skip
LONGEST_S = 1e6
"""Eleven days: no system waits for longer in one go."""
NAME = re.compile(r"\w[\w .+-]{0,99}")
PREFIX = "study."
"""Before a key of the file, on the command line: `study.repeats=5`."""
EXAMPLE = """\
  name: cache_and_drafter
  base: [workload.num_requests=32]
  factors:
    cache: {none: [cache=none], radix: [cache=radix]}
    spec:
      none: [spec=none]
      eagle: [spec=eagle, spec.num_drafts=3]
  metrics: [mean_ttft_ms, output_throughput]
  repeats: 3"""


def read_study(path: Path, registry: Registry, overrides: tuple[str, ...] = ()) -> Study:
    """The study of a YAML file.

    `overrides` are added to the base; those that begin with `study.` change a key of the file.
    Raises ConfigError with every problem: unknown keys, designs, levels and choices (with the
    closest match), values out of range, and overrides that no composition accepts.
    """
    tree, _, problems = read_yaml(path)
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: a study is a mapping, such as\n{EXAMPLE}")
    _override(tree, overrides, problems)
    engine = tuple(text for text in overrides if not text.startswith(PREFIX))
    study = study_of(tree, path.stem, engine, problems)
    if study is None:
        raise ConfigError([f"{path}: {problem}" for problem in problems])
    problems += check_overrides(study, registry)
    if problems:
        raise ConfigError([f"{path}: {problem}" for problem in problems])
    return study


def study_of(
    tree: Mapping[str, Any], name: str, extra: tuple[str, ...], problems: list[str]
) -> Study | None:
    """The study that these values state; None when a problem was added."""
    before = len(problems)
    problems += [unknown_name("key of a study", key, KEYS) for key in tree if key not in KEYS]
    base = (*_texts(tree, "base", problems), *extra)
    factors = read_factors(tree, problems)
    design, options = _design(tree, problems)
    study = Study(
        name=_name(tree, name, problems),
        title=_text(tree, "title", "", problems),
        base=base,
        factors=factors,
        design=design,
        design_options=options,
        metrics=_metrics(tree, base, problems),
        repeats=_whole(tree, "repeats", 3, 1, problems),
        warmup_runs=_whole(tree, "warmup_runs", 1, 0, problems),
        seed=_whole(tree, "seed", 0, 0, problems),
        confidence=_number(tree, "confidence", _is_confidence, "from 0.5 to below 1", problems)
        or 0.95,
        timeout_s=_number(tree, "timeout_s", _is_time, "from above 0 to 1000000 s", problems),
        launcher=_launcher(tree, problems),
        also=read_also(tree, problems),
    )
    problems += _fixed_by_the_study(study)
    problems += _set_twice(extra, factors)
    if len(problems) == before:
        problems += design_problems(study)
    return _with_swept_factor(study) if len(problems) == before else None


def _override(tree: dict[str, Any], overrides: tuple[str, ...], problems: list[str]) -> None:
    for text in overrides:
        key, equals, value = text.removeprefix(PREFIX).partition("=")
        if not text.startswith(PREFIX):
            continue
        if not equals or key not in KEYS:
            problems.append(f"{text}: {unknown_name('key of a study', key, KEYS)}")
        elif key in ("base", "factors", "baseline", "design_options", "also"):
            problems.append(f"{text}: {key} is written in the file")
        elif key == "metrics":
            tree[key] = value.strip("[]").split(",")
        else:
            tree[key] = value


def _text(tree: Mapping[str, Any], key: str, default: str, problems: list[str]) -> str:
    value = tree.get(key, default)
    if isinstance(value, str):
        return value
    problems.append(f"{key} is one text, not a {_kind(value)}")
    return default


def _name(tree: Mapping[str, Any], default: str, problems: list[str]) -> str:
    """The study's name, which is a folder's as well."""
    name = _text(tree, "name", default, problems)
    if NAME.fullmatch(name) is None:
        problems.append(
            f"name={name[:60]!r} is not 1 to 100 letters, digits, spaces and ._+- that begin with "
            "a letter or digit; a folder has this name (title takes any text)"
        )
    return name


def _texts(tree: Mapping[str, Any], key: str, problems: list[str]) -> tuple[str, ...]:
    value = tree.get(key) or []
    items = [value] if isinstance(value, str) else value
    if isinstance(items, list) and all(isinstance(item, str) for item in items):
        return tuple(items)
    problems.append(f"{key} is a list of overrides, such as [cache=radix, seed=1]")
    return ()


def _whole(tree: Mapping[str, Any], key: str, default: int, least: int, problems: list[str]) -> int:
    value = tree.get(key, default)
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = least - 1
    if not least <= number <= 2**31:
        problems.append(f"{key}={value!r} is not a whole number from {least} on")
        return default
    return number


def _is_confidence(number: float) -> bool:
    return 0.5 <= number < 1


def _is_time(number: float) -> bool:
    return 0 < number <= LONGEST_S


def _number(
    tree: Mapping[str, Any], key: str, fits: Callable[[float], bool], words: str,
    problems: list[str],
) -> float | None:  # fmt: skip
    """None where the key is not there, or a problem was added."""
    if key not in tree:
        return None
    value = tree[key]
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if fits(number):
        return number
    problems.append(f"{key}={value!r} is not {words}")
    return None


def _launcher(tree: Mapping[str, Any], problems: list[str]) -> dict[str, str]:
    """`launcher: joblib`, or `launcher: {name: joblib, n_jobs: 2}`."""
    stated = tree.get("launcher") or {}
    found = {"name": stated} if isinstance(stated, str) else stated
    plain = isinstance(found, dict) and all(isinstance(value, str) for value in found.values())
    if not plain or (found and "name" not in found):
        problems.append("launcher is a name, or {name: joblib, n_jobs: 2}")
        return {}
    return dict(found)


def _design(tree: Mapping[str, Any], problems: list[str]) -> tuple[str, dict[str, object]]:
    """The design's name and its options, written beside it or as `design: {name: ..., ...}`."""
    stated = tree.get("design", "full_factorial")
    options = tree.get("design_options") or {}
    if not isinstance(options, dict):
        problems.append("design_options is a mapping of options")
        options = {}
    if isinstance(stated, dict):
        options = {**options, **{key: value for key, value in stated.items() if key != "name"}}
        stated = stated.get("name", "")
    if not isinstance(stated, str) or stated not in DESIGNS:
        problems.append(unknown_name("design", str(stated), DESIGNS))
        return "full_factorial", {}
    known = DESIGNS[stated].options
    for key in options:
        if key not in known:
            problems.append(unknown_name(f"option of design {stated}", key, known))
    return stated, dict(options)


def _metrics(
    tree: Mapping[str, Any], base: tuple[str, ...], problems: list[str]
) -> tuple[Metric, ...]:
    default = REPLAY_DEFAULTS if "replay.blocks=ids" in base else DEFAULTS
    stated = tree.get("metrics") or list(default)
    found: list[Metric] = []
    for item in stated if isinstance(stated, list) else [stated]:
        of = {"key": item} if isinstance(item, str) else item
        known = isinstance(of, dict) and not set(of) - {"key", "better", "scale"}
        if not known or not isinstance(of.get("key"), str):
            problems.append(f"metrics: {item!r} is no key of summary.json, nor {{key: ..., "
                            "better: lower or higher, scale: ratio or difference}")  # fmt: skip
            continue
        better, scale = of.get("better", ""), of.get("scale", "")
        if better not in ("", "lower", "higher") or scale not in ("", "ratio", "difference"):
            problems.append(f"metrics: {of['key']}: better is lower or higher, and scale is ratio "
                            f"or difference, not {better or scale!r}")  # fmt: skip
            continue
        found.append(metric_of(of["key"].strip(), better, scale))
    keys = [metric.key for metric in found]
    problems += [f"metrics: {key} stands twice" for key in set(keys) if keys.count(key) > 1]
    return tuple(found)


def _fixed_by_the_study(study: Study) -> list[str]:
    """Overrides that would break what makes the cells of a block comparable."""
    reasons = {
        "seed": "each repeat has a seed of its own; the study's is `seed: N`",
        "rerun": "a study runs its cells anew",
        "progress": "the study shows its own progress",
    }
    places = [("base", study.base)]
    for factor in study.factors:
        places += [(f"factors.{factor.name}.{one.name}", one.overrides) for one in factor.levels]
    places += [(f"also.{one.name}", one.overrides) for one in study.also]
    return [
        f"{place}: {text}: {reasons[key]}"
        for place, overrides in places
        for text in overrides
        if (key := text.lstrip("+~").partition("=")[0]) in reasons
    ]


def _set_twice(extra: tuple[str, ...], factors: tuple[Factor, ...]) -> list[str]:
    """Overrides of the command line that a level would undo without a word."""
    keys = {text.partition("=")[0]: text for text in extra}
    return [
        f"{keys[key]} is undone by factors.{factor.name}.{level.name}, which sets {text}; change "
        "the study file"
        for factor in factors
        for level in factor.levels
        for text in level.overrides
        if (key := text.partition("=")[0]) in keys
    ]


def _with_swept_factor(study: Study) -> Study:
    """A latency curve's load is one more factor, whose first value is the baseline's."""
    if study.design != "latency_curve":
        return study
    key, values = str(study.design_options["over"]), study.design_options["values"]
    assert isinstance(values, list)
    levels = tuple(Level(str(value), (f"{key}={value}",)) for value in values)
    factors = (*study.factors, Factor(key.rsplit(".", 1)[-1], levels))
    return Study(**{**vars(study), "factors": factors})


def _kind(value: Any) -> str:
    return "list" if isinstance(value, list) else "mapping"
