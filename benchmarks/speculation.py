"""Speed-up of drafters over plain decoding, beside what their acceptance and step times predict.

    python -m benchmarks.speculation --json docs/results/speculation.json
    python -m benchmarks.speculation --model smollm2 --drafters ngram,suffix,draft_model

For each drafter, number of requests and length, and for the adaptive lengths: tokens a second while
all requests decode, as a ratio to spec=none. The runs alternate; a ratio is the median of pairs
[95 % bootstrap interval], above 1: drafting is faster. Beside it the model of
interlock.driver.speculation, tokens a pass / (v + c * draft passes + catch-up), with v, c and
catch-up measured in the same runs in units of the plain step, and the residual between the two
(what the executor does not time: planning, commit, drafters on the host). Drafters that the model
has no head for are listed with the reason. Prompts are evenly spaced pieces of --text, by default
the model's held-out text.
"""

import argparse
import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.beside.paired import Progress, interleaved, paired_ratio
from interlock.core.assemble import assemble
from interlock.core.checkpoint import find_model
from interlock.core.engine import Engine
from interlock.core.errors import InterlockError
from interlock.core.registry import load_registry
from interlock.core.request import Request, SamplingParams
from interlock.driver.manifest import device_entry
from interlock.driver.metrics import candidates
from interlock.driver.speculation import StepTimesAccount

PROMPT_TOKENS = 64


@dataclass
class Arm:
    """One composition at one number of requests, and what was seen of it."""

    engine: Engine
    account: StepTimesAccount
    prompts: list[tuple[int, ...]]
    tokens: int
    temperature: float
    emitted: int = 0
    passes: int = 0

    def seconds_a_token(self) -> float:
        """Serve the prompts; over the steps in which all of them decode."""
        engine, running = self.engine, len(self.prompts)
        sampling = SamplingParams(
            temperature=self.temperature, max_tokens=self.tokens, ignore_eos=True
        )
        ids = [
            engine.submit(Request(index, prompt, sampling))
            for index, prompt in enumerate(self.prompts)
        ]
        begun: set[int] = set()
        while len(begun) < running:
            begun |= {out.index for out in engine.step() if out.new_token_ids}
        emitted, passes, ended, start_s = 0, 0, False, time.perf_counter()
        while not ended:
            for out in engine.step():
                emitted += len(out.new_token_ids)
                ended = ended or out.finished is not None
            passes += running
        seconds = time.perf_counter() - start_s
        for request in ids:
            engine.abort(request)
        for _ in engine.outputs():
            pass
        self.emitted, self.passes = self.emitted + emitted, self.passes + passes
        return seconds / emitted


def arm(args: argparse.Namespace, batch: int, *overrides: str) -> Arm:
    """An engine for so many requests; raises InterlockError where it cannot be composed."""
    engine = assemble(
        [
            f"model={args.model}", f"scheduler.max_requests={batch}", f"threads={args.threads}",
            "cache=none", "progress=false", *args.settings, *overrides,
        ]
    )  # fmt: skip
    account = StepTimesAccount(engine.core.drafts.one_pass)
    engine.watch(account)
    return Arm(engine, account, prompts(args, engine, batch), args.tokens, args.temperature)


def prompts(args: argparse.Namespace, engine: Engine, count: int) -> list[tuple[int, ...]]:
    """Evenly spaced pieces of the text."""
    path = args.text
    if path is None:
        formats = list(load_registry().formats.values())
        path = find_model(args.model, formats).directory / "held_out.txt"
    assert engine.codec is not None, "the model has no tokenizer"
    ids = engine.codec.encode(path.read_text())
    stride = (len(ids) - PROMPT_TOKENS) // count
    return [tuple(ids[i * stride : i * stride + PROMPT_TOKENS]) for i in range(count)]


def arms_of(
    args: argparse.Namespace, drafter: str, batch: int, refused: dict[str, str]
) -> dict[str, Arm]:
    """The drafter at every length it takes, and at the largest of these with adapting lengths."""
    arms: dict[str, Arm] = {}
    for length in args.lengths:
        try:
            arms[str(length)] = arm(args, batch, f"spec={drafter}", f"spec.num_drafts={length}")
        except InterlockError as error:
            refused[f"spec={drafter} spec.num_drafts={length}"] = str(error).strip()
    longest = max(map(int, arms), default=0)
    for policy in args.policies if arms else ():
        more = f"spec={drafter}", f"spec.num_drafts={longest}", f"spec/length={policy}"
        arms[policy] = arm(args, batch, *more)
    return arms


