"""What a side of a comparison can do, in a process of its own. Imports nothing but the library.

A side is one system that serves one model: Interlock, transformers, vLLM. Each answers the same
commands with plain values, so that a script can alternate between them. Prompts are token ids.
"""

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

Prompt = list[int]
Arrival = tuple[float, Prompt, int]
"""Seconds after the start, prompt, output tokens."""


def draw_prompts(count: int, tokens: int, vocab: int, seed: int) -> list[Prompt]:
    """Random prompts that no earlier one shares a prefix with."""
    draw = random.Random(seed)
    return [[draw.randrange(3, vocab) for _ in range(tokens)] for _ in range(count)]


class Side(ABC):
    """One system that serves one model. Every method blocks until it is done."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Versions and settings that the numbers depend on."""

    @abstractmethod
    def open(self, prompts: Sequence[Prompt], tokens: int) -> None:
        """Compute the prompts and start a batch that can decode `tokens` tokens a request."""

    @abstractmethod
    def decode(self, steps: int) -> float:
        """Seconds that `steps` further steps of the open batch take."""

    @abstractmethod
    def close(self) -> None:
        """End the open batch."""

    @abstractmethod
    def greedy(self, prompts: Sequence[Prompt], tokens: int) -> list[list[int]]:
        """Greedy outputs of exactly this many tokens."""

    @abstractmethod
    def serve(self, arrivals: Sequence[Arrival], method: str) -> float:
        """Seconds from the first arrival until the last request ended."""

    def methods(self) -> list[str]:
        """The ways to serve arrivals, of which the best is compared."""
        return ["engine"]

    def prefill(self, prompt: Prompt) -> float:
        """Seconds until the first token of one prompt."""
        start_s = time.perf_counter()
        self.greedy([prompt], 1)
        return time.perf_counter() - start_s


class SteppedSide(Side):
    """An engine that is driven step by step: requests are added at any time between steps."""

    SLACK = 64
    """Tokens beyond those that are timed: early requests of a batch decode while others prefill."""

    def __init__(self) -> None:
        self.next_name = 0
        self.open_names: list[int] = []

    @abstractmethod
    def add(self, name: int, prompt: Prompt, tokens: int) -> None:
        """Queue a request that decodes greedily exactly this many tokens."""

    @abstractmethod
    def step(self) -> Iterable[tuple[int, Sequence[int]]]:
        """Run one step; (name, new tokens) of each request that got some."""

    @abstractmethod
    def busy(self) -> bool:
        """True while a request is not finished."""

    @abstractmethod
    def cancel(self, name: int) -> None:
        """End a request now."""

    def _add(self, prompt: Prompt, tokens: int) -> int:
        name, self.next_name = self.next_name, self.next_name + 1
        self.add(name, prompt, tokens)
        return name

    def open(self, prompts: Sequence[Prompt], tokens: int) -> None:
        """Computes the prompts; returns when every request has a token."""
        self.open_names = [self._add(prompt, tokens + self.SLACK) for prompt in prompts]
        started: set[int] = set()
        while len(started) < len(prompts):
            started.update(name for name, _ in self.step())

    def decode(self, steps: int) -> float:
        """Seconds of these steps."""
        start_s = time.perf_counter()
        for _ in range(steps):
            given = sum(len(tokens) for _, tokens in self.step())
            assert given == len(self.open_names), f"{given} tokens in a step of the open batch"
        return time.perf_counter() - start_s

    def close(self) -> None:
        """Cancels what is open."""
        for name in self.open_names:
            self.cancel(name)
        self.open_names = []
        while self.busy():
            list(self.step())

    def greedy(self, prompts: Sequence[Prompt], tokens: int) -> list[list[int]]:
        """All prompts at once."""
        out: dict[int, list[int]] = {self._add(prompt, tokens): [] for prompt in prompts}
        while self.busy():
            for name, new in self.step():
                out[name] += new
        return list(out.values())

    def serve(self, arrivals: Sequence[Arrival], method: str) -> float:
        """Adds each request when it is due and steps all the time."""
        waiting = list(reversed(arrivals))
        start_s = time.perf_counter()
        while waiting or self.busy():
            passed_s = time.perf_counter() - start_s
            while waiting and waiting[-1][0] <= passed_s:
                _, prompt, tokens = waiting.pop()
                self._add(prompt, tokens)
            if self.busy():
                list(self.step())
            elif waiting:
                time.sleep(max(0.0, waiting[-1][0] - passed_s))
        return time.perf_counter() - start_s
