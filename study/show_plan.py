"""What a study would run, as a person reads it before it runs."""

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from interlock.study.designs import DESIGNS, aliases
from interlock.study.order import run_order
from interlock.study.plan import StudyPlan


def print_plan(
    console: Console, plan: StudyPlan, cores: Sequence[Sequence[int]], full: bool = False
) -> None:
    """The design, the number of runs and the refused cells; with `full` every cell."""
    study = plan.study
    title = study.title or study.name
    runs = len(run_order(plan.cells, study.repeats, study.seed))
    console.print(f"[bold]{escape(title)}[/bold]: {study.design}, {DESIGNS[study.design].summary}")
    console.print(
        f"{len(plan.cells)} cells x {study.repeats} repeats, and the baseline twice in each: "
        f"{runs} runs" + (f", {len(cores)} at a time" if len(cores) > 1 else ""),
        highlight=False,
    )
    if full:
        table = Table("cell", *[escape(factor.name) for factor in study.factors], box=None)
        for number, cell in enumerate(plan.cells, start=1):
            row = [escape(cell.levels.get(factor.name, "")) for factor in study.factors]
            name = "" if cell.levels else f" {escape(cell.id)}"
            table.add_row(f"{number}{' baseline' if number == 1 else name}", *row)
        console.print(table)
    for line in aliases(study, plan.cells):
        console.print(f"- {line}", markup=False, highlight=False)
    if plan.refusals:
        console.print(f"{len(plan.refusals)} cells are refused and do not run:", highlight=False)
    for refusal in plan.refusals:
        reasons = "; ".join(refusal.problems)
        console.print(f"- {refusal.cell.id}: {reasons}", markup=False, highlight=False)
