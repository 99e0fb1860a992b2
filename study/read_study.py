"""A study file read into a Study, with everything that is wrong with it said at once."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from interlock.core.closest import unknown_name
from interlock.core.errors import ConfigError
from interlock.core.registry import Registry
from interlock.study import read_values
from interlock.study.composer import Composer
from interlock.study.designs import DESIGNS, design_problems
from interlock.study.difference import FREE
from interlock.study.plan import check_overrides
from interlock.study.read_factors import read_also, read_factors
from interlock.study.read_metrics import read_metrics
from interlock.study.spec import Factor, Level, Study
from interlock.study.study_yaml import read_yaml

KEYS = (
    "name", "title", "base", "factors", "baseline", "design", "design_options", "metrics",
    "repeats", "warmup_runs", "seed", "confidence", "timeout_s", "launcher", "also",
)  # fmt: skip
LONGEST_S = 1e6
"""Eleven days: no system waits for longer in one go."""
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


def read_study(
    path: Path,
    registry: Registry,
    overrides: tuple[str, ...] = (),
    composer: Composer | None = None,
) -> Study:
    """The study of a YAML file.

    `overrides` are added to the base; those that begin with `study.` change a key of the file.
    `composer` keeps what was composed to check them, for whoever plans the study.
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
    problems += check_overrides(study, composer or Composer(registry))
    if problems:
        raise ConfigError([f"{path}: {problem}" for problem in problems])
    return study


def changed_study(study: Study, overrides: tuple[str, ...]) -> Study:
    """A study that goes on with other values of keys that change no run: `study.timeout_s=600`.

    Raises ConfigError for other keys, and for values out of range.
    """
    problems: list[str] = []
    tree: dict[str, Any] = {}
    for text in overrides:
        key = text.removeprefix(PREFIX).partition("=")[0]
        if not text.startswith(PREFIX) or key not in FREE:
            may = ", ".join(f"{PREFIX}{key}" for key in FREE)
            problems.append(f"{text}: a resumed study stays as it is; what may change: {may}")
    _override(tree, overrides, problems)
    read: dict[str, Callable[[], Any]] = {
        "title": lambda: read_values.text(tree, "title", "", problems),
        "confidence": lambda: _confidence(tree, problems),
        "timeout_s": lambda: _timeout_s(tree, problems),
        "launcher": lambda: _launcher(tree, problems),
    }
    changes: dict[str, Any] = {key: read[key]() for key in FREE if key in tree}
    changed = replace(study, **changes)
    if study.design == "search":
        problems += design_problems(changed)  # which may not be launched
    if problems:
        raise ConfigError(problems)
    return changed


def study_of(
    tree: Mapping[str, Any], name: str, extra: tuple[str, ...], problems: list[str]
) -> Study | None:
    """The study that these values state; None when a problem was added."""
    before = len(problems)
    problems += [unknown_name("key of a study", key, KEYS) for key in tree if key not in KEYS]
    base = (*read_values.texts(tree, "base", problems), *extra)
    factors = read_factors(tree, problems)
    design, options = _design(tree, problems)
    study = Study(
        name=read_values.name(tree, name, problems),
        title=read_values.text(tree, "title", "", problems),
        base=base,
        factors=factors,
        design=design,
        design_options=options,
        metrics=read_metrics(tree, base, problems),
        repeats=read_values.whole(tree, "repeats", 3, 1, problems),
        warmup_runs=read_values.whole(tree, "warmup_runs", 1, 0, problems),
        seed=read_values.whole(tree, "seed", 0, 0, problems),
        confidence=_confidence(tree, problems),
        timeout_s=_timeout_s(tree, problems),
        launcher=_launcher(tree, problems),
        also=read_also(tree, problems),
    )
    if study.launcher and "warmup_runs" in tree:
        problems.append(
            "warmup_runs: a launcher's jobs are processes of their own, each of which is warmed up "
            "before its run; leave out warmup_runs"
        )
    problems += _fixed_by_the_study(study)
    if len(problems) == before:
        problems += design_problems(study)
    if len(problems) == before:
        study = _with_swept_factor(study)
    problems += _set_twice(extra, study.factors)
    problems += _undone(factors)
    return study if len(problems) == before else None


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


def _confidence(tree: Mapping[str, Any], problems: list[str]) -> float:
    words = "from 0.5 to below 1"
    return read_values.number(tree, "confidence", lambda x: 0.5 <= x < 1, words, problems) or 0.95


def _timeout_s(tree: Mapping[str, Any], problems: list[str]) -> float | None:
    words = "from above 0 to 1000000 s"
    return read_values.number(tree, "timeout_s", lambda x: 0 < x <= LONGEST_S, words, problems)


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


def _fixed_by_the_study(study: Study) -> list[str]:
    """Overrides that would break what makes the cells of a block comparable."""
    reasons = {
        "seed": "each repeat has a seed of its own; the study's is `seed: N`",
        "rerun": "a study runs its cells anew",
        "hydra": "a study has its own folders and launcher",
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
        if (key := _key(text).partition(".")[0]) in reasons
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


def _undone(factors: tuple[Factor, ...]) -> list[str]:
    """Levels whose overrides another one undoes, in the same level or in that of a later factor.

    Cells would bear the name of a level that they do not have.
    """
    problems = []
    set_by: dict[str, tuple[str, str]] = {}
    for factor in factors:
        here: dict[str, tuple[str, str]] = {}
        for level in factor.levels:
            place, own = f"factors.{factor.name}.{level.name}", set[str]()
            for text in level.overrides:
                if (key := _key(text)) in own:
                    problems.append(f"{place} sets {key} twice")
                elif key in set_by:
                    before, by = set_by[key]
                    problems.append(
                        f"{place}: {text} undoes {before} of {by} in cells that have both; what "
                        "one factor sets, another may not"
                    )
                own.add(key)
                here.setdefault(key, (text, place))
        set_by |= here
    return problems


def _key(override: str) -> str:
    return override.lstrip("+~").partition("=")[0]


def _with_swept_factor(study: Study) -> Study:
    """A latency curve's load is one more factor, whose first value is the baseline's."""
    if study.design != "latency_curve":
        return study
    key, values = str(study.design_options["over"]), study.design_options["values"]
    assert isinstance(values, list)
    levels = tuple(Level(str(value), (f"{key}={value}",)) for value in values)
    factors = (*study.factors, Factor(key.rsplit(".", 1)[-1], levels))
    return Study(**{**vars(study), "factors": factors})
