"""Whole engines on one GPU: executors against each other, vLLM if it is installed, bits, ranks."""

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from benchmarks.beside.process import SideProcess
from benchmarks.beside.shapes import LLAMA, SMOLLM2, TINY, Shape, write
from benchmarks.beside.side import draw_prompts
from benchmarks.gpu.checks import Place
from benchmarks.gpu.report import Budget, Line

Side = Callable[..., SideProcess]


class Engines:
    """Sections that start engines in processes of their own, on a random Llama checkpoint."""

    def __init__(self, place: Place, folder: Path) -> None:
        self.place, self.folder = place, folder
        self.shape: Shape = TINY if place.interpreted else LLAMA
        self.batches = (1, 3) if place.interpreted else (1, 8, 32)
        self.steps = 4 if place.interpreted else 32

    def start(self, dtype: str, *options: str, name: str = "interlock") -> SideProcess:
        """An engine of ours on the device, or vLLM's."""
        device = (f"device={self.place.device.type}",) if name == "interlock" else ()
        shape = SMOLLM2 if dtype == "float32" and not self.place.interpreted else self.shape
        return SideProcess(name, write(shape, self.folder, dtype), dtype, 1, device + options)

    def prompts(self, count: int, tokens: int) -> list[list[int]]:
        """Random ones, in the vocabulary of either shape."""
        return draw_prompts(count, tokens, self.shape.vocab, count)

    def executors(self, budget: Budget) -> Iterator[Line]:
        """Same tokens in fp32 and tokens a second in bf16, by executor=torch and cuda_graph."""
        prompts = [p for n in (1, 15, 17, 33) for p in self.prompts(1, n)]
        outputs = {}
        for executor in ("torch", "cuda_graph"):
            with self.start("float32", f"executor={executor}") as side:
                outputs[executor] = side.call("greedy", prompts, 8)
        same = outputs["torch"] == outputs["cuda_graph"]
        yield Line("engine", "tokens in fp32, torch and cuda_graph", "equal" if same else
                   f"differ: {outputs}"[:300], same)  # fmt: skip
        for executor in ("torch", "cuda_graph"):
            yield from self._speed(budget, "interlock", executor, f"executor={executor}")
        if find_spec("vllm") is None:
            yield Line("engine", "vLLM", "not installed", ok=None)
        elif not self.place.interpreted:
            yield from self._speed(budget, "vllm", "vLLM")

    def _speed(self, budget: Budget, name: str, title: str, *options: str) -> Iterator[Line]:
        if budget.over:
            yield Line("engine", title, "the section's time is over", ok=None)
            return
        with self.start("bfloat16", *options, name=name) as side:
            for batch in self.batches:
                side.call("open", self.prompts(batch, 128), 8 * self.steps)
                side.call("decode", self.steps)
                taken = sorted(side.call("decode", self.steps) for _ in range(5))[2]
                side.call("close")
                rate = batch * self.steps / taken
                says = f"{rate:,.0f} tokens/s, {1e3 * taken / self.steps:.2f} ms a step"
                numbers: dict[str, Any] = {"tokens_per_s": rate}
                yield Line("engine", f"{title}, decode batch {batch}", says, numbers=numbers)

    def invariant(self, budget: Budget) -> Iterator[Line]:
        """numerics=batch_invariant: a prompt's greedy tokens alone and among others, in bf16."""
        prompts = [p for n in (3, 17, 33, 5) for p in self.prompts(1, n)]
        with self.start("bfloat16", "numerics=batch_invariant", "cache=none") as side:
            together = side.call("greedy", prompts, 24)
            alone = [side.call("greedy", [prompt], 24)[0] for prompt in prompts]
        equal = sum(a == b for a, b in zip(together, alone, strict=True))
        says = f"{equal} of {len(prompts)} outputs are those of the prompt alone"
        yield Line("batch invariant", "bf16 greedy tokens", says, equal == len(prompts))

    def ranks(self, budget: Budget) -> Iterator[Line]:
        """parallel=tensor over NCCL, where there are two GPUs."""
        case = "parallel=tensor over NCCL"
        devices = torch.cuda.device_count()
        if devices < 2:
            yield Line("ranks", case, f"not run: it needs two GPUs, and there are {devices}", None)
            return
        prompts = self.prompts(4, 21)
        outputs = []
        for options in ((), ("parallel=tensor", "parallel.size=2")):
            with self.start("float32", *options) as side:
                outputs.append(side.call("greedy", prompts, 8))
        same = outputs[0] == outputs[1]
        yield Line("ranks", case, "tokens equal one GPU's" if same else "tokens differ", same)
