"""Control-plane cost: CPU time of a decode step that is not spent in the model.

    python benchmarks/control_plane.py --json docs/results/control_plane.json
    python benchmarks/control_plane.py --vllm-python ENVIRONMENT/bin/python

The fixed-cost executor answers at once: a decode step is scheduling, paging, bookkeeping, outputs
and the executor's own token hashing. Prompts differ, every request decodes, and steps are timed one
by one after all prefills, in CPU time of the thread, since machines are shared. The median over
steps is reported, with its ratio between context lengths and numbers of requests. With the
interpreter of an environment that has vLLM, its scheduler does the same work in the same run, for
the shorter contexts (benchmarks/beside/vllm_scheduler.py: schedule and update_from_output, which
make no outputs for users).
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # started as a file or as a module

from benchmarks.beside.needs import absent
from interlock.core.assemble import assemble
from interlock.core.request import Request, SamplingParams

BUDGET_TOKENS = 8192
PEER = Path(__file__).with_name("beside") / "vllm_scheduler.py"


def decode_step_us(requests: int, context_tokens: int, steps: int, extra: list[str]) -> float:
    """Median CPU microseconds of a decode step with this many running requests."""
    output = steps + 48 + requests * context_tokens // BUDGET_TOKENS  # the first decode meanwhile
    pages = requests * ((context_tokens + output) // 16 + 2)
    engine = assemble(
        [
            "executor=fixed", "cache=radix", "scheduler=chunked", f"cache.num_pages={pages}",
            f"scheduler.max_requests={requests}", f"scheduler.budget_tokens={BUDGET_TOKENS}",
            f"max_model_len={context_tokens + output + 16}", *extra,
        ]
    )  # fmt: skip
    vocab = engine.resolution.model.vocab_size
    for index in range(requests):
        prompt = tuple((index * 7919 + i * 31) % vocab for i in range(context_tokens))
        sampling = SamplingParams(max_tokens=output, ignore_eos=True)
        engine.submit(Request(index, prompt, sampling))
    while engine.core.num_running < requests or any(
        live.sequence.length - live.computed > 1 or not live.record.output_token_ids
        for live in engine.core.queues.running.values()
    ):
        engine.step()
    times = []
    for _ in range(steps):
        start = time.thread_time()
        engine.step()
        times.append(time.thread_time() - start)
    return statistics.median(times) * 1e6


def vllm_step_us(python: Path, requests: int, context_tokens: int, steps: int) -> dict[str, Any]:
    """The same of vLLM's scheduler, and its version. Ends with what is missing."""
    # -P: what lies beside PEER is not for vLLM
    command = [str(python), "-P", str(PEER), *map(str, (requests, context_tokens, steps))]
    ran = subprocess.run(command, capture_output=True, text=True, cwd="/", check=False)
    if ran.returncode:
        last = (ran.stderr.strip() or "no message").splitlines()[-1]
        absent(f"--vllm-python {python}: {PEER.name} failed: {last}")
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Measure the grid and print one line per cell."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    parser.add_argument("--steps", type=int, default=200, help="decode steps per cell")
    parser.add_argument("--repeats", type=int, default=3, help="cells are repeated, medians kept")
    parser.add_argument("--requests", type=int, nargs=2, default=[64, 256], metavar="N")
    parser.add_argument("--contexts", type=int, nargs=2, default=[2_000, 20_000], metavar="TOKENS")
    parser.add_argument("--vllm-python", type=Path, help="a Python with vLLM: its scheduler too")
    parser.add_argument("overrides", nargs="*", help="further overrides, e.g. cache=block_hash")
    args = parser.parse_args()
    if args.vllm_python and not args.vllm_python.is_file():
        absent(f"--vllm-python {args.vllm_python}: no such file; give a Python that has vLLM")
    cells, versions = [], {"interlock": version("interlock"), "numpy": version("numpy")}
    for context, requests in product(args.contexts, args.requests):
        step_us = statistics.median(
            decode_step_us(requests, context, args.steps, args.overrides)
            for _ in range(args.repeats)
        )
        cell = {
            "requests": requests,
            "context_tokens": context,
            "step_us": round(step_us, 1),
            "us_per_request_step": round(step_us / requests, 3),
        }
        if args.vllm_python and context == args.contexts[0]:
            runs = [
                vllm_step_us(args.vllm_python, requests, context, args.steps)
                for _ in range(args.repeats)
            ]
            cell["vllm_step_us"] = round(statistics.median(run["step_us"] for run in runs), 1)
            versions["vllm"] = runs[0]["vllm"]
        cells.append(cell)
        print(cell, flush=True)
    by = {(c["requests"], c["context_tokens"]): c["step_us"] for c in cells}
    (few, many), (short, long) = args.requests, args.contexts
    report = {
        "cells": cells,
        f"context_x{long / short:g}_ratio": round(by[many, long] / by[many, short], 2),
        f"requests_x{many / few:g}_ratio": round(by[many, short] / by[few, short], 2),
        "overrides": args.overrides,
        "python": platform.python_version(),
        **versions,
    }
    print(json.dumps({k: v for k, v in report.items() if k != "cells"}))
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
