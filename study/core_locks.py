"""Cores that no other run on this host has, for runs that a launcher starts beside each other."""

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import gettempdir

from interlock.core.errors import ConfigError
from interlock.study.cores import available_cores


@contextmanager
def cores_held(count: int) -> Iterator[tuple[int, ...]]:
    """So many cores that no other process of this user holds in this way; waits until there are.

    Raises ConfigError for more than this process may use.
    """
    import fcntl

    cores = available_cores()
    if count > len(cores):
        raise ConfigError(f"a run needs {count} cores; a job of the launcher has {len(cores)}")
    locks = Path(gettempdir()) / f"interlock-cores-{os.getuid()}"
    locks.mkdir(exist_ok=True)
    while True:
        held: dict[int, int] = {}
        for core in cores:
            file = os.open(locks / str(core), os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                held[core] = file
            except BlockingIOError:
                os.close(file)
            if len(held) == count:
                break
        if len(held) == count:
            break
        for file in held.values():
            os.close(file)
        time.sleep(0.05)
    try:
        yield tuple(held)
    finally:
        for file in held.values():
            with suppress(OSError):
                os.close(file)


@contextmanager
def pinned(count: int) -> Iterator[tuple[int, ...]]:
    """Hold so many cores and let all threads of this process run on them alone, until the end.

    Torch computes with as many threads as there are cores. A process that makes one run after
    the other (joblib's and Ray's do) holds others for each.
    """
    import torch

    usual, threads = available_cores(), torch.get_num_threads()
    with cores_held(count) as cores:
        _let_run_on(cores)
        torch.set_num_threads(count)
        try:
            yield cores
        finally:
            _let_run_on(usual)
            torch.set_num_threads(threads)


def _let_run_on(cores: Sequence[int]) -> None:
    """The affinity of every thread that there is; those that these start have it from them."""
    if sys.platform != "linux":
        return
    for thread in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread), cores)
