"""How often studies are right: false alarms, power, an inert arm; real engines in virtual time.

    python -m benchmarks.study_validity --json docs/results/study_validity.json \
        --page docs/results/study_validity.md

Every run is an engine that serves a workload on the virtual clock, whose steps are given noise of
their own, of the run and a drift over the study (options of `executor=fixed`). Nothing here depends
on the machine. Parts: 20 cells of one composition; a component that makes every step 5 % slower
beside one that does nothing; and the share of studies that find slower steps, by their size and the
repeats.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # started as a file or as a module

from benchmarks.planted import planted_registry
from interlock.conf.hydra_edge import compose
from interlock.core.assemble import build_engine
from interlock.core.options import plain
from interlock.core.registry import Registry
from interlock.core.settings import EngineConfig
from interlock.driver.activity import counters, inert
from interlock.driver.manifest import workload_hash
from interlock.driver.metrics import summarize
from interlock.driver.run import make_entries, serve
from interlock.study.analyse import analyse
from interlock.study.findings import Contrast, Findings
from interlock.study.spec import Cell, Factor, Level, Metric, Observation, Study

METRICS = (
    Metric("mean_ttft_ms"), Metric("mean_tpot_ms"), Metric("output_throughput", better="higher")
)  # fmt: skip
NOISE = {"jitter": 0.02, "wander": 0.01, "drift": 0.0002}
BASE = (
    "executor=fixed", "workload=synthetic", "workload.source=random", "workload.num_requests=8",
    "workload.prompt_tokens=32", "workload.prefix_tokens=0", "workload.output_tokens=12",
    "workload.arrivals=at_once", "progress=false",
)  # fmt: skip
FACTORS = (
    Factor("engine", (Level("plain"), Level("slowed", ("executor=slowed",)))),
    Factor("eviction", (Level("lru"), Level("idle", ("cache/eviction=idle",)))),
)
CELLS, SEEDS, SLOWDOWNS, REPEATS = 20, 100, (0.01, 0.02, 0.03, 0.05), (3, 5, 10)
FOUND = ("better", "worse")


@dataclass(frozen=True)
class _Plan:
    """A run of a study: which cell, block and replica."""

    cell: Cell
    repeat: int
    replica: int = 0


class Bench:
    """Runs studies; configurations are composed once."""

    def __init__(self, registry: Registry | None = None) -> None:
        self.registry = registry or planted_registry()
        self._composed: dict[tuple[str, ...], EngineConfig] = {}
        self.runs = 0

    def observe(self, study: Study, cells: Sequence[Cell]) -> list[Observation]:
        """Every cell in every block, in random order, and a second run of the first cell."""
        rng, found = np.random.default_rng(study.seed), []
        for repeat in range(study.repeats):
            plans = [_Plan(cell, repeat) for cell in cells] + [_Plan(cells[0], repeat, 1)]
            for number in rng.permutation(len(plans)).tolist():
                found.append(self._run(study, plans[number], len(found)))
        return found

    def _run(self, study: Study, plan: _Plan, place: int) -> Observation:
        config = self._config(plan.cell.overrides, 1000 * study.seed + plan.repeat, place)
        engine = build_engine(config, self.registry)
        entries = make_entries(config, engine)
        records = serve(engine, entries, progress=False)
        summary = summarize(records, engine.core.ledger, clock="virtual")
        self.runs += 1
        counts = counters(engine, entries)
        return Observation(
            cell=plan.cell.id,
            repeat=plan.repeat,
            replica=plan.replica,
            place=place,
            started_s=float(place),
            values={metric.key: summary[metric.key] for metric in study.metrics},
            workload_sha256=workload_hash(entries),
            inert=tuple(inert(engine, entries)),
            chosen={
                seam: f"{one.component.name} {json.dumps(_options(one.config), sort_keys=True)}"
                for seam, one in engine.resolution.chosen.items()
            },
            acted=tuple(seam for seam, of in counts.items() if any(_numbers(of.values()))),
        )

    def _config(self, overrides: tuple[str, ...], seed: int, place: int) -> EngineConfig:
        if overrides not in self._composed:
            self._composed[overrides] = compose(overrides, self.registry)
        config = replace(self._composed[overrides], seed=seed)
        executor = config.choices["executor"]
        noisy = replace(executor, config=replace(executor.config, noise_run=place))
        return replace(config, choices={**config.choices, "executor": noisy})


def _options(config: Any) -> dict[str, Any]:
    return {key: value for key, value in plain(config).items() if key != "noise_run"}


def _numbers(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if not isinstance(value, str)]


def noise(**more: float) -> tuple[str, ...]:
    """The overrides of the noise, here made stronger or weaker."""
    return tuple(f"executor.{key}={value}" for key, value in {**NOISE, **more}.items())


def equal_study(seed: int, num_cells: int = CELLS, repeats: int = 3) -> tuple[Study, list[Cell]]:
    """Cells of one composition under different names."""
    levels = tuple(Level(f"same{place:02}") for place in range(num_cells))
    factors = (Factor("arm", levels),)
    study = Study("equal_cells", factors, "one_at_a_time", base=BASE, metrics=METRICS,
                  repeats=repeats, seed=seed)  # fmt: skip
    cells = [Cell(f"arm={x.name}", {"arm": x.name}, (*BASE, *noise())) for x in levels]
    return study, cells


def planted_study(seed: int, slowdown: float, repeats: int) -> tuple[Study, list[Cell]]:
    """A slow engine or none, with an eviction policy that does nothing or another one."""
    study = Study("planted", FACTORS, "full_factorial", base=BASE, metrics=METRICS,
                  repeats=repeats, seed=seed)  # fmt: skip
    cells = []
    for engine in FACTORS[0].levels:
        for eviction in FACTORS[1].levels:
            share = (f"executor.slowdown={slowdown}",) if engine.name == "slowed" else ()
            overrides = (*BASE, *engine.overrides, *eviction.overrides, *noise(), *share)
            levels = {"engine": engine.name, "eviction": eviction.name}
            cells.append(Cell(f"engine={engine.name},eviction={eviction.name}", levels, overrides))
    return study, cells


def found_any(findings: Findings) -> bool:
    """A better or worse cell or level."""
    return any(one.verdict in FOUND for one in (*findings.contrasts, *findings.effects))


def effect(findings: Findings, what: str, metric: str = "mean_tpot_ms") -> Contrast:
    """A level's effect."""
    return next(one for one in findings.effects if (one.what, one.metric) == (what, metric))


