"""Speed-up of drafters over plain decoding, beside what their acceptance and step times predict.

    python -m benchmarks.speculation --json docs/results/speculation.json \\
        --page docs/results/speculation.md
    python -m benchmarks.speculation --model smollm2 --text prompts.txt --drafters ngram,suffix \\
        --add --json numbers.json dtype=bfloat16

For each drafter and number of requests: tokens a second while all requests decode, at every length
and with lengths that adapt, as a ratio to spec=none. The runs alternate; a ratio is the median of
pairs [95 % bootstrap interval], above 1: drafting is faster. Adaptive lengths are compared with
the best of the fixed ones as well. A first run of each warms up, and is where adaptive lengths
learn the costs.

Beside it stands the model: tokens a pass / (v + c * draft passes + catch-up), with v, c and
catch-up measured in the same runs in units of the plain step. What the model leaves out is the
host's share of a step (planning, commit); it is measured too, so that the residual is divided into
that and what is left, which is noise between runs. A drafter that the model has no head for is left
out with the reason.

A drafter may have options: --drafters "mtp,suffix spec.tree=true". Further words are overrides for
every engine: `dtype=bfloat16`. With --add, rows of earlier runs stay in the file unless this run
measures their drafter, model, dtype and number of requests again, so a long table can be made in
short parts.
"""

import argparse
import dataclasses
import json
import shlex
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[1]))  # started as a file or as a module

from benchmarks.beside.paired import Progress, interleaved, paired_ratio
from benchmarks.speculation_page import page_of, table_of
from interlock.conf.find_model import find_model
from interlock.core.assemble import assemble
from interlock.core.batch import StepPlan, StepResult
from interlock.core.engine import Engine
from interlock.core.errors import InterlockError
from interlock.core.registry import load_registry
from interlock.core.request import Request, SamplingParams
from interlock.driver.manifest import device_entry
from interlock.driver.metrics import candidates
from interlock.driver.speculation import StepTimesAccount

PROMPT_TOKENS = 64
WHOLE = "whole"
"""The length of a drafter whose options say otherwise how many candidates it makes."""


@dataclass
class Arm:
    """One composition at one number of requests, and what was seen of it."""

    engine: Engine
    account: StepTimesAccount
    prompts: list[list[tuple[int, ...]]]
    """Of each run."""
    tokens: int
    temperature: float
    runs: int = 0
    emitted: int = 0
    passes: int = 0
    host_s: float = 0.0
    """What executor and drafter do not account for: planning, commit, bookkeeping."""
    accounted_s: float = 0.0

    def watch(self, _plan: StepPlan, result: StepResult) -> None:
        """An observer: add up what steps account for."""
        self.accounted_s += sum(result.times)

    def seconds_a_token(self) -> float:
        """Serve the run's prompts; over the steps in which all of them decode."""
        engine, prompts = self.engine, self.prompts[self.runs]
        self.runs, running = self.runs + 1, len(prompts)
        sampling = SamplingParams(
            temperature=self.temperature, max_tokens=self.tokens, ignore_eos=True
        )
        ids = [
            engine.submit(Request(index, prompt, sampling)) for index, prompt in enumerate(prompts)
        ]
        begun: set[int] = set()
        while len(begun) < running:
            begun |= {out.index for out in engine.step() if out.new_token_ids}
        emitted, passes, ended = 0, 0, False
        accounted_s, start_s = self.accounted_s, time.perf_counter()
        while not ended:
            for out in engine.step():
                emitted += len(out.new_token_ids)
                ended = ended or out.finished is not None
            passes += running
        seconds = time.perf_counter() - start_s
        self.host_s += seconds - (self.accounted_s - accounted_s)
        self.emitted, self.passes = self.emitted + emitted, self.passes + passes
        for request in ids:
            engine.abort(request)
        for _ in engine.outputs():
            pass
        return seconds / emitted

    def forget(self) -> None:
        """Start again: what was seen so far was warming up."""
        self.account = StepTimesAccount(self.account.one_pass)
        self.engine.watch(self.account)
        self.emitted, self.passes, self.host_s = 0, 0, 0.0

    @property
    def host_s_a_step(self) -> float:
        """Seconds."""
        return self.host_s * self.requests / self.passes

    @property
    def requests(self) -> int:
        """That decode together."""
        return len(self.prompts[0])


