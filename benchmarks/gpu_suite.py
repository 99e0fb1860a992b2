"""One GPU: every Triton kernel against its formula, its times, and engines; under 8 minutes.

    python benchmarks/gpu_suite.py --json docs/results/gpu_suite.json

Sections, each with a share of the time budget; what found no time is listed as not run:
  rates            copy bandwidth and bf16 matrix rate, which later lines are shares of
  gqa, mla         attention=gqa and mla with kernel=triton: prefill, decode, chunks, draft trees
                   and mixed steps over scattered pages, contexts and rows of 1, 15, 16, 17, 255,
                   256, 257 tokens, all else NaN; bf16, fp16, fp32; windows, caps, sinks; fp8
                   planes; outputs beside the formula in fp64, writes beside what was given
  grouped          expert products in masked and contiguous layout
  ... times        the same beside torch's own kernel, torch SDPA on contiguous tensors, and
                   FlashInfer and FlashAttention where they are installed
  engine           executor=torch and cuda_graph: equal tokens in fp32, decode tokens a second in
                   bf16 on a 1.1B Llama of random weights, beside vLLM where it is installed
  batch invariant  numerics=batch_invariant on the GPU;  ranks: NCCL where there are two GPUs
Ends with 1 if a line is wrong, and with 2 where there is no CUDA device: then --interpret runs the
checks at tiny sizes in Triton's interpreter on the CPU, and no times.
"""

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # started as a file or as a module

from benchmarks.beside.needs import absent

PACKAGES = ("torch", "triton", "interlock", "flashinfer-python", "flash-attn", "vllm")


def arguments() -> argparse.Namespace:
    """From the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--budget", type=float, default=450.0, metavar="S", help="seconds in all")
    parser.add_argument("--interpret", "--dry-run", action="store_true",
                        help="tiny checks in Triton's interpreter on the CPU")  # fmt: skip
    parser.add_argument("--only", nargs="+", metavar="SECTION", help="these sections, and rates")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write every number to this file")
    return parser.parse_args()


def sections(interpreted: bool, folder: Path) -> dict[str, tuple[float, Callable[..., Any]]]:
    """Name -> (share of the budget, section). Imports triton, which is told before how to run."""
    import torch

    from benchmarks.gpu import checks, speed
    from benchmarks.gpu.engines import Engines

    place = checks.Place(torch.device("cpu" if interpreted else "cuda"), interpreted)
    found, engines = speed.Rates(), Engines(place, folder)
    known: dict[str, tuple[float, Callable[..., Any]]] = {
        "rates": (0.02, speed.rates(place, found)),
        "gqa": (0.20, checks.attention(place, "gqa")),
        "mla": (0.16, checks.attention(place, "mla")),
        "grouped": (0.06, checks.grouped(place)),
        "gqa times": (0.10, speed.attention(place, "gqa", found)),
        "mla times": (0.10, speed.attention(place, "mla", found)),
        "grouped times": (0.04, speed.grouped(place, found)),
        "engine": (0.22, engines.executors),
        "batch invariant": (0.07, engines.invariant),
        "ranks": (0.03, engines.ranks),
    }
    timed = ("rates", "gqa times", "mla times", "grouped times")
    return {n: s for n, s in known.items() if not (interpreted and n in timed)}


def chosen_of(names: Sequence[str] | None, known: Sequence[str]) -> list[str]:
    """Those asked for, rates first; exits where one is unknown."""
    unknown = sorted(set(names or ()) - set(known))
    if unknown:
        sys.exit(f"--only {' '.join(unknown)}: no such section; known: {', '.join(known)}")
    return [name for name in known if not names or name in names or name == "rates"]


def lines(args: argparse.Namespace, folder: Path) -> Iterator[Any]:
    """All lines of the chosen sections; time that one leaves over goes to those after it."""
    from benchmarks.gpu.report import lines_of

    known = sections(args.interpret, folder)
    chosen = chosen_of(args.only, list(known))
    end_s = time.perf_counter() + args.budget
    for name in chosen:
        left_s = max(0.0, end_s - time.perf_counter())
        part = known[name][0] / sum(known[n][0] for n in chosen[chosen.index(name) :])
        print(f"{name}: {left_s * part:.0f} s of {left_s:.0f}", file=sys.stderr, flush=True)
        yield from lines_of(name, known[name][1], left_s * part)


def facts(interpreted: bool) -> dict[str, Any]:
    """The device and the versions of what could run."""
    import torch

    found: dict[str, Any] = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    found["device"] = "Triton's interpreter" if interpreted else torch.cuda.get_device_name()
    return found


def show(found: Sequence[Any], about: dict[str, Any]) -> None:
    """The table."""
    from rich.console import Console
    from rich.table import Table

    table = Table("", "section", "case", "result")
    for line in found:
        mark = {True: "ok", False: "WRONG", None: "not run"}[line.ok]
        table.add_row(mark, line.section, line.case, line.result)
    console = Console(width=160 if not sys.stdout.isatty() else None)
    console.print(table)
    console.print(about)


def main() -> None:
    """Run the sections, print the table, write the file; the exit status says what came out."""
    args = arguments()
    if args.interpret:
        os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported
    import torch

    if not args.interpret and not torch.cuda.is_available():
        absent(
            "torch sees no CUDA device here, so nothing was run; run it on a machine with one, or "
            "check the kernels in Triton's interpreter: python benchmarks/gpu_suite.py --interpret"
        )
    start_s = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        found = list(lines(args, Path(folder)))
    about = facts(args.interpret) | {"seconds": round(time.perf_counter() - start_s)}
    show(found, about)
    if args.json:
        report = about | {"command": "python benchmarks/gpu_suite.py"}
        report["lines"] = [line.as_json() for line in found]
        args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    sys.exit(any(line.ok is False for line in found))


if __name__ == "__main__":
    main()