def false_alarms(bench: Bench, seeds: Sequence[int], num_cells: int) -> dict[str, Any]:
    """Studies of equal cells, and how many of them name a winner."""
    alarms, uncorrected, covered, total = [], 0, 0, 0
    floors: dict[str, list[float]] = {}
    for seed in seeds:
        study, cells = equal_study(seed, num_cells)
        findings = analyse(study, cells, bench.observe(study, cells))
        if found_any(findings):
            alarms.append(seed)
        estimates = [one.estimate for one in findings.contrasts]
        uncorrected += any(one.p < 0.05 for one in estimates)
        covered += sum(one.low <= 0 <= one.high for one in estimates)
        total += len(estimates)
        for floor in findings.noise:
            floors.setdefault(floor.metric, []).append(floor.value)
    return {
        "cells": num_cells, "repeats": 3, "studies": len(seeds), "with_a_finding": len(alarms),
        "their_seeds": alarms, "with_an_uncorrected_p_below_0.05": uncorrected,
        "intervals": total, "intervals_with_zero": covered / total,
        "median_noise_floor": {metric: float(np.median(of)) for metric, of in floors.items()},
    }  # fmt: skip


def planted(bench: Bench, seeds: Sequence[int]) -> dict[str, Any]:
    """Studies with steps 5 % slower in one level, and a level that does nothing."""
    verdicts: dict[str, Counter[str]] = {"engine=slowed": Counter(), "eviction=idle": Counter()}
    excluded, covered, values, wrong = 0, 0, [], 0
    for seed in seeds:
        study, cells = planted_study(seed, 0.05, 3)
        findings = analyse(study, cells, bench.observe(study, cells))
        for what, of in verdicts.items():
            of[effect(findings, what).verdict] += 1
        estimate = effect(findings, "engine=slowed").estimate
        excluded += estimate.low > 0
        covered += estimate.low <= 0.05 <= estimate.high
        values.append(estimate.value)
        idle = [c for c in findings.contrasts if c.what == "engine=plain,eviction=idle"]
        wrong += any(one.verdict != "inert" for one in idle)
    return {
        "cells": 4, "repeats": 3, "studies": len(seeds), "metric": "mean_tpot_ms",
        "slowed": dict(verdicts["engine=slowed"]), "interval_above_zero": excluded,
        "interval_has_true_5_percent": covered, "median_estimate": float(np.median(values)),
        "idle": dict(verdicts["eviction=idle"]), "idle_cells_not_marked_inert": wrong,
    }  # fmt: skip


