"""CPU kernels: attention beside torch SDPA and the copy bandwidth, products beside plain products.

    python benchmarks/kernels.py --json docs/results/kernels.json

Attention is `attention=gqa` and `mla` as an engine builds them (kernel=auto and, with --also,
others) over scattered pages of 16: decode, prefill, a chunk after a context, verification of 5
tokens. SDPA gets the same sizes in contiguous tensors, a latent expanded to its heads; it writes
nothing and gathers nothing.
Products are those that a layer builds for its weights (weights=auto, int8, int4) beside
`torch.nn.functional.linear` of plain weights.
All alternate in one run; ratios are medians of pairs [95 % bootstrap interval], above 1: ours is
faster. "of copy" is the share of the bandwidth that copying reaches at which ours reads the cached
rows or the plain weights. Medians of 7 (--repeats), 2 threads, bf16; about 2 minutes.
"""

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # started as a file or as a module

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.beside.command import cpu_name
from benchmarks.beside.paired import Progress, interleaved, paired_ratio
from benchmarks.gpu.checks import Place, backend_of
from benchmarks.gpu.scene import Scene
from benchmarks.gpu.speed import Step, sdpa_of, work
from interlock.core.model import AttentionSpec
from interlock.plugins.models.products import make_product
from interlock.plugins.models.quantised import QUANTISED

PAGE = 16
CPU = Place(torch.device("cpu"), interpreted=False)
SHAPES = {
    "gqa 9/3 of 64": AttentionSpec("heads", 9, 3, 64, 64, 0.125),
    "gqa 32/4 of 64": AttentionSpec("heads", 32, 4, 64, 64, 0.125),
    "mla 16 of 512 + 64": AttentionSpec("latent", 16, 1, 192, 128, 192**-0.5, None, 512, 128, 64),
}
STEPS = (
    Step("decode, batch 1 after 1,024", 1, 1024, 1),
    Step("decode, batch 8 after 512", 8, 512, 1),
    Step("decode, batch 32 after 256", 32, 256, 1),
    Step("prefill of 512", 1, 0, 512),
    Step("chunk of 256 after 1,024", 1, 1024, 256),
    Step("verify 5, batch 8 after 512", 8, 512, 5),
)
MATRICES = {"576 to 3,072": (576, 3072), "2,048 to 11,264": (2048, 11_264)}
TOKENS = (1, 8, 32, 1024)
LEAST_S = 0.01
"""A measurement calls its function as often as this takes."""


def timed(run: Callable[[], Any]) -> Callable[[], float]:
    """A measurement: microseconds of one call, of enough calls in a row."""
    run()
    start_s = time.perf_counter()
    run()
    calls = max(1, min(500, round(LEAST_S / (time.perf_counter() - start_s))))

    def measure() -> float:
        begin_s = time.perf_counter()
        for _ in range(calls):
            run()
        return 1e6 * (time.perf_counter() - begin_s) / calls

    return measure


def copy_rate(repeats: int) -> float:
    """Bytes read a second by a copy that is larger than any cache."""
    source = torch.ones(1 << 28, dtype=torch.uint8)
    target = torch.empty_like(source)
    measure = timed(lambda: target.copy_(source))
    return source.nbytes / (1e-6 * statistics.median(measure() for _ in range(repeats)))


def attention_call(
    spec: AttentionSpec, step: Step, kernel: str, cache: str, dtype: torch.dtype
) -> Callable[[], Any]:
    """One layer of a step whose contexts are there."""
    backend = backend_of(CPU, spec, dtype, cache, kernel, PAGE)
    scene = Scene(backend, spec, step.rows, PAGE, dtype, CPU.device)
    for name, plane in scene.planes.items():  # as if computed; values do not change the time
        plane.copy_(torch.ones(plane.shape) if "scale" in name else torch.randn(plane.shape))
    inputs, plan = scene.inputs(step.batch * step.new), scene.plan(scene.rows)
    return lambda: scene.attend(inputs, plan)


def attention_rows(args: argparse.Namespace, progress: Progress) -> Iterator[dict[str, Any]]:
    """Each shape and step: ours by kernel, fp8 planes, and SDPA."""
    dtype = getattr(torch, args.dtype)
    for shape, spec in SHAPES.items():
        for step in STEPS:
            name = f"{shape}: {step.name}"
            if args.match not in name:
                continue
            runs = {"auto": timed(attention_call(spec, step, "auto", "auto", dtype))}
            for kernel in args.also:
                runs[kernel] = timed(attention_call(spec, step, kernel, "auto", dtype))
            runs["auto, fp8 cache"] = timed(attention_call(spec, step, "auto", "fp8", dtype))
            runs["SDPA"] = timed(sdpa_of(CPU, spec, step, dtype))
            samples = interleaved(runs, args.repeats, progress, name)
            read_bytes, _ = work(spec, step, dtype.itemsize)
            yield row_of("attention", name, samples, "auto", "SDPA", read_bytes)


