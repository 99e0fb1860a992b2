"""The command line: `python run.py ...`, `interlock run ...`, and the other commands."""

import os
import signal
import sys
from argparse import Namespace
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

from hydra._internal.utils import get_args_parser

from interlock.conf import hydra_edge
from interlock.conf.hydra_launchers import require_launcher
from interlock.conf.hydra_sweeps import check_sweep
from interlock.core.errors import ConfigError, InterlockError, RankError
from interlock.core.registry import Registry, load_registry
from interlock.driver.help_text import help_text
from interlock.driver.hydra_jobs import run_jobs
from interlock.driver.interrupts import status_of
from interlock.driver.output import show
from interlock.driver.say_error import say_error

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
CALLBACK = "++hydra.callbacks.job_folders._target_=interlock.driver.hydra_jobs.JobFolders"
"""Ours has it; somebody's own configuration (-cp, -cn) may say nothing of Hydra."""
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
    Ctrl-C and 143 after a SIGTERM to a study. Problems go to standard error, one a line, without a
    traceback.
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
        _run(parsed, registry)
    except InterlockError as error:
        sys.exit(say_error(error))
    except hydra_edge.UNREADABLE as error:
        sys.exit(say_error(ConfigError(" ".join(str(error).split()))))
    except OSError as error:
        if error.filename is None:
            raise
        where = "a run's folder is hydra.run.dir, a sweep's hydra.sweep.dir"
        sys.exit(say_error(ConfigError(f"{error.filename}: {error.strerror} ({where})")))
    except KeyboardInterrupt as stop:
        print("interrupted", file=sys.stderr)
        sys.exit(status_of(stop))


def _run(parsed: Namespace, registry: Registry) -> NoReturn:
    """Do what was checked, and exit."""
    if LAUNCHED and os.environ.get("RANK", "0") != "0":
        _follow(parsed, registry)
    if parsed.config_name or parsed.config_path:
        sys.argv.append(CALLBACK)
    sys.exit(run_jobs())


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
        for text in parsed.overrides:
            if text.startswith("hydra/launcher="):
                require_launcher(text.partition("=")[2])
        check_sweep(parsed.overrides, registry, folders)
    else:
        hydra_edge.compose(parsed.overrides, registry, folders)