def power(
    bench: Bench, seeds: Sequence[int], slowdowns: Sequence[float], repeat_counts: Sequence[int]
) -> list[dict[str, Any]]:
    """The share of studies that find slower steps; fewer repeats are the first of the most."""
    rows = []
    for slowdown in slowdowns:
        hits: Counter[tuple[int, str]] = Counter()
        for seed in seeds:
            study, cells = planted_study(seed, slowdown, max(repeat_counts))
            observations = bench.observe(study, cells)
            for repeats in repeat_counts:
                part = [one for one in observations if one.repeat < repeats]
                findings = analyse(replace(study, repeats=repeats), cells, part)
                hits[repeats, "effect"] += effect(findings, "engine=slowed").verdict == "worse"
                hits[repeats, "cell"] += any(
                    (c.what, c.metric, c.verdict)
                    == ("engine=slowed,eviction=lru", "mean_tpot_ms", "worse")
                    for c in findings.contrasts
                )
        for repeats in repeat_counts:
            rows.append({
                "slowdown": slowdown, "repeats": repeats, "studies": len(seeds),
                "found_as_effect": hits[repeats, "effect"] / len(seeds),
                "found_as_cell": hits[repeats, "cell"] / len(seeds),
            })  # fmt: skip
    return rows


def page(report: dict[str, Any]) -> str:
    """The report as Markdown."""
    equal, plant = report["equal_cells"], report["planted"]
    rows: dict[float, list[dict[str, Any]]] = {}
    for one in report["power"]:
        rows.setdefault(one["slowdown"], []).append(one)
    most = [one["repeats"] for one in next(iter(rows.values()))]
    floors = ", ".join(f"{k} {v:.2%}" for k, v in equal["median_noise_floor"].items())
    lines = [
        "# How often studies are right", "",
        "Real engines in virtual time; each step has lognormal noise of "
        f"{NOISE['jitter']:.0%}, each run of {NOISE['wander']:.0%}, and the machine drifts by "
        f"{NOISE['drift']:.2%} a run. Generated by `python -m benchmarks.study_validity`.", "",
        "| studies | what | result |", "|---|---|---|",
        f"| {equal['studies']} | {equal['cells']} equal cells, {equal['repeats']} repeats, "
        f"{len(METRICS)} metrics: a winner is named | **{equal['with_a_finding']}** |",
        "| | any p below 0.05 before correction | "
        f"{equal['with_an_uncorrected_p_below_0.05']} |",
        f"| | 95 % intervals that have zero | {equal['intervals_with_zero']:.1%} of "
        f"{equal['intervals']} |",
        f"| | median noise floor | {floors} |",
        f"| {plant['studies']} | steps 5 % slower, {plant['cells']} cells, {plant['repeats']} "
        f"repeats: found worse | **{plant['slowed'].get('worse', 0)}** |",
        f"| | interval above zero | {plant['interval_above_zero']} |",
        f"| | interval has 5 % | {plant['interval_has_true_5_percent']} |",
        f"| | a level that does nothing is marked inert | {plant['idle'].get('inert', 0)} |", "",
        "Share of studies (2 x 2 cells) that find slower steps, as the effect of the level / in "
        "the one cell:", "",
        "| slower by | " + " | ".join(f"{repeats} repeats" for repeats in most) + " |",
        "|---|" + "---|" * len(most),
    ]  # fmt: skip
    for slowdown, row in rows.items():
        shares = [f"{r['found_as_effect']:.0%} / {r['found_as_cell']:.0%}" for r in row]
        lines.append(f"| {slowdown:.0%} | " + " | ".join(shares) + " |")
    return "\n".join([*lines, ""])


def main() -> None:
    """Run all parts, print, save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    parser.add_argument("--page", type=Path, help="write them as Markdown")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="studies of each part")
    parser.add_argument("--cells", type=int, default=CELLS, help="that are equal")
    parser.add_argument("--slowdowns", type=float, nargs="+", default=SLOWDOWNS, metavar="SHARE")
    parser.add_argument("--repeats", type=int, nargs="+", default=REPEATS, metavar="N",
                        help="of studies that look for them")  # fmt: skip
    args = parser.parse_args()
    bench, seeds, start_s = Bench(), range(args.seeds), time.perf_counter()
    report = {
        "noise": NOISE,
        "equal_cells": false_alarms(bench, seeds, args.cells),
        "planted": planted(bench, seeds),
        "power": power(bench, seeds[: max(1, args.seeds // 4)], args.slowdowns, args.repeats),
    }
    report |= {"runs": bench.runs, "seconds": round(time.perf_counter() - start_s, 1)}
    print(page(report))
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    if args.page:
        args.page.write_text(page(report))


if __name__ == "__main__":
    main()