def products_of(weight_FE: torch.Tensor) -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    """Each way in which a layer can multiply by these weights."""
    found: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {}
    for name, make in {"auto": make_product, **QUANTISED}.items():
        found[name] = make(weight_FE.clone())
    return found


def plain_products(
    weight_FE: torch.Tensor, x_TE: torch.Tensor
) -> dict[str, Callable[[], torch.Tensor]]:
    """Torch's own of plain weights; for one token also that by a vector."""
    found = {"linear": lambda: torch.nn.functional.linear(x_TE, weight_FE)}
    if len(x_TE) == 1:
        found["mv"] = lambda: torch.mv(weight_FE, x_TE[0])
    return found


def product_rows(args: argparse.Namespace, progress: Progress) -> Iterator[dict[str, Any]]:
    """Each matrix and number of tokens: every weight format beside torch's own product."""
    dtype = getattr(torch, args.dtype)
    for matrix, (inputs, outputs) in MATRICES.items():
        weight_FE = (torch.randn(outputs, inputs) * inputs**-0.5).to(dtype)
        made = products_of(weight_FE)
        for tokens in TOKENS:
            name = f"{matrix}: {tokens:,} tokens"
            if args.match not in name:
                continue
            x_TE = torch.randn(tokens, inputs).to(dtype)
            runs = {
                name: timed(lambda product=product, x=x_TE: product(x))
                for name, product in made.items()
            }
            plain = plain_products(weight_FE, x_TE)
            runs |= {kind: timed(run) for kind, run in plain.items()}
            samples = interleaved(runs, args.repeats, progress, name)
            yield row_of("product", name, samples, "auto", "linear", float(weight_FE.nbytes))


def row_of(
    kind: str, case: str, samples: dict[str, list[float]], ours: str, peer: str, read_bytes: float
) -> dict[str, Any]:
    """A row of the report."""
    medians = {name: statistics.median(taken) for name, taken in samples.items()}
    return {
        "kind": kind, "case": case, "ours": ours, "peer": peer,
        "us": {name: round(value, 1) for name, value in medians.items()},
        "times_as_fast_as_peer": {
            name: {k: round(v, 3) for k, v in vars(paired_ratio(samples[peer], taken)).items()}
            for name, taken in samples.items()
            if name != peer
        },
        "read_bytes_per_s": read_bytes / (1e-6 * medians[ours]),
        "samples_us": {name: [round(v, 1) for v in taken] for name, taken in samples.items()},
    }  # fmt: skip


def show(rows: list[dict[str, Any]], copy_bytes_per_s: float) -> None:
    """One table."""
    table = Table("", "case", "ours us", "peer us", "times as fast", "of copy", "others")
    for row in rows:
        us, ratios = row["us"], row["times_as_fast_as_peer"]
        ratio = ratios[row["ours"]]
        others = ", ".join(f"{name} {us[name]:,.0f}" for name in us)
        table.add_row(
            row["kind"], row["case"], f"{us[row['ours']]:,.0f}",
            f"{us[row['peer']]:,.0f} ({row['peer']})",
            f"{ratio['median']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]",
            f"{row['read_bytes_per_s'] / copy_bytes_per_s:.0%}", others,
        )  # fmt: skip
    Console(width=170 if not sys.stdout.isatty() else None).print(table)


def arguments() -> argparse.Namespace:
    """From the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--json", type=Path, metavar="PATH", help="write every sample to this file")
    add("--repeats", type=int, default=7, help="measurements of each (default 7)")
    add("--threads", type=int, default=2, help="of torch (default 2)")
    add("--dtype", default="bfloat16", choices=("bfloat16", "float32"), help="default bfloat16")
    add("--also", nargs="*", default=[], metavar="KERNEL", help="further attention.kernel choices")
    add("--match", default="", metavar="TEXT", help="only cases whose name has this text")
    add("--only", choices=("attention", "products"), help="one half")
    return parser.parse_args()


def main() -> None:
    """Measure, print, write."""
    args = arguments()
    torch.set_num_threads(args.threads)
    torch.set_grad_enabled(False)
    torch.manual_seed(0)
    progress = Progress()
    copy_bytes_per_s = copy_rate(args.repeats)
    rows = []
    if args.only != "products":
        rows += list(attention_rows(args, progress))
    if args.only != "attention":
        rows += list(product_rows(args, progress))
    progress.clear()
    show(rows, copy_bytes_per_s)
    report = {
        "command": "python benchmarks/kernels.py",
        "copy_bytes_read_per_s": round(copy_bytes_per_s),
        "threads": args.threads, "dtype": args.dtype, "repeats": args.repeats, "cpu": cpu_name(),
        "python": platform.python_version(), "torch": torch.__version__,
        "interlock": version("interlock"), "rows": rows,
    }  # fmt: skip
    print({key: value for key, value in report.items() if key != "rows"})
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
