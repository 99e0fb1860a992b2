"""A comparison as a page of Markdown."""

from collections.abc import Mapping, Sequence
from typing import Any

PAGE = """\
# {title}

Made by `{command} {arguments}` in {minutes:.0f} minutes on {cpu}, {threads} threads, bf16,
random weights of the shapes ({repeats} measurements of each cell and side, in turns, each side in
a process that is stopped while another one is measured). Ratios are medians of pairs with their
95 % bootstrap interval; an interval with 1 is a tie.

{table}

{bandwidth}

{notes}

Greedy tokens that equal ours before the first difference: {exact} in fp32; {rounded} in bf16, where
sums in another order change tokens of random weights, whose logits lie close together.

{versions}
"""


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
    noted = [row for row in report["rows"] if row["note"]]
    notes = "\n".join(f"- {row['shape']}: {row['note']}" for row in noted)
    return PAGE.format(
        title=title, command=report["command"], arguments=report["arguments"],
        minutes=report["seconds"] / 60, cpu=report["cpu"], threads=report["threads"],
        repeats=report["repeats"], table=markdown_table(heads, lines),
        bandwidth="\n".join(f"- {line}" for line in bandwidth),
        notes=notes,
        exact=agreement_text(report["agreement_float32"]),
        rounded=agreement_text(report["agreement_bfloat16"]), versions=versions,
    )  # fmt: skip
