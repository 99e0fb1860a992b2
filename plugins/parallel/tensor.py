"""Tensor parallelism: every layer split over processes that join their results.

Column and row splits after Megatron-LM (arXiv 1909.08053, section 3); the model's parts know their
shares (`plugins/models/layers.py`). Rank 0 is the engine's own process; it starts the others on
this machine, or joins those that torchrun started.
"""

import weakref
from typing import Any

import torch
from torch._C._distributed_c10d import TCPStore

from interlock.core.component import BuildContext
from interlock.core.errors import ConfigError
from interlock.core.parallel import ALONE, ParallelStrategy, Ranks
from interlock.plugins.parallel import TensorConfig
from interlock.plugins.parallel.launched import Launch, join_launched
from interlock.plugins.parallel.processes import LEAVE_S, Workers
from interlock.plugins.parallel.torch_ranks import LOOPBACK, join
from interlock.plugins.parallel.watch import Watch
from interlock.plugins.parallel.worker import Hello


class CPUThreads:
    """Torch's threads in this process, of which there is one number for all its engines."""

    def __init__(self) -> None:
        self._usual, self._users = 0, 0

    def divide(self, ranks: int) -> None:
        """Use as many as each of so many ranks can have; `release` must follow."""
        if self._users == 0:
            self._usual = torch.get_num_threads()
        self._users += 1
        torch.set_num_threads(max(1, self._usual // ranks))

    def release(self) -> None:
        """After the last of those who divided them they are as they were before the first."""
        self._users -= 1
        if self._users == 0:
            torch.set_num_threads(self._usual)


THREADS = CPUThreads()


class TensorParallel(ParallelStrategy):
    """`size` ranks, one process and device each."""

    def __init__(self, size: int, launch: Launch | None = None) -> None:
        self._size, self._launch = size, launch
        self._workers: Workers | None = None
        self._watch: Watch | None = None
        self._threads: weakref.finalize[Any, Any] | None = None
        self._facts: dict[str, Any] = {"world_size": size}

    @property
    def world_size(self) -> int:
        """As configured."""
        return self._size

    def start(self, device: torch.device) -> Ranks:
        """See ParallelStrategy. On a CPU the ranks divide this process's torch threads."""
        if self._size == 1:
            return ALONE
        cuda = device.type == "cuda"
        self._facts["backend"] = "nccl" if cuda else "gloo"
        if self._launch is not None:
            self._facts["started_by"] = "torchrun"
            ranks, self._watch = join_launched(self._launch, cuda)
            return ranks
        self._facts["started_by"] = "interlock"
        return self._start_here(cuda)

    def _start_here(self, cuda: bool) -> Ranks:
        self._workers = workers = Workers(self._size)
        weakref.finalize(self, workers.close, 0)
        if not cuda:
            THREADS.divide(self._size)
            self._threads = weakref.finalize(self, THREADS.release)
        threads = torch.get_num_threads()
        store = TCPStore(LOOPBACK, 0, self._size, is_master=True, wait_for_workers=False)
        workers.greet(lambda rank: Hello(rank, self._size, store.port, cuda, threads))
        index = 0 if cuda else None
        ranks = workers.run(lambda: join(store, 0, self._size, index, workers.watch.cause))
        workers.watch.on_failure = ranks.abort
        return ranks

    def close(self, finished: bool = True) -> None:
        """See ParallelStrategy. Processes of torchrun are left to torchrun."""
        if self._watch is not None:
            self._watch.end()
            self._watch = None
        if self._workers is not None:
            self._workers.close(LEAVE_S if finished else 0)
            self._workers = None
        if self._threads is not None:
            self._threads()  # once, however often it is called

    def facts(self) -> dict[str, Any]:
        """World size, backend, and who started the ranks."""
        return dict(self._facts)


def build(config: TensorConfig, context: BuildContext) -> TensorParallel:
    """See Component. Raises ConfigError when torchrun started another number of processes."""
    launch = Launch.of(context.environment)
    if launch is not None and launch.size != config.size:
        raise ConfigError(
            f"parallel.size={config.size}, but torchrun started {launch.size} processes: write "
            f"parallel.size={launch.size}, or start without torchrun (the ranks are then started "
            "with the engine)"
        )
    return TensorParallel(config.size, launch)
