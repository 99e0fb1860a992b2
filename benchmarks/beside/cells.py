"""The cells of a comparison of engines: decode, prefill, arrivals, and whether they agree.

Every cell alternates between the sides of one run. A side is a process (`process.py`).
"""

import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.beside.paired import Progress, interleaved, paired_ratio
from benchmarks.beside.process import SideProcess
from benchmarks.beside.shapes import LLAMA, SMOLLM2, TINY, Shape
from benchmarks.beside.side import Arrival, draw_prompts

OURS = "interlock"
CELLS = ("decode", "prefill", "arrivals", "agreement")
"""What can be asked for."""
PLAIN = "plain"


@dataclass(frozen=True)
class Work:
    """How much of everything is measured for one shape."""

    shape: Shape
    context: int
    steps: int
    prefill_tokens: int
    requests: int
    gap_s: float
    longest_prompt: int
    longest_output: int


WORKS = {
    SMOLLM2.name: Work(SMOLLM2, 128, 16, 1024, 24, 0.08, 384, 96),
    LLAMA.name: Work(LLAMA, 128, 6, 1024, 10, 0.3, 192, 48),
    TINY.name: Work(TINY, 16, 4, 64, 5, 0.01, 24, 8),
}


@dataclass(frozen=True)
class Row:
    """One cell: what each side needed, in samples that were taken in turns."""

    shape: str
    cell: str
    unit: str
    samples: Mapping[str, Sequence[float]]
    scale: float = 1.0
    """`scale` / sample is shown instead of the sample, where it is not 1.0 (tokens a second)."""
    note: str = ""

    def median(self, side: str) -> float:
        """In the unit."""
        value = statistics.median(self.samples[side])
        return value if self.scale == 1.0 else self.scale / value

    def place(self) -> tuple[int, int, int]:
        """Where it stands among others: by shape, cell and batch."""
        kind = next(at for at, name in enumerate(CELLS) if name in self.cell)
        return list(WORKS).index(self.shape), kind, len(self.cell)

    @property
    def peers(self) -> list[str]:
        """Systems beside ours."""
        return [name for name in self.samples if name != OURS and not name.startswith(PLAIN)]

    @property
    def plains(self) -> list[str]:
        """Plain products over the same bytes, torch.mv first."""
        return [name for name in self.samples if name.startswith(PLAIN)]

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> "Row":
        """As `as_json` wrote it."""
        samples, scale = row["samples"], row.get("scale", 1.0)
        return cls(row["shape"], row["cell"], row["unit"], samples, scale, row["note"])

    def as_json(self) -> dict[str, Any]:
        """Medians, ratios with intervals, and every sample (milliseconds or seconds)."""
        ours = self.samples[OURS]
        ratios = {name: paired_ratio(self.samples[name], ours) for name in self.samples}
        return {
            "shape": self.shape,
            "cell": self.cell,
            "unit": self.unit,
            "medians": {name: round(self.median(name), 3) for name in self.samples},
            "times_as_fast_as": {
                name: {key: round(value, 3) for key, value in vars(ratio).items()}
                for name, ratio in ratios.items()
                if name != OURS
            },
            "scale": self.scale,
            "note": self.note,
            "samples": {name: [round(v, 4) for v in taken] for name, taken in self.samples.items()},
        }


