"""Which compositions a study runs: every design gives cells, of which the baseline is the first."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod

from interlock.core.closest import unknown_name
from interlock.study.cells import unique
from interlock.study.covering import covering_rows
from interlock.study.fractions import aliases_of, fraction_rows
from interlock.study.spec import Cell, Study

MOST_CELLS = 10_000
"""Of a design that runs every combination; more would not end, nor be read."""
ONE_BY_ONE = "design search makes one run after the other, as each trial follows from those before"
Choices = Iterable[Mapping[str, str]]


@dataclass(frozen=True)
class Design:
    """How cells are chosen: the rows beside the baseline, and the options that it takes."""

    summary: str
    choices: Callable[[Study], Choices]
    options: tuple[str, ...] = ()


def cells_of(study: Study) -> tuple[Cell, ...]:
    """The cells of a study's design, the baseline first.

    Of `search` only the baseline is known before it runs.
    """
    return unique(study, DESIGNS[study.design].choices(study))


def checked_cells(study: Study) -> tuple[Cell, ...]:
    """Cells that hold every level, for a look at its overrides before anything runs."""
    return unique(study, _one_at_a_time(study)) if study.design == "search" else cells_of(study)


def design_problems(study: Study) -> list[str]:
    """What is wrong with a design's options, in words."""
    checks: dict[str, Callable[[Study], list[str]]] = {
        "fractional_factorial": _fraction_problems,
        "latency_curve": _curve_problems,
        "search": _search_problems,
        "leave_one_out": _two_level_problems,
        "add_one": _two_level_problems,
    }
    check = checks.get(study.design)
    problems = check(study) if check and study.factors else []
    return problems or _too_many(study)


def _too_many(study: Study) -> list[str]:
    """That every combination is more than a study takes."""
    values = study.design_options.get("values")
    loads = len(values) if isinstance(values, list) else 1
    count = prod(len(factor.levels) for factor in study.factors) * loads
    if study.design not in ("full_factorial", "latency_curve") or count <= MOST_CELLS:
        return []
    return [
        f"design {study.design} has {count:,} cells, and a study at most {MOST_CELLS:,}: take "
        "design pairwise, fractional_factorial or one_at_a_time, or fewer levels"
    ]


def most_trials(study: Study) -> int:
    """Of a search: how many are made, repeated ones included."""
    return int(str(study.design_options.get("trials", 20)))


def num_confirmed(study: Study) -> int:
    """Of a search: how many of the best are run again, beside the baseline."""
    return int(str(study.design_options.get("confirm", 3)))


def aliases(study: Study, cells: Iterable[Cell]) -> tuple[str, ...]:
    """Effects that these cells cannot tell apart, one sentence each; none for a full factorial."""
    return tuple(aliases_of(study, [cell for cell in cells if cell.levels]))


def _one_at_a_time(study: Study) -> Iterator[dict[str, str]]:
    for factor in study.factors:
        for level in factor.levels[1:]:
            yield {factor.name: level.name}


def _all_on(study: Study) -> dict[str, str]:
    """The last level of every factor: everything switched on."""
    return {factor.name: factor.levels[-1].name for factor in study.factors}


def _leave_one_out(study: Study) -> Iterator[dict[str, str]]:
    """Everything on, then each factor back at its first level; the baseline has all there."""
    full = _all_on(study)
    yield full
    for factor in study.factors:
        yield {**full, factor.name: factor.levels[0].name}


def _add_one(study: Study) -> Iterator[dict[str, str]]:
    """From the baseline on, one factor after the other is switched on, in the file's order."""
    levels: dict[str, str] = {}
    for name, level in _all_on(study).items():
        levels = {**levels, name: level}
        yield levels


def _full_factorial(study: Study) -> Iterator[dict[str, str]]:
    names = [factor.name for factor in study.factors]
    options = [[level.name for level in factor.levels] for factor in study.factors]
    for row in itertools.product(*options):
        yield dict(zip(names, row, strict=True))


