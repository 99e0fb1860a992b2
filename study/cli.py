"""`interlock study FILE`: run an ablation study, go on with one, report on one."""

import argparse
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from interlock.core.errors import ConfigError, RunFolderError
from interlock.core.registry import Registry
from interlock.driver.interrupts import status_of, stopped_once
from interlock.driver.report import ReportConsole
from interlock.study.composer import Composer
from interlock.study.cores import core_sets
from interlock.study.designs import ONE_BY_ONE
from interlock.study.expected_time import told as expected_time
from interlock.study.folder import MANIFEST, StudyFolder
from interlock.study.order import Place, run_order
from interlock.study.plan import StudyPlan, plan_study
from interlock.study.progress_lines import ProgressLines
from interlock.study.read_study import EXAMPLE, changed_study, read_study
from interlock.study.report.commands import report, report_main
from interlock.study.report.comparison import compare_main
from interlock.study.run_study import run_study
from interlock.study.show_plan import print_plan
from interlock.study.spec import Observation, Study

COLUMNS = (
    TextColumn("{task.description}"),
    BarColumn(),
    MofNCompleteColumn(),
    TimeElapsedColumn(),
    TextColumn("left"),
    TimeRemainingColumn(),
)
DESCRIPTION = f"""\
Vary components, keep everything else fixed, and learn what each contributes.

  interlock study X.yaml                            run it, print and write its report
  interlock study X.yaml --dry-run                  the cells, what is refused and why, the time
  interlock study X.yaml cache.num_pages=64 study.repeats=5     with changes
  interlock study --resume studies/X/2026-01-31_12-00-00        go on with one that was stopped
  interlock study --resume DIR study.timeout_s=600 --retry-failed     with more patience
  interlock study report studies/X/2026-01-31_12-00-00          its report, made again
  interlock study compare DIR DIR                   what changed from one study to another

A study file, X.yaml, in which every level holds all the options that belong to it:

{EXAMPLE}

KEY=VALUE is added to the base, study.KEY=VALUE changes a key of the file."""


def main(arguments: list[str], registry: Registry) -> int:
    """Do what `interlock study ...` asks; the exit status.

    0: it ran, whatever cells failed in it; 1: every run failed; 130: Ctrl-C and 143: SIGTERM, once
    the folder has what was done. Raises InterlockError for what cannot start, and KeyboardInterrupt
    where nothing was begun.
    """
    if arguments[:1] == ["report"]:
        return report_main(arguments[1:])
    if arguments[:1] == ["compare"]:
        return compare_main(arguments[1:])
    with stopped_once():
        return _study(study_parser().parse_intermixed_args(arguments), registry)


def _study(parsed: argparse.Namespace, registry: Registry) -> int:
    console = ReportConsole()
    with _composing(console, registry) as composer:
        study, folder, text = _asked(parsed, composer)
        plan = plan_study(study, registry, composer=composer)
    if study.design == "search" and parsed.jobs > 1:
        raise ConfigError(f"--jobs {parsed.jobs}: {ONE_BY_ONE}; leave out --jobs")
    cores = core_sets(parsed.jobs, max(one.threads or 1 for one in plan.judged))
    print_plan(console, plan, cores, full=parsed.dry_run)
    if parsed.dry_run:
        console.print(expected_time(plan, len(cores)), markup=False, highlight=False)
        return 0
    resume = f"go on with: interlock study --resume {shlex.quote(str(folder.path))}"
    resume += f" --jobs {parsed.jobs}" * (parsed.jobs != 1)
    try:
        with _kept_on_a_full_disk(folder, plan, resume):
            observed = _run(console, plan, folder, registry, cores, parsed.retry_failed, text)
        report(folder, console)
    except KeyboardInterrupt as stop:
        if not (folder.path / MANIFEST).is_file():
            raise
        console.print(f"stopped; {_kept(folder, plan)}; {resume}",
                      markup=False, highlight=False, soft_wrap=True)  # fmt: skip
        return status_of(stop)
    console.print(f"study folder: {folder.path}", markup=False, highlight=False, soft_wrap=True)
    return 0 if any(not one.failure for one in observed) else 1


