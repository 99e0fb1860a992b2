"""Ranks over torch.distributed process groups: gloo on a CPU, NCCL between CUDA devices.

Process groups are objects of their own, not torch's default group, so that a process can have
several engines.
"""

import pickle
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store

from interlock.core.errors import RankError
from interlock.core.parallel import Ranks

T = TypeVar("T")
FOREVER = timedelta(days=365)
"""A step may take as long as it likes: ranks are watched, not timed."""
LOOPBACK = "127.0.0.1"
FIRST_BYTES = 4096
"""Of a pickled value: what most steps need, so that they take one broadcast and not two."""


class TorchRanks(Ranks):
    """This process in a group of `size`; `host` exchanges Python values, `joined` tensors.

    `cause` is asked, when a call fails, why; it may wait a moment for the answer.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        host: Any,
        joined: Any,
        cuda_index: int | None,
        cause: Callable[[], str | None],
    ) -> None:
        self.rank, self.size = rank, size
        self._host, self._joined, self._cuda_index = host, joined, cuda_index
        self._cause = cause

    def sum(self, x: Tensor) -> Tensor:
        """See Ranks. Gloo's and NCCL's all-reduce send each sum from one rank to the others."""
        x = x.contiguous()
        self._wait(lambda: self._joined.allreduce([x]))
        return x

    def concat(self, x: Tensor) -> Tensor:
        """See Ranks."""
        x = x.contiguous()
        parts = [torch.empty_like(x) for _ in range(self.size)]
        self._wait(lambda: self._joined.allgather([parts], [x]))
        return torch.cat(parts, dim=-1)

    def from_first(self, value: T) -> T:
        """See Ranks. The value is pickled: the ranks are one program and trust each other."""
        data = pickle.dumps(value) if self.rank == 0 else b""
        buffer = torch.zeros(FIRST_BYTES, dtype=torch.uint8)
        if self.rank == 0:
            head = len(data).to_bytes(8, "little") + data[: FIRST_BYTES - 8]
            buffer[: len(head)] = torch.frombuffer(bytearray(head), dtype=torch.uint8)
        self._broadcast(buffer)
        received = bytes(buffer.numpy())
        rest = int.from_bytes(received[:8], "little") - (FIRST_BYTES - 8)
        if rest > 0:
            tail = torch.zeros(rest, dtype=torch.uint8)
            if self.rank == 0:
                tail[:] = torch.frombuffer(bytearray(data[FIRST_BYTES - 8 :]), dtype=torch.uint8)
            self._broadcast(tail)
            received += bytes(tail.numpy())
        if self.rank == 0:
            return value
        first: T = pickle.loads(received[8:])
        return first

    def place(self, device: torch.device) -> torch.device:
        """cuda:n of the n-th rank on this machine; the CPU for all."""
        return device if self._cuda_index is None else torch.device("cuda", self._cuda_index)

    def abort(self) -> None:
        """Let calls that wait for others fail now."""
        if self._joined is not self._host:
            self._joined.abort()

    def _broadcast(self, buffer: Tensor) -> None:
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        self._wait(lambda: self._host.broadcast([buffer], options))

    def _wait(self, start: Callable[[], Any]) -> None:
        try:
            start().wait()
        except RuntimeError as error:
            raise RankError(self._cause() or f"rank {self.rank}: {error}") from error


def join(
    store: Store,
    rank: int,
    size: int,
    cuda_index: int | None,
    cause: Callable[[], str | None],
    hostname: str = LOOPBACK,
) -> TorchRanks:
    """This process as a member of the group that meets in `store`; returns when all are there.

    Gloo listens on `hostname`'s address ("": the machine's own name).
    """
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # Options in the stub
    create = dist.ProcessGroupGloo.create_device
    own_name = dist.ProcessGroupGloo.create_default_device
    options._devices = [create(hostname=hostname) if hostname else own_name()]
    options._timeout = FOREVER
    host = dist.ProcessGroupGloo(PrefixStore("host", store), rank, size, options)
    joined: Any = host
    if cuda_index is not None:
        torch.cuda.set_device(cuda_index)
        nccl = dist.ProcessGroupNCCL.Options()
        nccl._timeout = FOREVER
        joined = dist.ProcessGroupNCCL(PrefixStore("device", store), rank, size, nccl)
    return TorchRanks(rank, size, host, joined, cuda_index, cause)