def _fractional(study: Study) -> Iterator[dict[str, str]]:
    sizes = [len(factor.levels) for factor in study.factors]
    runs = study.design_options.get("runs")
    yield from _named(study, fraction_rows(sizes, int(str(runs)) if runs else None, study.seed))


def _pairwise(study: Study) -> Iterator[dict[str, str]]:
    yield from _named(study, covering_rows([len(factor.levels) for factor in study.factors]))


def _named(study: Study, rows: Iterable[tuple[int, ...]]) -> Iterator[dict[str, str]]:
    for row in rows:
        yield {f.name: f.levels[at].name for f, at in zip(study.factors, row, strict=True)}


def _nothing(_study: Study) -> Choices:
    return ()


DESIGNS: dict[str, Design] = {
    "one_at_a_time": Design("the baseline, and each other level alone", _one_at_a_time),
    "leave_one_out": Design("everything on, and without each in turn", _leave_one_out),
    "add_one": Design("one factor after the other switched on", _add_one),
    "full_factorial": Design("every combination of levels", _full_factorial),
    "fractional_factorial": Design(
        "a part of all combinations from which main effects can be estimated",
        _fractional,
        ("runs",),
    ),
    "pairwise": Design("few cells that hold every pair of levels", _pairwise),
    "latency_curve": Design(
        "every combination, at each value of a load", _full_factorial, ("over", "values")
    ),
    "search": Design(
        "compositions that Optuna proposes, towards the metrics",
        _nothing,
        ("trials", "timeout_s", "sampler", "confirm"),
    ),
}


def _fraction_problems(study: Study) -> list[str]:
    sizes = [len(factor.levels) for factor in study.factors]
    least, most = 1 + sum(size - 1 for size in sizes), prod(sizes)
    runs = study.design_options.get("runs")
    if runs is None or (str(runs).isdecimal() and least <= int(str(runs)) <= most):
        return []
    return [
        f"design_options.runs={runs!r} is not from {least} (a run for each main effect, and one) "
        f"to {most} (all combinations)"
    ]


def _curve_problems(study: Study) -> list[str]:
    over, values = study.design_options.get("over"), study.design_options.get("values")
    if not isinstance(over, str) or not isinstance(values, list) or len(values) < 2:
        return [
            "design latency_curve needs the load that it sweeps: "
            "design: {name: latency_curve, over: workload.rate, values: [1, 2, 4]}"
        ]
    name = over.rsplit(".", 1)[-1]
    if any(factor.name == name for factor in study.factors):
        return [f"factors.{name}: the latency curve over {over} is a factor of that name"]
    return [f"design_options.values: {v} twice" for v in set(values) if values.count(v) > 1]


def _two_level_problems(study: Study) -> list[str]:
    return [
        f"factors.{factor.name} has {len(factor.levels)} levels; design {study.design} switches "
        "factors on and off: give two (off first), or take one_at_a_time"
        for factor in study.factors
        if len(factor.levels) != 2
    ]


def _search_problems(study: Study) -> list[str]:
    problems = []
    for key in ("trials", "timeout_s"):
        value = study.design_options.get(key)
        if value is not None and not (str(value).isdecimal() and int(str(value)) > 0):
            problems.append(f"design_options.{key}={value!r} is not a whole number from 1 on")
    confirm = study.design_options.get("confirm", 1)
    if not str(confirm).isdecimal():
        problems.append(f"design_options.confirm={confirm!r} is not a whole number from 0 on")
    sampler = study.design_options.get("sampler", "tpe")
    problems += [] if study.metrics else ["design search needs metrics, towards which it goes"]
    if study.launcher:
        problems.append(f"launcher={study.launcher['name']}: {ONE_BY_ONE}; leave out launcher")
    if sampler not in ("tpe", "random"):
        problems.append(unknown_name("sampler", str(sampler), ("tpe", "random")))
    return problems
