"""A process that has imported everything and built nothing, and forks once for every run.

So each run has a process of its own at the cost of a fork: no engine, cache or counter of an
earlier run can be there, memory is given back whole, and a crash ends that run alone. The server
ends its run and itself when whoever asked for it goes away.
"""

import gc
import os
import select
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any


def main(arguments: list[str]) -> None:
    """`DESCRIPTOR CORES`: jobs with their cores come in and exit codes go out over a duplex pipe.

    The cores are those of the first job; later ones have as many.
    """
    descriptor, cores = int(arguments[0]), [int(core) for core in arguments[1].split(",") if core]
    if cores:
        os.sched_setaffinity(0, cores)  # before torch counts its threads
    from interlock.core.registry import load_registry
    from interlock.driver.manifest import component_entry
    from interlock.study import one_run

    load_registry()
    component_entry(Connection)  # reads which distribution owns which package, once for all runs
    gc.collect()
    gc.freeze()  # collections in children touch none of these pages
    line: Connection = Connection(descriptor)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):  # whoever asked went away
        line.send("ready")
        while True:
            job, cores = line.recv()
            line.send(_forked(job, cores, line, one_run.do))


def _forked(job: Any, cores: Sequence[int], line: Connection, do: Callable[[Any], int]) -> int:
    """The exit code of a child that does the job; minus a signal's number if one ended it."""
    ends, held = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ends)
        line.close()
        status = 1
        try:
            if cores:
                os.sched_setaffinity(0, cores)
            status = do(job)
        except BaseException as error:
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    os.close(held)
    ready, _, _ = select.select([ends, line.fileno()], [], [])
    if ends not in ready:  # the other side went away: it sends nothing while a job runs
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)  # with all that the run started, and ourselves
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        sys.exit(0)
    os.close(ends)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    main(sys.argv[1:])
