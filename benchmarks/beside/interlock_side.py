"""Interlock as a side of a comparison: its default engine, driven step by step."""

from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any

import torch
from side import Prompt, SteppedSide

from interlock.core.assemble import assemble
from interlock.core.request import Request, RequestId, SamplingParams

CACHED_TOKENS = 32_768


class InterlockSide(SteppedSide):
    """`options` are further overrides."""

    def __init__(self, model: str, dtype: str, threads: int, options: Sequence[str]) -> None:
        super().__init__()
        self.overrides = [
            f"model={model}", f"dtype={dtype}", f"threads={threads}", "max_model_len=4096",
            f"cache.num_pages={CACHED_TOKENS // 16}", *options,
        ]  # fmt: skip
        self.engine = assemble(self.overrides)
        self.ids: dict[int, RequestId] = {}

    def facts(self) -> dict[str, Any]:
        """What ran."""
        return {
            "interlock": version("interlock"),
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "overrides": [text for text in self.overrides if not text.startswith("model=")],
            "components": {seam: kind.__name__ for seam, kind in self.engine.classes.items()},
        }

    def add(self, name: int, prompt: Prompt, tokens: int) -> None:
        """A greedy request."""
        sampling = SamplingParams(max_tokens=tokens, ignore_eos=True)
        self.ids[name] = self.engine.submit(Request(name, tuple(prompt), sampling))

    def step(self) -> Iterable[tuple[int, Sequence[int]]]:
        """One step of the engine."""
        for output in self.engine.step():
            if output.finished and output.finished.error:
                raise RuntimeError(output.finished.error)
            if output.new_token_ids:
                yield output.index, output.new_token_ids

    def busy(self) -> bool:
        """Whether the engine has work."""
        return self.engine.has_work

    def cancel(self, name: int) -> None:
        """Abort."""
        self.engine.abort(self.ids[name])
