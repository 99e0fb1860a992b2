"""The table and the page of benchmarks.speculation."""

from collections.abc import Sequence
from typing import Any

from rich.table import Table

COLUMNS = (
    "model", "drafter", "requests", "length", "per pass", "v", "c", "catch-up", "model says",
    "measured", "residual", "of it host", "left",
)  # fmt: skip
EXPLAINED = 0.1
"""A residual up to this is not explained."""


def table_of(rows: Sequence[dict[str, Any]]) -> Table:
    """For a terminal."""
    table = Table(*COLUMNS)
    for row in rows:
        table.add_row(*cells_of(row))
    return table


def page_of(found: dict[str, Any]) -> str:
    """The committed page."""
    rows = found["rows"]
    return "\n".join(
        [
            "# What drafting gains",
            "",
            f"Made on {found['device']['cpu']} with torch {found['torch']} by",
            "",
            *(f"    python -m benchmarks.speculation {command}" for command in found["commands"]),
            "",
            *_summary(rows),
            "## Everything measured",
            "",
            "Tokens a second as a ratio to `spec=none` in the same run, both in the same dtype",
            "[95 % interval of the paired ratio]. The model is tokens a pass / (v + c * draft",
            "passes + catch-up), in units of the target's plain step for so many requests: v is",
            "what verifying makes of it, c a draft pass (of drafters on the host: all drafting),",
            "catch-up the drafter's pass over committed rows. The residual is measured / model",
            "- 1. What the model leaves out is the host's share of a step (planning, commit):",
            "`of it host` is what that explains; `left` is the rest, because a median of ratios",
            "is no ratio of sums.",
            "",
            *_markdown(COLUMNS, [cells_of(row) for row in rows]),
            "",
            "Left out:",
            "",
            *(f"- `{what}`: {' '.join(why.split())}" for what, why in found["left_out"].items()),
            "",
        ]
    )  # fmt: skip


def cells_of(row: dict[str, Any]) -> list[str]:
    """A row of the table."""
    costs, residual, host = row["costs"], row["residual"], row["residual_of_the_host"]
    left = None if residual is None or host is None else (1 + residual) / (1 + host) - 1
    return [
        f"{row['model']} {row['dtype']}", row["drafter"], str(row["requests"]), row["length"],
        _number(row["emitted_per_pass"]), _number(costs["verify_inflation"]), _pass_cost(row),
        _number(costs["catch_up_share"]), _number(row["modelled_speedup"]),
        interval(row["speedup"]), _share(residual), _share(host), _share(left),
    ]  # fmt: skip


def interval(ratio: dict[str, float]) -> str:
    """median [low, high]."""
    return "{median:.2f} [{low:.2f}, {high:.2f}]".format(**ratio)


def _pass_cost(row: dict[str, Any]) -> str:
    """Of a pass and how many a step has; without passes of its own, of all drafting."""
    costs = row["costs"]
    if costs["draft_step_share"] is not None:
        return f"{costs['draft_step_share']:.2f} x {costs['draft_passes_per_step']:.1f}"
    if not row["modelled_speedup"]:
        return "-"
    spent = row["emitted_per_pass"] / row["modelled_speedup"]
    return _number(spent - costs["verify_inflation"] - costs["catch_up_share"])


def _summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The best drafter of each model and batch, and how adaptive lengths did."""
    best: dict[tuple[str, str, int], dict[str, Any]] = {}
    for row in rows:
        key = row["model"], row["dtype"], row["requests"]
        if key not in best or row["speedup"]["median"] > best[key]["speedup"]["median"]:
            best[key] = row
    fastest = [
        [
            f"{model} {dtype}", str(requests), row["drafter"], row["length"],
            interval(row["speedup"]), f"{row['plain_tokens_a_second']:.0f}",
            f"{row['tokens_a_second']:.0f}",
        ]
        for (model, dtype, requests), row in best.items()
    ]  # fmt: skip
    adaptive = [row for row in rows if "beside_best_fixed" in row]
    against = [
        [
            f"{row['model']} {row['dtype']}", row["drafter"], str(row["requests"]), row["length"],
            interval(row["speedup"]), row["beside_best_fixed"]["length"],
            interval(row["beside_best_fixed"]),
        ]
        for row in sorted(adaptive, key=_worst)
    ]  # fmt: skip
    slow = [row for row in adaptive if _worst(row) < 1 - EXPLAINED]
    return [
        "## The fastest", "",
        *_markdown(
            ("model", "requests", "drafter", "length", "speed-up", "plain tokens/s", "tokens/s"),
            fastest,
        ),
        "", "## Lengths that adapt", "",
        f"Beside plain decoding, and beside the fixed length that was best in the same run, worst "
        f"first. {len(slow)} of {len(adaptive)} have a median more than 10 % below one of them.",
        "",
        *_markdown(
            ("model", "drafter", "requests", "length", "to plain", "best fixed", "to that"),
            against,
        ),
        "",
    ]  # fmt: skip


def _worst(row: dict[str, Any]) -> float:
    return min(row["speedup"]["median"], row["beside_best_fixed"]["median"])


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [columns, ["---"] * len(columns), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:+.0%}"
