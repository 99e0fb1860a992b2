"""The command line: `python run.py ...`, `interlock run ...`, and the other commands."""

import json
import os
import signal
import sys
from argparse import Namespace
from contextlib import suppress
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from interlock.conf import hydra_edge
from interlock.core.errors import (
    ConfigError,
    ContractError,
    InterlockError,
    RankError,
    RunFolderError,
)
from interlock.core.registry import Registry, load_registry
from interlock.driver.help_text import help_text
from interlock.driver.output import show

LAUNCHED = os.environ.get("WORLD_SIZE", "1") != "1"
"""This process is one of several that torchrun started."""
OTHERS = {
    "chat": "interlock.driver.chat",
    "explain": "interlock.driver.explain",
    "new-plugin": "interlock.driver.new_plugin.command",
    "picture": "interlock.driver.picture",
    "plugins": "interlock.driver.plugins_command",
    "study": "interlock.study.cli",
}
"""Commands beside `run`: modules whose `main(arguments, registry)` gives the exit status."""
COMMANDS = ("run", "multirun", "cfg", "info", "shell_completion")


def _limit_spinning() -> None:
    """Before torch is imported: how long its idle threads wait before they sleep.

    Those that spin for long make it many times slower on a shared machine; those that sleep at once
    have to be woken for each product of a step (SmolLM2's shape, batch 1: 49 ms in place of 30).
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "5000")


def main() -> None:
    """Run what the command line asks for and exit.

    Status 0 when every run ended, 1 when one could not start or was stopped by an error, 130 after
    Ctrl-C. Problems go to standard error, one a line, without a traceback.
    """
    _limit_spinning()
    arguments = sys.argv[1:]
    if arguments[:1] == ["run"]:
        arguments = arguments[1:]
    if "--version" in arguments:
        print(f"interlock {version('interlock')}")
        return
    try:
        registry = load_registry()
        if arguments[:1] and arguments[0] in OTHERS:
            other = import_module(OTHERS[arguments[0]])
            sys.exit(other.main(arguments[1:], registry))
        parsed = get_args_parser().parse_args(arguments)
        if parsed.help:
            show(help_text(registry))
            return
        hydra_edge.publish(registry)
        _check(parsed, registry)
        sys.argv[1:] = arguments
        _run_jobs(parsed, registry)
    except InterlockError as error:
        sys.exit(_report(error))
    except hydra_edge.UNREADABLE as error:
        sys.exit(_report(ConfigError(" ".join(str(error).split()))))
    except OSError as error:
        if error.filename is None:
            raise
        where = "a run's folder is hydra.run.dir, a sweep's hydra.sweep.dir"
        sys.exit(_report(ConfigError(f"{error.filename}: {error.strerror} ({where})")))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


def _follow(parsed: Namespace, registry: Registry) -> NoReturn:
    """In a process that a launcher started beside rank 0's: serve its engine and exit.

    Nothing is written or said that rank 0 writes and says.
    """
    from interlock.core.assemble import build_engine

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 ends the run
    folders = [Path(parsed.config_dir)] if parsed.config_dir else []
    try:
        config = hydra_edge.compose(parsed.overrides, registry, folders)
        build_engine(config, registry, environment=os.environ)
    except (ConfigError, RankError):
        pass
    sys.exit(1)


def _check(parsed: Namespace, registry: Registry) -> None:
    """Raise ConfigError with everything wrong with the overrides, before Hydra composes."""
    given = [f"--{name.replace('_', '-')}" for name in COMMANDS if getattr(parsed, name)]
    if parsed.experimental_rerun:
        raise ConfigError("--experimental-rerun is not supported; rerun=DIR runs a folder again")
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)} are different commands; give one of them")
    if parsed.multirun and LAUNCHED:
        raise ConfigError(
            "-m under torchrun: its processes are for one run; without torchrun, each run of a "
            "sweep starts the ranks that it needs (parallel=tensor parallel.size=N)"
        )
    if parsed.shell_completion or parsed.hydra_help or parsed.config_name or parsed.config_path:
        return
    folders = [Path(parsed.config_dir)] if parsed.config_dir else []
    if parsed.multirun or "hydra.mode=MULTIRUN" in parsed.overrides:
        hydra_edge.check_sweep(parsed.overrides, registry, folders)
    else:
        hydra_edge.compose(parsed.overrides, registry, folders)


def _run_jobs(parsed: Namespace, registry: Registry) -> None:
    """Let Hydra compose and run the job, or the jobs of a sweep; exit 1 if one could not start."""
    if LAUNCHED and os.environ.get("RANK", "0") != "0":
        _follow(parsed, registry)
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # errors come back to us as they are
    statuses: list[int] = []
    jobs: list[tuple[Path, list[str]]] = []

    @hydra.main(
        config_path=f"pkg://{hydra_edge.CONFIG_MODULE}",
        config_name="config",
        **hydra_edge.HYDRA_ARGUMENTS,
    )
    def job(composed: DictConfig) -> int:
        hydra_config = HydraConfig.get()
        folder = Path(hydra_config.runtime.output_dir)
        if hydra_config.mode == RunMode.MULTIRUN:
            jobs.append((folder, list(hydra_config.overrides.task)))
        statuses.append(_job(composed))
        return statuses[-1]

    job()
    if len(jobs) > 1:
        _report_sweep(jobs)
    sys.exit(max(statuses, default=0))


def _report_sweep(jobs: list[tuple[Path, list[str]]]) -> None:
    """What a sweep shows, where more than its seed was varied."""
    from interlock.driver.report import ReportConsole
    from interlock.study.multirun import SweptRun, report_sweep, study_of_sweep

    runs = []
    for folder, overrides in jobs:
        refused = folder / "refused.json"
        problems = json.loads(refused.read_text())["problems"] if refused.is_file() else ()
        runs.append(SweptRun(folder, tuple(overrides), tuple(problems)))
    if study_of_sweep(runs)[0].factors and not all(run.problems for run in runs):
        report_sweep(runs, runs[0].folder.parent, ReportConsole())


def _job(composed: DictConfig) -> int:
    run_dir = Path(HydraConfig.get().runtime.output_dir)
    overrides = list(HydraConfig.get().overrides.task)
    try:
        registry = load_registry()
        config = hydra_edge.from_hydra(composed, registry)
        if config.strict_plugins:
            registry.require_all_plugins()
        from interlock.driver.run import run

        return run(config, run_dir, overrides)
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


def _out_of_memory(error: BaseException) -> bool:
    """MemoryError, or how torch says it on a CPU ("can't allocate memory") and on a GPU."""
    text = str(error)
    return isinstance(error, MemoryError) or "allocate memory" in text or "out of memory" in text


def _refuse(error: InterlockError, run_dir: Path, overrides: list[str]) -> int:
    """Report, and leave the reasons in the run's folder where that can be written."""
    status = _report(error)
    refusal = {"overrides": overrides, "problems": _problems(error)}
    with suppress(OSError):
        (run_dir / "refused.json").write_text(json.dumps(refusal, indent=2) + "\n")
    return status


def _report(error: InterlockError) -> int:
    stopped = isinstance(error, ContractError | RankError | RunFolderError)
    print(f"Interlock {'stopped' if stopped else 'cannot start'}:", file=sys.stderr)
    for problem in _problems(error):
        print(f"- {problem}", file=sys.stderr)
    return 1


def _problems(error: InterlockError) -> list[str]:
    return error.problems if isinstance(error, ConfigError) else [str(error)]
