"""Hydra runs the job of `python run.py`, or those of a sweep, where its launcher starts them.

A launcher's jobs run beside each other in other processes, perhaps on other hosts: each holds cores
of its own while it runs, and leaves a record in its folder. The sweep is reported from those.
"""

import json
import os
import signal
import time
import traceback
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from interlock.conf import hydra_edge
from interlock.core.errors import ConfigError, InterlockError
from interlock.core.registry import load_registry
from interlock.driver.interrupts import terminate
from interlock.driver.recorded_choices import recorded_choices
from interlock.driver.say_error import problems_in, say_error, say_problems

IN_THIS_PROCESS = "basic"
"""Hydra's own launcher: one job after the other."""
_sweeps: list[tuple[Path, str]] = []
_runs: list[DictConfig] = []


class _Ended(NamedTuple):
    """How a job ended, when it began (seconds since the epoch), and why it could not start."""

    status: int
    began_s: float
    problems: tuple[str, ...] = ()


class JobFolders(Callback):
    """Tells `run_jobs` where Hydra puts a job, or a sweep's."""

    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        """Called before a job that is no sweep's."""
        _runs.append(config)

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Called in the process that was started, before any job runs."""
        launcher = config.hydra.runtime.choices["hydra/launcher"]
        _sweeps.append((Path(config.hydra.sweep.dir).absolute(), launcher))
        if launcher != IN_THIS_PROCESS and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, terminate)  # where the jobs end as well, see run_jobs


def _chosen(group: str, *, _root_: DictConfig) -> str:
    """A group's choice, to name a folder after: a rerun's is the recorded one."""
    own = str(_root_.hydra.runtime.choices[group])
    rerun = _root_.get("rerun")
    return recorded_choices(str(rerun)).get(group, own) if rerun else own


OmegaConf.register_new_resolver("chosen", _chosen, replace=True)


def run_jobs() -> int:
    """Let Hydra compose and run the job, or the jobs of a sweep; 1 if one could not start.

    Of a sweep that varied more than its seed there is a study's report. Raises what ends the job,
    and OSError, naming the folder, where Hydra cannot write what it leaves there before a job.
    """
    from interlock.study.end_processes import MARK, end_marked

    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # errors come back to us as they are
    sweep = uuid4().hex
    statuses: list[int] = []
    _sweeps.clear()
    _runs.clear()
    began: list[float] = []

    @hydra.main(
        config_path=f"pkg://{hydra_edge.CONFIG_MODULE}",
        config_name="config",
        **hydra_edge.HYDRA_ARGUMENTS,
    )
    def job(composed: DictConfig) -> int:
        began.append(time.time())
        if HydraConfig.get().mode == RunMode.MULTIRUN:
            return _swept_job(composed, sweep)
        statuses.append(_job(composed).status)
        return statuses[-1]

    os.environ[MARK] = sweep
    try:
        job()
    except KeyboardInterrupt:
        if _sweeps and _sweeps[-1][1] != IN_THIS_PROCESS:
            end_marked(sweep)
        raise
    except Exception as error:
        readable = not isinstance(error, hydra_edge.UNREADABLE)  # some of which are OSErrors
        if readable and isinstance(error, OSError) and (_sweeps or not began):
            error.filename = error.filename or _folder()
        if not _sweeps or _sweeps[-1][1] == IN_THIS_PROCESS:
            raise
        reason = " ".join(str(error).split())
        reason = f"hydra/launcher={_sweeps[-1][1]}: {type(error).__name__}: {reason}"
        statuses.append(say_problems("Interlock stopped", [reason]))
    if _sweeps:
        statuses += _report_sweep(*_sweeps[-1], sweep)
    return max(statuses, default=0)


def _folder() -> str | None:
    """Of the sweep, else of the job, if Hydra came so far as to know it."""
    if _sweeps:
        return str(_sweeps[-1][0])
    folders = [OmegaConf.select(config, "hydra.runtime.output_dir") for config in _runs]
    return folders[-1] if folders else None


def _swept_job(composed: DictConfig, sweep: str) -> int:
    """One job of a sweep. What a component raises is why its run failed, and others go on."""
    from interlock.study.job import FAILED, fail
    from interlock.study.swept import SweptRun, leave

    hydra_config = HydraConfig.get()
    folder = Path(hydra_config.runtime.output_dir)
    (folder / FAILED).unlink(missing_ok=True)
    beside_others = hydra_config.runtime.choices["hydra/launcher"] != IN_THIS_PROCESS
    try:
        ended = _job(composed, beside_others)
    except Exception as error:
        traceback.print_exc()
        problem = f"{type(error).__name__}: {' '.join(str(error).split())}"
        ended = _Ended(fail(folder, problem), time.time())
    number, overrides = hydra_config.job.num, tuple(hydra_config.overrides.task)
    leave(SweptRun(folder, number, overrides, *ended), sweep)
    return ended.status


def _report_sweep(directory: Path, launcher: str, sweep: str) -> list[int]:
    """Show what the jobs left, where more than their seed was varied; how each ended."""
    from interlock.driver.report import ReportConsole
    from interlock.study.multirun import report_sweep, study_of_sweep
    from interlock.study.swept import swept_runs

    runs = swept_runs(directory, sweep)
    elsewhere = "" if launcher == IN_THIS_PROCESS else launcher
    if runs and study_of_sweep(runs)[0].factors and not all(run.problems for run in runs):
        report_sweep(runs, directory, ReportConsole(), elsewhere)
    elif elsewhere and any(
        run.problems for run in runs
    ):  # which may have left their words in files
        problems = dict.fromkeys(problem for run in runs for problem in run.problems)
        say_problems("Interlock cannot start", problems)
    return [run.status for run in runs]


def _job(composed: DictConfig, beside_others: bool = False) -> _Ended:
    """Run one; `beside_others`: on cores that no other job of this host has."""
    run_dir = Path(HydraConfig.get().runtime.output_dir)
    overrides = list(HydraConfig.get().overrides.task)
    try:
        registry = load_registry()
        config = hydra_edge.from_hydra(composed, registry)
        if config.strict_plugins:
            registry.require_all_plugins()
        from interlock.driver.run import run

        with _cores(config.threads or 1) if beside_others else nullcontext():
            began_s = time.time()
            return _Ended(run(config, run_dir, overrides), began_s)
    except InterlockError as error:
        return _refuse(error, run_dir, overrides)
    except (MemoryError, RuntimeError) as error:
        if not _out_of_memory(error):
            raise
        reason = " ".join(str(error).split())
        problem = (
            f"there is not enough memory ({reason}); a smaller cache.num_pages, max_model_len, "
            "scheduler.max_requests or scheduler.budget_tokens needs less"
        )
        return _refuse(ConfigError(problem), run_dir, overrides)


def _cores(count: int) -> AbstractContextManager[tuple[int, ...]]:
    from interlock.study.core_locks import pinned

    return pinned(count)


def _out_of_memory(error: BaseException) -> bool:
    """MemoryError, or how torch says it on a CPU ("can't allocate memory") and on a GPU."""
    text = str(error)
    return isinstance(error, MemoryError) or "allocate memory" in text or "out of memory" in text


def _refuse(error: InterlockError, run_dir: Path, overrides: list[str]) -> _Ended:
    """Report, and leave the reasons in the run's folder where that can be written."""
    status = say_error(error)
    refusal = {"overrides": overrides, "problems": problems_in(error)}
    with suppress(OSError):
        (run_dir / "refused.json").write_text(json.dumps(refusal, indent=2) + "\n")
    return _Ended(status, time.time(), tuple(problems_in(error)))
