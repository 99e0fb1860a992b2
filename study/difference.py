"""In what one study differs from another, line by line, as their files would say it."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from interlock.study.spec import Factor, Level, Study

FREE = ("title", "confidence", "timeout_s", "launcher")
"""Keys that change no run: a study goes on with others."""
SPECIAL = ("base", "factors", "also", "metrics")


def differences(before: Study, now: Study) -> list[str]:
    """Where their runs would differ; nothing where one may go on as the other."""
    old, new = asdict(before), asdict(now)
    plain = [key for key in new if key not in (*FREE, *SPECIAL) and old[key] != new[key]]
    found = [f"{key}: {_said(old[key])} there, {_said(new[key])} now" for key in plain]
    found += _changed("base", before.base, now.base)
    metrics = [[one.key for one in study.metrics] for study in (before, now)]
    found += _changed("metrics", *metrics) or (
        ["metrics: another direction or scale"] if before.metrics != now.metrics else []
    )
    found += _levels("also", before.also, now.also)
    return [*found, *_factors(before.factors, now.factors)]


def _factors(before: Sequence[Factor], now: Sequence[Factor]) -> Iterator[str]:
    names = [[factor.name for factor in factors] for factors in (before, now)]
    yield from _changed("factors", *names)
    old = {factor.name: factor for factor in before}
    for factor in now:
        if factor.name in old:
            yield from _levels(f"factors.{factor.name}", old[factor.name].levels, factor.levels)


def _levels(place: str, before: Sequence[Level], now: Sequence[Level]) -> list[str]:
    found = _changed(place, *[[level.name for level in levels] for levels in (before, now)])
    old = {level.name: level for level in before}
    for level in now:
        if level.name in old:
            was = old[level.name]
            found += _changed(f"{place}.{level.name}", was.overrides, level.overrides)
            if was.lossy != level.lossy:
                found.append(f"{place}.{level.name}.lossy: {was.lossy} there, {level.lossy} now")
    return found


def _changed(place: str, before: Sequence[str], now: Sequence[str]) -> list[str]:
    """What only one of two lists has; or that they have it in another order."""
    only = [
        (text, where)
        for texts, others, where in ((before, now, "there"), (now, before, "now"))
        for text in texts
        if text not in others
    ]
    if not only and list(before) != list(now):
        return [f"{place}: {_said(before)} there, in another order now"]
    return [f"{place}: {text} is only {where}" for text, where in only]


def _said(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return "none" if value in (None, "") else str(value)
