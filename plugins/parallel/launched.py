"""Joins the processes that torchrun started: rank 0 has the engine, the others follow it.

torchrun says who is who in the environment (https://docs.pytorch.org/docs/stable/elastic/run.html)
and ends all processes when one has failed.
"""

import os
import signal
import socket
import zlib
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import NamedTuple

import torch
from torch._C._distributed_c10d import TCPStore

from interlock.core.errors import ConfigError, RankError
from interlock.plugins.parallel.torch_ranks import LOOPBACK, TorchRanks, join
from interlock.plugins.parallel.watch import CAUSE_S, LIKELY, POLL_S, Watch, Watched, process_state

JOIN_TIMEOUT = timedelta(minutes=10)
NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


class Launch(NamedTuple):
    """What torchrun told this process."""

    rank: int
    size: int
    local_rank: int
    address: str
    port: int
    agent_has_store: bool
    one_machine: bool

    @staticmethod
    def of(environment: Mapping[str, str]) -> "Launch | None":
        """None where no launcher started more than this process.

        Raises ConfigError when the variables are not whole.
        """
        if environment.get("WORLD_SIZE", "1") == "1":
            return None
        try:
            rank, size, local_rank, address, port = (environment[name] for name in NAMES)
            agent = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
            here = environment.get("LOCAL_WORLD_SIZE") == size
            return Launch(int(rank), int(size), int(local_rank), address, int(port), agent, here)
        except (KeyError, ValueError) as error:
            told = ", ".join(f"{name}={environment.get(name)}" for name in NAMES)
            raise ConfigError(
                f"WORLD_SIZE is set, but the other variables of torchrun are not as it sets them "
                f"({told}); start with torchrun, or unset WORLD_SIZE"
            ) from error


class Peer(Watched):
    """Another rank's process on this machine."""

    def __init__(self, rank: int, pid: int) -> None:
        super().__init__(rank)
        self.pid = pid

    def failure(self) -> tuple[int, str] | None:
        """See Watched. That it ended is no failure: it does so when rank 0 is done."""
        return (LIKELY, "has been stopped (SIGSTOP)") if self.stopped() else None

    @property
    def ended(self) -> bool:
        """True when it is no more."""
        return process_state(self.pid) in (None, "Z", "X")

    def end(self) -> None:
        """See Watched."""
        with suppress(OSError):
            os.kill(self.pid, signal.SIGKILL)


def join_launched(launch: Launch, cuda: bool) -> tuple[TorchRanks, Watch]:
    """This process among those of the launch, and on rank 0 a watch over those on its machine.

    Raises RankError when the ranks' meeting place is not there, or taken by somebody else.
    """
    master = launch.rank == 0 and not launch.agent_has_store
    try:
        store = TCPStore(
            launch.address, launch.port, launch.size, is_master=master, timeout=JOIN_TIMEOUT
        )
    except RuntimeError as error:
        raise RankError(
            f"parallel=tensor: rank {launch.rank} cannot {'listen on' if master else 'reach'} "
            f"MASTER_ADDR={launch.address} MASTER_PORT={launch.port}: {error}"
        ) from error
    peers: list[Peer] = []
    watch = Watch(peers)

    def cause() -> str | None:
        """Asked when a call failed: whose process is gone, or what the watch has seen."""
        for _ in range(round(CAUSE_S / POLL_S) if peers else 0):
            if gone := [peer for peer in peers if peer.ended and not watch.failed.is_set()]:
                return f"parallel=tensor: rank {gone[0].rank} (process {gone[0].pid}) ended"
            if watch.failed.wait(POLL_S):
                break
        return watch.cause() if peers else None

    index = launch.local_rank if cuda else None
    own_address = LOOPBACK if launch.one_machine else ""
    ranks = join(store, launch.rank, launch.size, index, cause, own_address)
    here = zlib.crc32(socket.gethostname().encode())
    mine = torch.tensor([os.getpid(), here], device=ranks.place(torch.device("cpu")))
    found = ranks.concat(mine).view(-1, 2).tolist()
    if launch.rank == 0:
        peers += [
            Peer(rank, pid) for rank, (pid, host) in enumerate(found) if rank and host == here
        ]
        watch.on_failure = ranks.abort
        watch.start()
    return ranks, watch
