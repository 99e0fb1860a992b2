"""What tensor parallelism changes: not the tokens, but weights a rank, speed, how runs can fail.

    python benchmarks/tensor_parallel.py --json docs/results/tensor_parallel.json \
        --page docs/results/tensor_parallel.md

Tokens are compared in fp64 with one process, greedy and sampled requests together, drafts by EAGLE.
Speed is that of the same requests in fp32, one torch thread a rank. Failures: a rank gets a signal
in the midst of a run; seconds until rank 0 raises the error and no process is left.
"""

import argparse
import json
import os
import platform
import signal
import statistics
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from interlock.conf.find_model import describe_models, find_model
from interlock.conf.hydra_edge import compose
from interlock.core.assemble import assemble
from interlock.core.engine import Engine
from interlock.core.errors import RankError
from interlock.core.registry import load_registry
from interlock.core.request import Request, SamplingParams
from interlock.core.resolver import resolve
from interlock.core.testing.parallel_contract import children

PROMPT_TOKENS = 64
SIZES = (1, 2, 4)


def split(model: str, size: int, dtype: str) -> Engine:
    """An engine over `size` ranks."""
    return assemble(
        [
            f"model={model}", f"dtype={dtype}", "threads=1", "spec=eagle",
            "scheduler.max_requests=8", "parallel=tensor", f"parallel.size={size}",
        ]
    )  # fmt: skip


def refused(model: str, size: int) -> list[str]:
    """Why this model cannot be split so."""
    config = compose([f"model={model}", "parallel=tensor", f"parallel.size={size}"])
    registry = load_registry()
    found = resolve(config, registry, describe_models(config, registry)).problems
    return [problem.reason for problem in found]


def submit(engine: Engine, prompts: int, tokens: int) -> None:
    """Pieces of held-out text; every other request is sampled."""
    assert engine.codec is not None
    model = find_model(engine.resolution.model.name, list(load_registry().formats.values()))
    ids = engine.codec.encode((model.directory / "held_out.txt").read_text())
    stride = (len(ids) - PROMPT_TOKENS) // prompts
    for index in range(prompts):
        piece = tuple(ids[index * stride : index * stride + PROMPT_TOKENS])
        sampling = SamplingParams(
            temperature=float(index % 2), max_tokens=tokens, ignore_eos=True, seed=index
        )
        engine.submit(Request(index, piece, sampling))


def serve(model: str, size: int, dtype: str, prompts: int, tokens: int) -> dict[str, Any]:
    """Tokens by request, tokens a second, and what each rank holds."""
    start_s = time.perf_counter()
    engine = split(model, size, dtype)
    started_s = time.perf_counter() - start_s
    submit(engine, prompts, tokens)
    start_s = time.perf_counter()
    records = [output.finished for output in engine.outputs() if output.finished]
    seconds = time.perf_counter() - start_s
    engine.close()
    return {
        "start_s": round(started_s, 1),
        "tokens_per_s": round(sum(len(r.output_token_ids) for r in records) / seconds, 1),
        "ms_per_step": round(1e3 * seconds / engine.core.ledger.steps, 2),
        "weight_bytes": engine.ranks["weight_bytes"],
        "outputs": {record.index: list(record.output_token_ids) for record in records},
    }


def time_to_error(size: int, sent: signal.Signals) -> float:
    """Seconds from the signal to the last rank until the error is raised and all are gone."""
    before = children()
    engine = split("tiny-gqa", size, "float32")
    submit(engine, 8, 10_000)
    for _ in range(5):
        engine.step()
    *_, victim = sorted(children() - before)
    start_s = time.perf_counter()
    os.kill(victim, sent)
    said = ""
    try:
        list(engine.outputs())
    except RankError as error:
        said = str(error)
    engine.close()
    assert f"process {victim}" in said, said
    assert children() == before
    return time.perf_counter() - start_s


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Everything, as plain values."""
    rows = []
    for model in args.models:
        plain: dict[str, dict[str, Any]] = {}
        for size in args.ranks:
            if reasons := refused(model, size):
                rows.append({"model": model, "ranks": size, "refused": reasons})
                continue
            exact = serve(model, size, "float64", args.prompts, args.tokens)
            fast = serve(model, size, "float32", args.prompts, args.tokens)
            plain = plain or {"exact": exact, "fast": fast}
            same = exact["outputs"] == plain["exact"]["outputs"]
            ratio = fast["tokens_per_s"] / plain["fast"]["tokens_per_s"]
            row = {key: fast[key] for key in fast if key != "outputs"}
            rows.append({"model": model, "ranks": size, "fp64_tokens_equal": same} | row)
            rows[-1]["speed_beside_one_rank"] = round(ratio, 3)
    failures = [
        {
            "ranks": size,
            "signal": sent.name,
            "median_s": round(
                statistics.median(time_to_error(size, sent) for _ in range(args.repeats)), 2
            ),
        }
        for size in args.ranks
        if size > 1
        for sent in args.signals
    ]
    return {"rows": rows, "failures": failures}


HEADS = ("model", "ranks", "tokens equal (fp64)", "MiB of weights a rank", "tokens/s", "ms/step")


PAGE = """\
# Tensor parallelism

