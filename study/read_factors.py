"""The factors of a study file: levels with their overrides, the baseline's first."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from interlock.core.closest import unknown_name
from interlock.study.spec import Factor, Level

LEVEL_KEYS = ("overrides", "lossy")
FORM = "{none: [cache=none], radix: [cache=radix]}, or a list of choices, [none, radix]"


def read_factors(tree: Mapping[str, Any], problems: list[str]) -> tuple[Factor, ...]:
    """Every factor, with the level that `baseline` names (else the first) in front."""
    stated = tree.get("factors")
    if not isinstance(stated, dict) or not stated:
        problems.append("factors: say what is varied, such as factors: {cache: [none, radix]}")
        return ()
    factors = tuple(
        Factor(name, _levels(name, levels, problems)) for name, levels in stated.items()
    )
    problems += [
        f"factors: {name!r} is no name: one or more characters that can be printed"
        for factor in factors
        for name in (factor.name, *(level.name for level in factor.levels))
        if not name or not name.isprintable()
    ]
    baseline = tree.get("baseline") or {}
    if not isinstance(baseline, dict):
        problems.append("baseline names a level of factors, such as {cache: none}")
        return factors
    known = [factor.name for factor in factors]
    problems += [
        f"baseline: {unknown_name('factor', name, known)}" for name in baseline if name not in known
    ]
    return tuple(_based(factor, baseline, problems) for factor in factors)


def _based(factor: Factor, baseline: Mapping[str, Any], problems: list[str]) -> Factor:
    name = baseline.get(factor.name)
    if name is None or not factor.levels:
        return factor
    names = [level.name for level in factor.levels]
    if name not in names:
        problems.append(f"baseline: {unknown_name(f'level of {factor.name}', str(name), names)}")
        return factor
    first = factor.level(name)
    return replace(factor, levels=(first, *(one for one in factor.levels if one != first)))


def _levels(factor: str, stated: Any, problems: list[str]) -> tuple[Level, ...]:
    place = f"factors.{factor}"
    if isinstance(stated, list):
        if all(isinstance(item, str) for item in stated):
            twice = {item for item in stated if stated.count(item) > 1}
            problems += [f"{place}: {item!r} stands here twice" for item in sorted(twice)]
            stated = {item: [f"{factor}={item}"] for item in stated}
        else:
            problems.append(f"{place}: levels are {FORM}")
            return ()
    if not isinstance(stated, dict):
        problems.append(f"{place}: levels are {FORM}")
        return ()
    if len(stated) < 2:
        problems.append(
            f"{place}: {len(stated)} level; a factor that does not vary belongs in base"
        )
    return tuple(_level(f"{place}.{name}", name, value, problems) for name, value in stated.items())


def _level(place: str, name: str, stated: Any, problems: list[str]) -> Level:
    lossy = False
    if isinstance(stated, dict):
        for key in stated:
            if key not in LEVEL_KEYS:
                problems.append(f"{place}: {unknown_name('key of a level', key, LEVEL_KEYS)}")
        said = stated.get("lossy", "false")
        if said not in ("true", "false"):
            problems.append(f"{place}.lossy={said!r} is not true or false")
        lossy, stated = said == "true", stated.get("overrides", [])
    if stated == "":
        stated = []
    overrides = [stated] if isinstance(stated, str) else stated
    if not isinstance(overrides, list) or not all(isinstance(one, str) for one in overrides):
        problems.append(f"{place} is a list of overrides, such as [spec=eagle3, spec.depth=5]")
        return Level(name)
    return Level(name, tuple(overrides), lossy)


def read_also(tree: Mapping[str, Any], problems: list[str]) -> tuple[Level, ...]:
    """Compositions beside the design."""
    stated = tree.get("also") or {}
    if not isinstance(stated, dict):
        problems.append("also: compositions beside the design, such as {plain: [cache=none]}")
        return ()
    return tuple(_level(f"also.{name}", name, value, problems) for name, value in stated.items())