def arm(args: argparse.Namespace, batch: int, *overrides: str) -> Arm:
    """An engine for so many requests; raises InterlockError where it cannot be composed."""
    engine = assemble(
        [
            f"model={args.model}", f"scheduler.max_requests={batch}", f"threads={args.threads}",
            "cache=none", "progress=false", *args.settings, *overrides,
        ]
    )  # fmt: skip
    account = StepTimesAccount(engine.core.drafts.one_pass)
    given = prompts(args, engine, batch, 1 + args.repeats)
    made = Arm(engine, account, given, args.tokens, args.temperature)
    engine.watch(made.watch)
    return made


def prompts(
    args: argparse.Namespace, engine: Engine, batch: int, runs: int
) -> list[list[tuple[int, ...]]]:
    """Evenly spaced pieces of the text, other ones for each run: drafters may remember answers."""
    path = args.text
    if path is None:
        formats = list(load_registry().formats.values())
        directory = find_model(args.model, formats).directory
        path = directory / "held_out.txt" if directory else None
        if path is None or not path.is_file():
            sys.exit(f"--model {args.model} comes without a text: give one with --text FILE")
    if engine.codec is None:
        sys.exit(f"--model {args.model} has no tokenizer, which the text needs")
    ids, count = engine.codec.encode(path.read_text(encoding="utf-8")), batch * runs
    stride = (len(ids) - PROMPT_TOKENS) // count
    if stride < 1:
        sys.exit(f"{path} has {len(ids)} tokens, too few for {count} prompts of {PROMPT_TOKENS}")
    pieces = [tuple(ids[i * stride : i * stride + PROMPT_TOKENS]) for i in range(count)]
    return [pieces[run::runs] for run in range(runs)]


def lengths_of(args: argparse.Namespace, drafter: str) -> dict[str, list[str]]:
    """Overrides for each length that the drafter has an option for."""
    component = load_registry().components["spec", drafter]
    if all(field.name != "num_drafts" for field in dataclasses.fields(component.config)):
        return {WHOLE: []}
    return {str(length): [f"spec.num_drafts={length}"] for length in args.lengths}


def arms_of(
    args: argparse.Namespace, drafter: str, batch: int, refused: dict[str, str]
) -> dict[str, Arm]:
    """The drafter at every length it takes, and at the largest of these with adapting lengths."""
    arms: dict[str, Arm] = {}
    name, *options = shlex.split(drafter)
    longest: list[str] = []
    for length, more in lengths_of(args, name).items():
        overrides = [f"spec={name}", *options, *more]
        try:
            arms[length] = arm(args, batch, *overrides)
        except InterlockError as error:
            refused[" ".join([f"model={args.model}", *overrides])] = str(error).strip()
            continue
        longest = overrides
    for policy in args.policies if arms else ():
        overrides = [*longest, f"spec/length={policy}"]
        try:
            arms[policy] = arm(args, batch, *overrides)
        except InterlockError as error:
            refused[" ".join([f"model={args.model}", *overrides])] = str(error).strip()
    return arms


def measure(
    args: argparse.Namespace, drafter: str, batch: int, progress: Progress, refused: dict[str, str]
) -> list[dict[str, Any]]:
    """A row for each length of this drafter."""
    found = arms_of(args, drafter, batch, refused)
    if not found:
        return []
    arms = {"plain": arm(args, batch, "spec=none"), **found}
    for name, one in arms.items():
        progress.say(f"{drafter}, {batch} requests: {name} warms up")
        one.seconds_a_token()
        one.forget()
    what = f"{args.model} {arms['plain'].engine.dtype}, {drafter}, {batch} requests"
    runs = {name: one.seconds_a_token for name, one in arms.items()}
    samples = interleaved(runs, args.repeats, progress, what)
    fixed = [name for name in found if name not in args.policies]
    best = min(fixed, key=lambda name: statistics.median(samples[name]))
    rows = []
    for name, one in found.items():
        row = row_of(name, one, arms["plain"], samples)
        row |= {"model": args.model, "drafter": drafter, "requests": batch}
        if name in args.policies:
            beside = vars(paired_ratio(samples[best], samples[name]))
            row["beside_best_fixed"] = {"length": best, **beside}
        rows.append(row)
    for one in arms.values():
        one.engine.close()
    return rows


