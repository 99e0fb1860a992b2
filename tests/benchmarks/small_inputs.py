"""What benchmarks read, made small: traces, texts, tasks, a model in a GGUF file."""

import gzip
import json
from pathlib import Path

from tests.benchmarks.scripts import ROOT


def write_data(folder: Path) -> None:
    """What INTERLOCK_DATA names: a trace of 30 requests, and a task."""
    lines = [
        {
            "timestamp": 100 * number,
            "input_length": 900 + number,
            "output_length": 2,
            "hash_ids": [number % 3, 10 + number % 7 if number % 2 else 100 + number],
        }
        for number in range(30)
    ]
    task = {"prompt": "def one():\n", "canonical_solution": "    return 1\n"}
    _write(folder / "traces" / "mooncake_conversation.jsonl.gz", lines)
    _write(folder / "prompts" / "humaneval.jsonl.gz", [task])


def _write(path: Path, lines: list[dict]) -> None:
    path.parent.mkdir(parents=True)
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def write_text(folder: Path) -> None:
    """Enough to train on: 64 tokens are held out of it."""
    folder.mkdir()
    (folder / "licence.py").write_text((ROOT / "LICENSE").read_text(encoding="utf-8")[:4500])


def write_model(path: Path) -> None:
    """A random Llama whose tokens are bytes, and a chat template."""
    from tests.models.bpe_oracle import byte_symbols
    from tests.models.gguf_files import write_gguf
    from tests.models.oracle import BASE, random_model_of

    tokens = [*sorted(byte_symbols()), "th", "<|stop|>"]
    model = random_model_of("Llama", {**BASE, "vocab_size": len(tokens)})
    tokenizer = {
        "ggml.model": "gpt2",
        "ggml.pre": "gpt-2",
        "ggml.tokens": tokens,
        "ggml.merges": ["t h"],
        "ggml.token_type": [1] * (len(tokens) - 1) + [3],
        "ggml.eos_token_id": len(tokens) - 1,
        "ggml.bos_token_id": len(tokens) - 1,
        "ggml.add_bos_token": False,
        "chat_template": "{% for one in messages %}{{ one.content }}{% endfor %}",
    }
    write_gguf(path, model, tokenizer=tokenizer)
