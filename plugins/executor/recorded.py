"""A target pass over tensors of its own, which is run again after they were overwritten.

On CUDA its launches are captured in a graph and replayed; elsewhere the pass is called again.
"""

import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from interlock.core.errors import ConfigError

WARM_UPS = 2
"""Passes before a capture: they compile kernels and make the workspaces of libraries."""

Run = Callable[[], tuple[Tensor, ...]]

logger = logging.getLogger("interlock")


class Recorded:
    """`run` reads what differs from step to step from `tensors` alone.

    It gives features [T, E], and more. What comes out of a replay is overwritten by the next
    replay, also of another recording.
    """

    def __init__(self, run: Run, tensors: Sequence[Tensor], replay: Run | None = None) -> None:
        self._tensors = tuple(tensors)
        self._replay = replay or run

    def replay(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """What `run` gives for a step with these inputs, of the same shapes as those recorded."""
        for static, fresh in zip(self._tensors, tensors, strict=True):
            if static is not fresh:
                static.copy_(fresh)
        return self._replay()


class CudaGraphs:
    """Captures passes on one device; all graphs take their memory from one pool."""

    mode = "captured"

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, run: Run, tensors: Sequence[Tensor], name: str) -> Recorded:
        """Warm up and capture. ConfigError, with torch's reason, where that is impossible."""
        logger.info("capturing %s", name)
        side = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]  # torch's
        side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                run()
        torch.cuda.current_stream(self._device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._pool):
                outputs = run()
        except RuntimeError as error:
            raise ConfigError(
                f"executor=cuda_graph cannot capture a pass of {name}: {error}; set executor=torch"
            ) from error

        def replay() -> tuple[Tensor, ...]:
            graph.replay()
            return outputs

        return Recorded(run, tensors, replay)


class EagerReplay:
    """Records without capturing: a replay calls the pass again."""

    mode = "eager replay, not captured"

    def record(self, run: Run, tensors: Sequence[Tensor], _name: str) -> Recorded:
        """The pass as it is."""
        return Recorded(run, tensors)