class Comparison:
    """All cells of one shape; `sides` holds ours and the peers, `plain` the products if any."""

    def __init__(
        self,
        work: Work,
        sides: Mapping[str, SideProcess],
        plain: SideProcess | None,
        repeats: int,
        progress: Progress,
    ) -> None:
        self.work, self.sides, self.plain = work, sides, plain
        self.repeats, self.progress = repeats, progress

    def prompts(self, count: int, tokens: int, seed: int) -> list[list[int]]:
        """Random ones of this shape's vocabulary."""
        return draw_prompts(count, tokens, self.work.shape.vocab, seed)

    def rows(self, cells: Sequence[str], batches: Sequence[int]) -> list[Row]:
        """Those asked for; the first prefill of each side warms it up."""
        for name, side in self.sides.items():
            self.progress.say(f"{self.work.shape.name}: warming up {name}")
            side.call("greedy", self.prompts(2, 24, 7), 4)
        found = [self.decode(batch) for batch in batches] if "decode" in cells else []
        if "prefill" in cells:
            found.append(self.prefill())
        if "arrivals" in cells:
            found.append(self.arrivals())
        return found

    def decode(self, batch: int) -> Row:
        """Milliseconds a step of a batch that stays open, with a plain product at batch 1."""
        work, cell = self.work, f"decode, batch {batch}"
        what = f"{work.shape.name} {cell}"
        prompts = self.prompts(batch, work.context, batch)
        for name, side in self.sides.items():
            self.progress.say(f"{what}: prompts of {name}")
            side.call("open", prompts, (self.repeats + 1) * work.steps)
            side.call("decode", 2)
        runs = {
            name: lambda side=side: 1e3 * side.call("decode", work.steps) / work.steps
            for name, side in self.sides.items()
        }
        if self.plain and batch == 1:
            for kind in self.plain.call("kinds"):
                self.plain.call("product", kind, 1)
                runs[f"{PLAIN} {kind}"] = lambda kind=kind: (
                    1e3 * self.plain.call("product", kind, work.steps) / work.steps
                )
        samples = interleaved(runs, self.repeats, self.progress, what)
        for side in self.sides.values():
            side.call("close")
        return Row(work.shape.name, cell, "ms a step", samples)

    def prefill(self) -> Row:
        """Milliseconds of one prompt until its first token; a new prompt every time."""
        work, cell = self.work, f"prefill of {self.work.prefill_tokens:,}"
        seeds = iter(range(1000, 1_000_000))
        runs = {
            name: lambda side=side: (
                1e3 * side.call("prefill", self.prompts(1, work.prefill_tokens, next(seeds))[0])
            )
            for name, side in self.sides.items()
        }
        for run in runs.values():
            run()
        what = f"{work.shape.name} {cell}"
        samples = interleaved(runs, self.repeats, self.progress, what)
        return Row(work.shape.name, cell, "ms", samples)

    def draw_arrivals(self, seed: int) -> list[Arrival]:
        """Poisson arrivals, faster than any side serves them; lengths spread log-uniformly."""
        work, draw = self.work, random.Random(seed)
        due_s, found = 0.0, []
        for index in range(work.requests):
            length = round(16 * (work.longest_prompt / 16) ** draw.random())
            tokens = round(8 * (work.longest_output / 8) ** draw.random())
            prompt = self.prompts(1, length, seed * 1000 + index)[0]
            found.append((due_s, prompt, tokens))
            due_s += draw.expovariate(1 / work.gap_s)
        return found

    def arrivals(self) -> Row:
        """Output tokens a second of requests that arrive one after the other."""
        pilot = self.draw_arrivals(1)[: max(4, self.work.requests // 3)]
        chosen, notes = {}, []
        for name, side in self.sides.items():
            chosen[name], note = self.best_method(name, side, pilot)
            notes += [note] if note else []
        tokens = sum(tokens for _, _, tokens in self.draw_arrivals(2))
        arrivals = self.draw_arrivals(2)  # the same lengths every time, other prompts
        seeds = iter(range(5000, 1_000_000))

        def fresh() -> list[Arrival]:
            return [
                (due_s, self.prompts(1, len(prompt), next(seeds))[0], count)
                for due_s, prompt, count in arrivals
            ]

        runs = {
            name: lambda side=side, name=name: side.call("serve", fresh(), chosen[name])
            for name, side in self.sides.items()
        }
        cell = f"{self.work.requests} arrivals"
        what = f"{self.work.shape.name} {cell}"
        samples = interleaved(runs, self.repeats, self.progress, what)
        note = "; ".join(notes)
        return Row(self.work.shape.name, cell, "output tokens/s", samples, float(tokens), note)

    def best_method(
        self, name: str, side: SideProcess, pilot: Sequence[Arrival]
    ) -> tuple[str, str]:
        """The fastest way of this side to serve arrivals, and what was measured to choose it."""
        methods = side.call("methods")
        if len(methods) == 1:
            return methods[0], ""
        seconds = {}
        for method in methods:
            self.progress.say(f"{self.work.shape.name} arrivals: {name} by {method}")
            seconds[method] = side.call("serve", list(pilot), method)
        best = min(seconds, key=lambda method: seconds[method])
        all_of_them = ", ".join(f"{method} {taken:.1f} s" for method, taken in seconds.items())
        return best, f"{name} serves by {best} (of {all_of_them} for {len(pilot)} requests)"


def agreement(
    shape: Shape, sides: Mapping[str, SideProcess], prompts: int, tokens: int
) -> dict[str, float]:
    """Per peer: the share of greedy tokens that equal ours before the first difference."""
    given = [draw_prompts(1, 8 + 5 * index, shape.vocab, 90 + index)[0] for index in range(prompts)]
    outputs = {name: side.call("greedy", given, tokens) for name, side in sides.items()}

    def same(ours: Sequence[int], theirs: Sequence[int]) -> int:
        pairs = enumerate(zip(ours, theirs, strict=True))
        return next((at for at, (a, b) in pairs if a != b), len(ours))

    return {
        name: sum(map(same, outputs[OURS], theirs)) / (prompts * tokens)
        for name, theirs in outputs.items()
        if name != OURS
    }