@contextmanager
def _kept_on_a_full_disk(folder: StudyFolder, plan: StudyPlan, resume: str) -> Iterator[None]:
    """Say what a study has and how it goes on where the system does not let it write."""
    try:
        yield
    except RunFolderError as error:
        if not isinstance(error.__cause__, OSError) or not (folder.path / MANIFEST).is_file():
            raise
        raise RunFolderError(
            f"{error}; {_kept(folder, plan)}; once it can be written, {resume}"
        ) from error


def _kept(folder: StudyFolder, plan: StudyPlan) -> str:
    """`3 of 6 runs are done and kept in DIR`; how many a search makes is not known before."""
    ended = folder.num_ended()
    study = plan.study
    runs = len(run_order(plan.cells, study.repeats, study.seed))
    of = "" if study.design == "search" else f" of {runs}"
    are = "is" if ended == 1 else "are"
    return f"{ended}{of} runs {are} done and kept in {folder.path}"


def study_parser() -> argparse.ArgumentParser:
    """What may stand after `interlock study`."""
    parser = argparse.ArgumentParser(
        "interlock study",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", nargs="?", help="the study file")
    parser.add_argument("overrides", nargs="*", help="KEY=VALUE, study.KEY=VALUE")
    parser.add_argument("--out", type=Path, help="its folder (default: studies/NAME/TIME)")
    parser.add_argument("--resume", type=Path, help="the folder of a study that was stopped")
    parser.add_argument("--dry-run", action="store_true", help="show what would run")
    parser.add_argument("--jobs", type=int, default=1, help="runs beside each other, on own cores")
    parser.add_argument(
        "--retry-failed", action="store_true", help="with --resume: do runs that failed once more"
    )
    return parser


@contextmanager
def _composing(console: Console, registry: Registry) -> Iterator[Composer]:
    """What reads and plans a study, with a bar while it does: many cells take a while."""
    with Progress(*COLUMNS, console=console, transient=True) as progress:
        task = progress.add_task("", total=None)

        def told(what: str, done: int, total: int) -> None:
            progress.update(task, description=what, completed=done, total=total)

        yield Composer(registry, told)


def _asked(parsed: argparse.Namespace, composer: Composer) -> tuple[Study, StudyFolder, str]:
    """The study, its folder and its file's text; a resumed one may leave out the file."""
    overrides: list[str] = list(parsed.overrides)
    file: str | None = parsed.file
    if file is not None and "=" in file:
        overrides.insert(0, file)
        file = None
    if parsed.resume is not None and parsed.out is not None:
        raise ConfigError("--resume goes on in its folder; leave out --out")
    text = ""
    if file is not None:
        study = read_study(Path(file), composer.registry, tuple(overrides), composer)
        text = Path(file).read_text(encoding="utf-8")
    elif parsed.resume is None:
        raise ConfigError("which study? interlock study FILE; --help has an example of one")
    else:
        study = changed_study(StudyFolder(parsed.resume).study(), tuple(overrides))
    now = f"{datetime.now():%Y-%m-%d_%H-%M-%S}"
    folder = parsed.resume or parsed.out or Path("studies") / study.name / now
    return study, StudyFolder(folder), text


def _run(
    console: Console,
    plan: StudyPlan,
    folder: StudyFolder,
    registry: Registry,
    cores: tuple[tuple[int, ...], ...],
    retry_failed: bool,
    text: str,
) -> list[Observation]:
    with Progress(*COLUMNS, console=console, transient=True) as progress:
        task = progress.add_task("runs", total=None)

        lines = ProgressLines(sys.stderr, shown=not console.is_terminal)

        def told(done: int, total: int, place: Place) -> None:
            progress.update(task, completed=done, total=total)
            lines.tell(done, total, place)

        return run_study(
            plan.study, folder, registry, plan, cores, retry_failed, told, study_file=text
        )