def measure(
    args: argparse.Namespace, drafter: str, batch: int, progress: Progress, refused: dict[str, str]
) -> list[dict[str, Any]]:
    """A row for each length of this drafter."""
    found = arms_of(args, drafter, batch, refused)
    if not found:
        return []
    plain = arm(args, batch, "spec=none")
    arms = {"plain": plain, **found}
    for one in arms.values():
        one.seconds_a_token()  # a first run builds and warms
        one.account = StepTimesAccount(one.account.one_pass)
        one.engine.watch(one.account)
        one.emitted = one.passes = 0
    runs = {name: one.seconds_a_token for name, one in arms.items()}
    samples = interleaved(runs, args.repeats, progress, f"{drafter}, {batch} requests")
    base = {batch: plain.account.plain_step_s()[batch]}
    rows = []
    for name, one in arms.items():
        if name == "plain":
            continue
        ledger, ratio = one.engine.core.ledger, paired_ratio(samples["plain"], samples[name])
        model = one.account.summary(one.emitted / one.passes, base)
        gain = model["modelled_speedup"]
        rows.append(
            {
                "drafter": drafter,
                "requests": batch,
                "length": name,
                "tokens_a_second": 1 / statistics.median(samples[name]),
                "plain_tokens_a_second": 1 / statistics.median(samples["plain"]),
                "speedup": vars(ratio),
                "modelled_speedup": gain,
                "residual": ratio.median / gain - 1 if gain else None,
                "emitted_per_pass": one.emitted / one.passes,
                "acceptance_length": 1 + ledger.accepted / max(1, ledger.draft_rounds),
                "candidates": candidates(ledger),
                "model": model,
                "samples_s_per_token": samples[name],
            }
        )
    for one in arms.values():
        one.engine.close()
    return rows


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])

    def listed(text: str) -> list[str]:
        return [part for part in text.split(",") if part]

    def numbers(text: str) -> list[int]:
        return [int(part) for part in listed(text)]

    known = sorted(name for seam, name in load_registry().components if seam == "spec")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    parser.add_argument("--model", default="tiny-gqa")
    parser.add_argument("--text", type=Path, help="where prompts are taken from")
    parser.add_argument("--drafters", type=listed, default=[n for n in known if n != "none"])
    parser.add_argument("--requests", type=numbers, default=[1, 8, 32])
    parser.add_argument("--lengths", type=numbers, default=[1, 3, 5, 7])
    parser.add_argument("--policies", type=listed, default=["goodput"])
    parser.add_argument("--tokens", type=int, default=96, help="of each request")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("settings", nargs="*", help="further overrides, for every engine")
    return parser.parse_args()


def main() -> None:
    """Measure every drafter at every number of requests; print the table."""
    args, progress = arguments(), Progress()
    rows: list[dict[str, Any]] = []
    refused: dict[str, str] = {}
    for drafter in args.drafters:
        for batch in args.requests:
            rows += measure(args, drafter, batch, progress, refused)
    progress.clear()
    heads = "drafter", "requests", "length", "per pass", "c", "v", "model", "measured", "residual"
    table = Table(*heads)
    for row in rows:
        model = row["model"]
        ratio = "{median:.2f} [{low:.2f}, {high:.2f}]".format(**row["speedup"])
        cells = [
            row["emitted_per_pass"], model["draft_step_share"], model["verify_inflation"],
            row["modelled_speedup"],
        ]  # fmt: skip
        table.add_row(
            row["drafter"], str(row["requests"]), row["length"],
            *("-" if cell is None else f"{cell:.2f}" for cell in cells), ratio,
            "-" if row["residual"] is None else f"{row['residual']:+.0%}",
        )  # fmt: skip
    console = Console()
    console.print(table)
    for what, reason in refused.items():
        console.print(f"left out: {what}: {reason}", markup=False)
    if args.json:
        report = {
            "rows": rows,
            "left_out": refused,
            "arguments": {k: str(v) for k, v in vars(args).items()},
            "device": device_entry(torch.device("cpu")),
            "torch": torch.__version__,
        }
        args.json.write_text(json.dumps(report, indent=1, allow_nan=False) + "\n")


if __name__ == "__main__":
    main()
