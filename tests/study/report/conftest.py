"""Synthetic studies: made-up numbers (every title says so) in the shapes that reports meet."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from interlock.study.findings import (
    CellSummary,
    Contrast,
    Drift,
    Estimate,
    Findings,
    Interaction,
    NoiseFloor,
)
from interlock.study.report.results import Results
from interlock.study.spec import Cell, Factor, Level, Metric, Observation, Refusal, Study

KEYS = {
    "mean_ttft_ms": "lower",
    "output_throughput": "higher",
    "mean_tpot_ms": "lower",
    "p99_ttft_ms": "lower",
    "p99_itl_ms": "lower",
    "mean_e2el_ms": "lower",
    "request_throughput": "higher",
    "prefix_cache_hit_rate": "higher",
    "kv_usage.mean": "lower",
    "spec_decode_acceptance_length": "higher",
}
METRICS = tuple(
    Metric(key, better, "difference" if "rate" in key or "usage" in key else "ratio")
    for key, better in KEYS.items()
)
HOSTILE = (
    "<script>document.title='owned'</script>",
    "\"quotes\" 'both' & $x^2$ `tick`",
    "日本語 🚀 \u202eright-to-left",
    "=HYPERLINK(evil)\x1b[31m\0" + "very-long-" * 30,
)


def make(factors, metrics=METRICS, repeats=3, title="Synthetic numbers", drop=None, fail=None):
    """A full factorial; `drop(levels)` cells are refused, `fail(cell, repeat)` runs failed."""
    rng = np.random.default_rng(7)
    named = tuple(
        Factor(name, tuple(Level(level, (f"{name}={level}",)) for level in levels))
        for name, levels in factors.items()
    )
    study = Study("synthetic", named, "full_factorial", title, metrics=metrics, repeats=repeats)
    grid = [{}]
    for factor in named:
        grid = [{**cell, factor.name: level.name} for cell in grid for level in factor.levels]
    every = [
        Cell(
            ",".join(f"{k}={v}" for k, v in levels.items()),
            levels,
            tuple(f"{k}={v}" for k, v in levels.items()),
        )
        for levels in grid
    ]
    refused = tuple(
        Refusal(c, (f"{c.id} needs pages, which {next(iter(c.levels.values()))} lacks",))
        for c in every
        if drop and drop(c.levels)
    )
    gone = {refusal.cell.id for refusal in refused}
    cells = tuple(cell for cell in every if cell.id not in gone)
    worth = {(f.name, lv.name): rng.normal(0, 0.2) for f in named for lv in f.levels[1:]}
    observations = []
    for repeat in range(repeats):
        for cell in cells:
            at = sum(worth.get(item, 0.0) for item in cell.levels.items())
            values = {
                m.key: 0.5 + at / 8 + rng.normal(0, 0.01)
                if m.scale == "difference"
                else 100 * math.exp(at * (1 if m.better == "lower" else -1) + rng.normal(0, 0.02))
                for m in metrics
            }
            why = fail(cell, repeat) if fail else ""
            place = len(observations)
            observations.append(
                Observation(
                    cell.id,
                    repeat,
                    place,
                    2.5 * place,
                    {} if why else values,
                    "ab" * 32,
                    failure=why,
                )
            )
    manifest = {
        "study_file": "name: synthetic\nfactors: {}\n",
        "command": ["interlock", "study", "conf/experiment/synthetic.yaml", "--out", "a b"],
        "git": {"commit": "0" * 40},
        "device": {"name": "no machine: synthetic numbers"},
    }
    findings = findings_of(study, cells, observations, worth, rng)
    return Results(study, cells, refused, tuple(observations), findings, manifest)


def findings_of(study, cells, observations, worth, rng):
    """Shaped like an analysis, from made-up effects."""
    summaries, contrasts, effects, interactions = [], [], [], []
    for cell in cells:
        seen = [o for o in observations if o.cell == cell.id]
        kept = {m.key: [o.values[m.key] for o in seen if not o.failure] for m in study.metrics}
        mid = {k: float(np.median(v)) if v else None for k, v in kept.items()}
        low = {k: min(v, default=None) for k, v in kept.items()}
        high = {k: max(v, default=None) for k, v in kept.items()}
        failed = sum(bool(o.failure) for o in seen)
        summaries.append(CellSummary(cell.id, len(seen) - failed, failed, mid, low, high))
    keys = [m.key for m in study.metrics[:2]]
    if len(keys) == 2 and study.metrics[1].better == "higher":
        points = {s.cell: [s.medians[k] for k in keys] for s in summaries}
        for place, one in enumerate(summaries):
            a = points[one.cell]
            front = None not in a and not any(
                b[0] < a[0] and b[1] > a[1] for b in points.values() if None not in b
            )
            summaries[place] = replace(one, pareto=front)
    for metric in study.metrics:
        sign = 1 if metric.better == "lower" else -1
        for cell in cells[1:]:
            at = sign * sum(worth.get(item, 0.0) for item in cell.levels.items())
            contrasts.append(contrast(metric, cell.id, cells[0].id, at, rng))
        for (factor, level), at in worth.items():
            first = study.factor(factor).levels[0].name
            pair = f"{factor}={level}", f"{factor}={first}"
            effects.append(contrast(metric, *pair, sign * at, rng))
        for (f, a), x in worth.items():
            for (g, b), y in worth.items():
                if f < g:
                    found = contrast(metric, "", "", x * y, rng).estimate
                    interactions.append(Interaction(metric.key, f"{f}={a}", f"{g}={b}", found))
    noise = tuple(NoiseFloor(m.key, 0.03, 6, "A/A pairs (synthetic)") for m in study.metrics)
    drift = tuple(Drift(m.key, 0.0001, 0.4) for m in study.metrics)
    notes = ("These numbers are synthetic: no machine measured them.",)
    base = cells[0].id if cells else ""
    return Findings(
        base, 0.95, tuple(summaries), tuple(contrasts), tuple(effects), tuple(interactions),
        noise, drift, notes,
    )  # fmt: skip


def contrast(metric, what, against, at, rng):
    value, half = at + rng.normal(0, 0.005), 0.02 + abs(rng.normal(0, 0.02))
    sure = abs(value) > max(half, 0.03)
    good = (value < 0) == (metric.better == "lower")
    verdict = ("better" if good else "worse") if sure else "no difference shown"
    reason = "the interval excludes zero" if sure else "the interval holds zero"
    p = 0.001 if sure else 0.4
    estimate = Estimate(value, value - half, value + half, p, min(1.0, 3 * p), 3)
    return Contrast(metric.key, what, against, estimate, verdict, reason)


def write_runs(results, root, names=lambda cell: str(abs(hash(cell)) % 10**8)):
    """Run folders as a driver writes them, with the parts that reports read; and their results."""
    rng = np.random.default_rng(3)

    def folder(cell, repeat, replica=0):
        return root / names(cell) / f"r{repeat}"

    for one in results.observations:
        if one.failure:
            continue
        place = folder(one.cell, one.repeat)
        place.mkdir(parents=True, exist_ok=True)
        lines, steps, now = [], [], 0.0
        drafts = 3 if "eagle" in one.cell or "ngram" in one.cell else 0
        for index in range(8):
            arrival, first = 0.05 * index, 0.05 * index + 0.02 + rng.exponential(0.03)
            times = first + np.cumsum(np.r_[0, rng.exponential(0.01, 15)])
            lines.append(
                {"index": index, "status": "finished", "arrival_s": arrival, "dropped": False,
                 "chunk_times_s": times.tolist(), "chunk_sizes": [1] * 16, "num_prompt_tokens": 64,
                 "cached_tokens": 16, "admitted_s": arrival,
                 "first_token_s": float(first), "finished_s": float(times[-1])}
            )  # fmt: skip
        for step in range(60):
            rows = [[i, 48 if step == i * 4 else 1 + drafts, 0 if step == i * 4 else drafts]
                    for i in range(8) if i * 4 <= step <= i * 4 + 24]  # fmt: skip
            steps.append({"step": step, "now_s": now, "end_s": now + 0.01, "rows": rows})
            now += 0.01
        rates = [0.8, 0.6, 0.4] if drafts else []
        held = {"now_s": [0.01 * i for i in range(60)], "held": [i / 100 for i in range(60)]}
        summary = {
            "spec_decode_per_position_acceptance_rates": rates,
            "kv_memory": {"timeline": held},
        }
        (place / "requests.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
        (place / "steps.jsonl").write_text("".join(json.dumps(x) + "\n" for x in steps))
        (place / "summary.json").write_text(json.dumps(summary))
        (place / "run.json").write_text('{"config": {}}')
    return replace(results, run_folder=folder)


def hostile_fail(cell, repeat):
    return f"broke: {HOSTILE[0]}\n\x1b[31m{HOSTILE[2]}" if repeat == 1 else ""


@pytest.fixture(scope="session")
def small():
    return make(
        {"cache": ["none", "radix", "block_hash"], "spec": ["none", "eagle"]},
        METRICS[:3],
        drop=lambda levels: levels == {"cache": "block_hash", "spec": "eagle"},
    )


@pytest.fixture(scope="session")
def many():
    """100 cells of 10 metrics."""
    return make(
        {
            "cache": ["none", "radix", "block_hash", "trie", "exact"],
            "spec": ["none", "eagle", "ngram", "medusa", "suffix"],
            "order": ["fcfs", "shortest", "priority", "fair"],
        }
    )


@pytest.fixture(scope="session")
def small_with_runs(small, tmp_path_factory):
    return write_runs(small, tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="session")
def many_with_runs(many, tmp_path_factory):
    return write_runs(many, tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="session")
def hostile():
    """Names and errors that break a careless page, and metrics that are not defined."""
    made = make(
        {HOSTILE[0]: HOSTILE, "b": ["none", "x"]}, METRICS[:3], title=HOSTILE[0], fail=hostile_fail
    )
    first, *rest = made.findings.cells
    odd = {"mean_ttft_ms": math.nan, "output_throughput": None, "mean_tpot_ms": math.inf}
    notes = (f"a note with {HOSTILE[0]} and {HOSTILE[3]}",)
    cells = (replace(first, medians=odd, lows={}, highs={}, inert=(HOSTILE[1],)), *rest)
    return replace(made, findings=replace(made.findings, cells=cells, notes=notes))


@pytest.fixture(scope="session")
def alone():
    return make({"cache": ["radix"]}, METRICS[:2])


@pytest.fixture(scope="session")
def few(small):
    """A study whose noise floors are not known."""
    noise = tuple(
        replace(one, value=math.nan, num_pairs=1, source="one A/A pair")
        for one in small.findings.noise
    )
    return replace(small, findings=replace(small.findings, noise=noise))


@pytest.fixture(scope="session")
def unsuccessful():
    """Every run failed."""
    return make(
        {"cache": ["none", "radix"]}, METRICS[:2], fail=lambda cell, repeat: "out of memory"
    )


@pytest.fixture(scope="session")
def refused():
    """Every cell was refused."""
    return make({"cache": ["none", "radix"]}, METRICS[:2], drop=lambda levels: True)


@pytest.fixture(params=["small", "many", "hostile", "alone", "unsuccessful", "refused"])
def any_study(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def with_runs():
    return write_runs