def row_of(name: str, one: Arm, plain: Arm, samples: dict[str, list[float]]) -> dict[str, Any]:
    """What was measured at one length, and what the model says to it."""
    batch = one.requests
    step_s = plain.account.plain_step_s()[batch]
    ledger, per_pass = one.engine.core.ledger, one.emitted / one.passes
    ratio = paired_ratio(samples["plain"], samples[name])
    costs = one.account.summary(per_pass, {batch: step_s})
    gain = costs["modelled_speedup"]
    host = {"plain": plain.host_s_a_step / step_s, "drafting": one.host_s_a_step / step_s}
    with_host = None
    if gain:
        with_host = per_pass * (1 + host["plain"]) / (per_pass / gain + host["drafting"])
    return {
        "dtype": str(one.engine.dtype).removeprefix("torch."),
        "temperature": one.temperature,
        "length": name,
        "tokens_a_second": 1 / statistics.median(samples[name]),
        "plain_tokens_a_second": 1 / statistics.median(samples["plain"]),
        "speedup": vars(ratio),
        "modelled_speedup": gain,
        "modelled_with_host": with_host,
        "residual": ratio.median / gain - 1 if gain else None,
        "residual_of_the_host": with_host / gain - 1 if gain and with_host else None,
        "emitted_per_pass": per_pass,
        "acceptance_length": 1 + ledger.accepted / max(1, ledger.draft_rounds),
        "candidates": candidates(ledger),
        "costs": costs,
        "host": host,
        "samples_s_per_token": samples[name],
    }


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )

    def listed(text: str) -> list[str]:
        return [part.strip() for part in text.split(",") if part.strip()]

    def numbers(text: str) -> list[int]:
        return [int(part) for part in listed(text)]

    known = sorted(name for seam, name in load_registry().components if seam == "spec")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    parser.add_argument("--page", type=Path, help="write the table as a page")
    parser.add_argument("--add", action="store_true", help="keep other rows of the --json file")
    parser.add_argument("--model", default="tiny-gqa", help="name, directory or file")
    parser.add_argument("--text", type=Path, help="where prompts are taken from")
    parser.add_argument("--drafters", type=listed, default=[n for n in known if n != "none"])
    parser.add_argument("--requests", type=numbers, default=[1, 8, 32])
    parser.add_argument("--lengths", type=numbers, default=[1, 3, 5, 7], help="fixed ones")
    parser.add_argument("--policies", type=listed, default=["goodput"], help="of spec/length")
    parser.add_argument("--tokens", type=int, default=96, help="of each request")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--repeats", type=int, default=5, help="measurements of each")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("settings", nargs="*", help="further overrides, for every engine")
    args = parser.parse_args(argv)
    unknown = [name for name in args.drafters if shlex.split(name)[0] not in known]
    if unknown:
        parser.error(f"--drafters {','.join(unknown)}: known are {', '.join(known)}")
    if args.add and not args.json:
        parser.error("--add needs --json FILE, whose rows it keeps")
    return args


def report(args: argparse.Namespace, rows: list[dict[str, Any]], refused: dict[str, str]) -> Any:
    """This run's numbers, with those of earlier runs where they are added to."""
    found = {"rows": rows, "left_out": refused, "commands": [shlex.join(sys.argv[1:])]}
    if args.add and args.json.is_file():
        before = json.loads(args.json.read_text())
        measured = {cell_of(row) for row in rows}
        found["rows"] = [r for r in before["rows"] if cell_of(r) not in measured] + rows
        found["left_out"] = before["left_out"] | refused
        found["commands"] = before["commands"] + found["commands"]
    return found | {"device": device_entry(torch.device("cpu")), "torch": torch.__version__}


def cell_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """What is measured together."""
    return tuple(row[key] for key in ("model", "dtype", "temperature", "drafter", "requests"))


def main() -> None:
    """Measure every drafter at every number of requests; print the table."""
    args, progress = arguments(), Progress()
    rows: list[dict[str, Any]] = []
    refused: dict[str, str] = {}
    for drafter in args.drafters:
        for batch in args.requests:
            rows += measure(args, drafter, batch, progress, refused)
    progress.clear()
    console = Console()
    console.print(table_of(rows))
    for what, reason in refused.items():
        console.print(f"left out: {what}: {reason}", markup=False)
    found = report(args, rows, refused)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1, allow_nan=False) + "\n")
    if args.page:
        args.page.write_text(page_of(found), encoding="utf-8")


if __name__ == "__main__":
    main()
