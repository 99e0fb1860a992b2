"""What a study would run, as a person reads it before it runs."""

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from interlock.study.designs import DESIGNS, aliases, most_trials, num_confirmed
from interlock.study.order import run_order
from interlock.study.plan import StudyPlan
from interlock.study.report.words import counted


def print_plan(
    console: Console, plan: StudyPlan, cores: Sequence[Sequence[int]], full: bool = False
) -> None:
    """The design, the number of runs and the refused cells; with `full` every cell."""
    study = plan.study
    title = study.title or study.name
    console.print(f"[bold]{escape(title)}[/bold]: {study.design}, {DESIGNS[study.design].summary}")
    if study.design == "search":
        runs, again = most_trials(study), num_confirmed(study)
        amount = f"{runs} trials of {study.repeats} runs, beside the baseline twice"
        amount += f"; then the best {again} and the baseline once more" if again else ""
    else:
        runs = len(run_order(plan.cells, study.repeats, study.seed))
        amount = f"{counted(len(plan.cells), 'cell')} x {counted(study.repeats, 'repeat')}"
        amount += f", and the baseline twice in each: {runs} runs"
    at_once = f", {len(cores)} at a time" if len(cores) > 1 else ""
    console.print(f"{amount}{at_once}", highlight=False)
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
        refused = counted(len(plan.refusals), "cell")
        verbs = "is refused and does" if len(plan.refusals) == 1 else "are refused and do"
        console.print(f"{refused} {verbs} not run:", highlight=False)
    for refusal in plan.refusals:
        reasons = "; ".join(refusal.problems)
        console.print(f"- {refusal.cell.id}: {reasons}", markup=False, highlight=False)
