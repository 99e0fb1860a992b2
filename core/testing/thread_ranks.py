"""Ranks that are threads of one process: a whole split engine without starting a process.

For tests of what runs on ranks: `run_on_ranks` for layers, `ThreadStrategy` for engines.
"""

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from interlock.core.errors import RankError
from interlock.core.parallel import ALONE, ParallelStrategy, Ranks
from interlock.core.rank import follow
from interlock.core.registry import Registry

T = TypeVar("T")
WAIT_S = 120.0
"""A rank that comes later to a meeting is taken for dead: no test computes for so long."""


class Meeting:
    """Where `size` ranks exchange values; `broken` says which rank failed, and why."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.broken: str | None = None
        self._barrier = threading.Barrier(size, timeout=WAIT_S)
        self._values: list[Any] = [None] * size

    def exchange(self, rank: int, value: Any) -> list[Any]:
        """Every rank's value, in rank order."""
        try:
            self._values[rank] = value
            self._barrier.wait()
            values = list(self._values)
            self._barrier.wait()
        except threading.BrokenBarrierError as error:
            raise RankError(self.broken or "the ranks were ended") from error
        return values

    def end(self, reason: str) -> None:
        """Let nobody wait any more."""
        self.broken = self.broken or reason
        self._barrier.abort()


class ThreadRanks(Ranks):
    """One of several threads; sums in rank order."""

    def __init__(self, rank: int, meeting: Meeting) -> None:
        self.rank, self.size, self._meeting = rank, meeting.size, meeting

    def sum(self, x: Tensor) -> Tensor:
        """See Ranks."""
        total: Tensor
        total, *others = self._meeting.exchange(self.rank, x)
        for other in others:
            total = total + other
        return total

    def concat(self, x: Tensor) -> Tensor:
        """See Ranks."""
        return torch.cat(self._meeting.exchange(self.rank, x), dim=-1)

    def from_first(self, value: T) -> T:
        """See Ranks. The value itself: ranks must not change what they share."""
        first: T = self._meeting.exchange(self.rank, value)[0]
        return first


def run_on_ranks(size: int, work: Callable[[Ranks], T]) -> list[T]:
    """What `work` returns on each rank, in rank order; the first error of any rank is raised."""
    meeting, results, errors = Meeting(size), {}, []

    def run(rank: int) -> None:
        try:
            results[rank] = work(ThreadRanks(rank, meeting))
        except Exception as error:
            errors.append(error)
            meeting.end(f"rank {rank}: {error!r}")

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [results[rank] for rank in range(size)]


class ThreadStrategy(ParallelStrategy):
    """Followers in threads of this process; `kind` is what every rank gets."""

    kind = ThreadRanks

    def __init__(self, size: int, registry: Registry) -> None:
        self._meeting, self._registry = Meeting(size), registry
        self._threads: list[threading.Thread] = []

    @property
    def world_size(self) -> int:
        """As asked for."""
        return self._meeting.size

    def start(self, device: torch.device) -> Ranks:
        """See ParallelStrategy."""
        for rank in range(1, self.world_size):
            name = f"rank {rank}"
            thread = threading.Thread(target=self._follow, args=(rank,), daemon=True, name=name)
            self._threads.append(thread)
            thread.start()
        return self.kind(0, self._meeting) if self._threads else ALONE

    def _follow(self, rank: int) -> None:
        try:
            follow(self.kind(rank, self._meeting), self._registry)
        except Exception as error:
            self._meeting.end(f"rank {rank} failed: {type(error).__name__}: {error}")

    def close(self, finished: bool = True) -> None:
        """See ParallelStrategy."""
        if not finished:
            self._meeting.end("the ranks were ended")
        for thread in self._threads:
            thread.join()
        self._threads.clear()
