"""A comparison as a page of Markdown."""

from collections.abc import Mapping, Sequence
from typing import Any

PAGE = """\
# {title}

Made in {minutes:.0f} minutes on {cpu}, {threads} threads, bf16, by

{commands}

with random weights of the shapes ({repeats} measurements of each cell and side, in turns, each side
in a process that is stopped while another one is measured). Ratios are medians of pairs with their
95 % bootstrap interval; an interval with 1 is a tie.

{table}

{bandwidth}

{notes}

{agreement}

{versions}
"""
AGREEMENT = """\
Greedy tokens that equal ours before the first difference: {exact} in fp32; {rounded} in bf16, where
sums in another order change tokens of random weights, whose logits lie close together."""


def markdown_table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Rows of cells."""
    rule = "|" + "---|" * len(heads)
    return "\n".join([f"| {' | '.join(heads)} |", rule, *(f"| {' | '.join(x)} |" for x in lines)])


def agreement_text(found: Mapping[str, Mapping[str, float]]) -> str:
    """Shares by shape and peer."""
    return ", ".join(
        f"{share:.0%} of {peer} ({shape})"
        for shape, shares in found.items()
        for peer, share in shares.items()
    )


def page(
    title: str,
    report: Mapping[str, Any],
    heads: Sequence[str],
    lines: Sequence[Sequence[str]],
    bandwidth: Sequence[str],
) -> str:
    """The whole page; `report` as it is written to the JSON file."""
    versions = "\n".join(
        f"- {side}: {', '.join(f'{k} {v}' for k, v in facts.items() if k != 'components')}"
        for side, facts in report["sides"].items()
    )
    exact, rounded = (
        agreement_text(report[f"agreement_{dtype}"]) for dtype in ("float32", "bfloat16")
    )
    compared = AGREEMENT.format(exact=exact, rounded=rounded) if exact or rounded else ""
    noted = [row for row in report["rows"] if row["note"]]
    notes = "\n".join(f"- {row['shape']}: {row['note']}" for row in noted)
    return PAGE.format(
        title=title, commands="\n".join(f"    {line}" for line in report["commands"]),
        minutes=report["seconds"] / 60, cpu=report["cpu"], threads=report["threads"],
        repeats=report["repeats"], table=markdown_table(heads, lines),
        bandwidth="\n".join(f"- {line}" for line in bandwidth),
        notes=notes,
        agreement=compared, versions=versions,
    )  # fmt: skip