Made by `python benchmarks/tensor_parallel.py --json docs/results/tensor_parallel.json --page
docs/results/tensor_parallel.md`. Ranks are processes joined by gloo on the loopback of a machine
with {cores} cores, which other work shared. NCCL was not run: there was no GPU.

{heads}
{rows}

Tokens are those of one process, sampled requests and drafts of EAGLE included. Weights are the
target's in fp32: a rank reads its slices, and what every rank has (norms, routers, MLA's way down
to the latent). Key/value heads are copied where there are more ranks than heads.

**The speed says nothing about tensor parallelism on GPUs.** These models are so small that what is
divided costs less than the exchanges: two sums a layer, one for each embedding, one gathering of
logits for the target and for each draft, and plan and verdicts from rank 0, all between processes
that take turns on two cores. A split pays off where a layer takes far longer than a sum, or where a
model does not fit one device.

A rank gets a signal in the midst of a run:

| ranks | signal | seconds until rank 0 raised the error and no process was left (median) |
|---|---|---|
{failures}

A stopped process is waited for during 3 s: somebody may only be looking at it with a debugger.
"""


def cells(row: dict[str, Any]) -> list[str]:
    """One line of the table."""
    if "refused" in row:
        return [row["model"], str(row["ranks"]), f"refused: {row['refused'][0]}", "", "", ""]
    held = ", ".join(f"{size / 2**20:.2f}" for size in row["weight_bytes"])
    speed = f"{row['tokens_per_s']} ({row['speed_beside_one_rank']:.2f}x)"
    equal = "yes" if row["fp64_tokens_equal"] else "NO"
    return [row["model"], str(row["ranks"]), equal, held, speed, str(row["ms_per_step"])]


def page(report: dict[str, Any]) -> str:
    """The results in Markdown."""
    table = [f"| {' | '.join(cells(row))} |" for row in report["rows"]]
    failures = [f"| {f['ranks']} | {f['signal']} | {f['median_s']} |" for f in report["failures"]]
    return PAGE.format(
        cores=report["cores"],
        heads=f"| {' | '.join(HEADS)} |\n|{'---|' * len(HEADS)}",
        rows="\n".join(table),
        failures="\n".join(failures),
    )


def main() -> None:
    """Measure, print, and write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    parser.add_argument("--page", type=Path, help="write the table to this file, in Markdown")
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=32, help="output tokens per prompt")
    parser.add_argument("--repeats", type=int, default=3, help="failures of each kind")
    parser.add_argument("--signals", nargs="*", type=lambda name: signal.Signals[name],
                        default=[signal.SIGKILL, signal.SIGSTOP], metavar="NAME",
                        help="a rank gets each; default: SIGKILL SIGSTOP")  # fmt: skip
    parser.add_argument("--models", nargs="+", default=["tiny-gqa", "tiny-mla"], metavar="NAME")
    parser.add_argument("--ranks", type=int, nargs="+", default=SIZES, metavar="N",
                        help="beside the first, which is 1")  # fmt: skip
    args = parser.parse_args()
    report = measure(args) | {
        "prompts": args.prompts,
        "tokens": args.tokens,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "interlock": version("interlock"),
    }
    table = Table(*HEADS)
    for row in report["rows"]:
        table.add_row(*cells(row))
    Console().print(table)
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    if args.page:
        args.page.write_text(page(report))
    raise SystemExit(not all(row.get("fp64_tokens_equal", True) for row in report["rows"]))


if __name__ == "__main__":
    main()
