"""What one run of a cell does in the process that was made for it alone."""

import json
import os
import sys
import time
import traceback
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import torch

from interlock.conf.check_sampling import sampling_problems
from interlock.core.assemble import build_engine
from interlock.core.errors import ConfigError, InterlockError
from interlock.core.registry import load_registry
from interlock.core.request import Request
from interlock.core.settings import EngineConfig
from interlock.driver.run import make_entries, make_workload, run
from interlock.driver.run_folder import write_file
from interlock.study.job import FAILED, LOG, MACHINE, QUALITY, STARTED, Job, fail
from interlock.study.quality import measure_quality

WARM_REQUESTS, WARM_TOKENS = 2, 4
"""Of the workload, on an engine that is thrown away before the measured one is built: what a
process does for the first time (libraries, kernels, memory) is in no figure."""
PRODUCTS, SIDE = 15, 192
"""Of the calibration: how many matrix products, and of what size."""


def do(job: Job) -> int:
    """Run the job with its output in the folder's log; 0, or 1 with the reason in failed.json.

    Raises KeyboardInterrupt where somebody stops it.
    """
    folder = Path(job.folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FAILED).unlink(missing_ok=True)
    _log_to(folder / LOG)
    try:
        _serve(job, folder)
    except InterlockError as error:
        problems = error.problems if isinstance(error, ConfigError) else [str(error)]
        return fail(folder, "; ".join(problems))
    except MemoryError as error:
        return fail(folder, f"out of memory: {error or 'no reason given'}")
    except Exception as error:  # whatever a component raises ends its own run only
        traceback.print_exc()
        return fail(folder, f"{type(error).__name__}: {' '.join(str(error).split())}")
    return 0


def _serve(job: Job, folder: Path) -> None:
    config = job.config
    machine = {STARTED: time.time(), "load_average": os.getloadavg()[0]}
    if job.timed:
        _warm(config)
        machine["calibration_ms"] = calibration_ms()
    write_file(folder / MACHINE, [json.dumps(machine)])
    status = run(config, folder, job.overrides)
    if status:
        raise InterlockError(f"the run ended with status {status}")
    if job.quality:
        measured = measure_quality(config, load_registry())
        write_file(folder / QUALITY, [json.dumps(measured)])


def _warm(config: EngineConfig) -> None:
    """Serve the workload's first requests, shortened, on an engine that is then thrown away."""
    with closing(build_engine(config, load_registry(), environment={})) as engine:
        entries = make_entries(config, engine, make_workload(config, engine))
        for entry in [one for one in entries if isinstance(one, Request)][:WARM_REQUESTS]:
            tokens = min(entry.sampling.max_tokens, WARM_TOKENS)
            sampling = replace(entry.sampling, max_tokens=tokens)
            if sampling_problems(sampling):  # such as min_tokens above it
                sampling = entry.sampling
            engine.submit(replace(entry, arrival_s=0.0, sampling=sampling))
        for _ in engine.outputs():
            pass


def calibration_ms() -> float:
    """The median time of a fixed matrix product: a machine that changes shows here."""
    left, right = torch.ones(SIDE, SIDE), torch.ones(SIDE, SIDE)
    times = []
    for _ in range(PRODUCTS):
        start_s = time.perf_counter()
        torch.mm(left, right)
        times.append(time.perf_counter() - start_s)
    return sorted(times)[PRODUCTS // 2] * 1e3


def _log_to(path: Path) -> None:
    """Everything that this process and what it starts print goes to a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for number in (1, 2):
        os.dup2(log, number)
    os.close(log)
