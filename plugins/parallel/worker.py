"""The process of a rank other than 0, started by `processes.start`."""

import os
import sys
import threading
import traceback
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

PARENT_CHECK_S = 1.0


class Hello(NamedTuple):
    """What a worker is told first."""

    rank: int
    size: int
    port: int
    cuda: bool
    threads: int


def main(descriptor: int) -> None:
    """Follow rank 0 until it is done. Standard output and error are rank 0's to keep.

    `descriptor` is the worker's end of a connection: rank 0 says hello on it, the worker answers
    when it is ready to join and when something went wrong. It closes when rank 0's process ends,
    however it ends, and the worker ends with it.
    """
    connection: Connection[Any, Any] = Connection(descriptor)
    parent = os.getppid()
    hello: Hello = connection.recv()
    threading.Thread(target=_end_with, args=(connection, parent), daemon=True).start()
    status = 1
    try:
        _follow(connection, hello)
        status = 0
    except BaseException as error:
        _report(connection, error)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # whatever threads of the process group still wait for


def _follow(connection: "Connection[Any, Any]", hello: Hello) -> None:
    import torch
    from torch._C._distributed_c10d import TCPStore

    from interlock.core.rank import follow
    from interlock.core.registry import load_registry
    from interlock.plugins.parallel.torch_ranks import LOOPBACK, join

    torch.set_num_threads(hello.threads)
    registry = load_registry()
    store = TCPStore(LOOPBACK, hello.port, hello.size, is_master=False)
    connection.send(("ready", ""))
    index = hello.rank if hello.cuda else None
    follow(join(store, hello.rank, hello.size, index, lambda: None), registry)


def _report(connection: "Connection[Any, Any]", error: BaseException) -> None:
    """Tell rank 0. Users' mistakes are one sentence; anything else leaves its traceback."""
    from interlock.core.errors import InterlockError, RankError

    if not isinstance(error, InterlockError):
        traceback.print_exc()
    kind = "lost" if isinstance(error, RankError) else "failed"
    try:
        connection.send((kind, f"{type(error).__name__}: {error}"))
    except OSError:
        pass  # rank 0 is gone


def _end_with(connection: "Connection[Any, Any]", parent: int) -> None:
    """End this process when rank 0's has ended, whatever this one is waiting for."""
    try:
        while not connection.poll(PARENT_CHECK_S) and os.getppid() == parent:
            pass
    finally:
        os._exit(1)
