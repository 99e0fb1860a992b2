"""Train one of the small language models on a CPU.

    python -m interlock.models.recipe.train_lm --attention gqa --out models/tiny-gqa
    python -m interlock.models.recipe.train_lm --attention mla --out my-model --text ~/my-code

Prints the held-out loss in nats per byte and writes it, with the CPU time, to training.json.
"""

import argparse
import json
import time
from pathlib import Path

import torch
from rich.progress import track
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F

from interlock.models.recipe.checkpoint import save_decoder
from interlock.models.recipe.corpus import read_corpus
from interlock.models.recipe.network import MAX_POSITIONS, Decoder, Shape
from interlock.models.recipe.optim import make_optimizers, set_learning_rate
from interlock.models.recipe.tokenizer import encode_documents, save_tokenizer, train_tokenizer

SHORT_TOKENS, LONG_TOKENS = 256, 1024
LONG_SHARE = 0.2
TOKENS_PER_STEP = 2048
EVAL_TOKENS = 512


def main() -> None:
    """Parse arguments, train, evaluate, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Formatter)
    parser.add_argument("--attention", choices=["gqa", "mla"], required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder of the new checkpoint")
    parser.add_argument("--text", type=Path, help="folder of text files (default: Python's stdlib)")
    parser.add_argument("--pattern", default="*.py", help="which files of the folder")
    parser.add_argument("--tokenizer", type=Path, help="tokenizer.json to share (default: train)")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)

    corpus = read_corpus(args.text, args.pattern)
    tokenizer = (
        Tokenizer.from_file(str(args.tokenizer))
        if args.tokenizer
        else train_tokenizer(corpus.train)
    )
    train_ids = encode_documents(tokenizer, corpus.train)
    model = Decoder(Shape(attention=args.attention, vocab_size=tokenizer.get_vocab_size()))
    count = sum(p.numel() for p in model.parameters())
    print(f"{count / 1e6:.2f} M parameters, {len(train_ids) / 1e6:.2f} M training tokens")

    args.out.mkdir(parents=True, exist_ok=True)
    held_out_text = "".join(corpus.held_out)
    (args.out / "held_out.txt").write_text(held_out_text)
    start = time.process_time()
    _train(model, train_ids, args.steps, args.seed)
    cpu_s = time.process_time() - start
    save_decoder(model, args.out)
    save_tokenizer(tokenizer, args.out, MAX_POSITIONS)
    loss = nats_per_byte(model, encode_documents(tokenizer, corpus.held_out), held_out_text)
    report = {
        "held_out_nats_per_byte": round(loss, 4),
        "cpu_seconds": round(cpu_s),
        "steps": args.steps,
        "tokens": args.steps * TOKENS_PER_STEP,
        "parameters": count,
        "seed": args.seed,
        "torch": torch.__version__,
    }
    (args.out / "training.json").write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report))


class _Formatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Keep the module's text as it is and show defaults."""


def _train(model: Decoder, ids: Tensor, steps: int, seed: int) -> None:
    """Random windows of the token stream; the last share of the steps uses long windows."""
    generator = torch.Generator().manual_seed(seed)
    optimizers = make_optimizers(model)
    for step in track(range(steps), description="training"):
        length = LONG_TOKENS if step >= steps * (1 - LONG_SHARE) else SHORT_TOKENS
        starts = torch.randint(
            len(ids) - length - 1, (TOKENS_PER_STEP // length,), generator=generator
        )
        window = torch.stack([ids[s : s + length + 1] for s in starts.tolist()])
        with torch.autocast("cpu", torch.bfloat16):
            logits = model.logits(model.features(window[:, :-1]))
        loss = F.cross_entropy(logits.float().flatten(0, 1), window[:, 1:].flatten())
        set_learning_rate(optimizers, step, steps)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.3f} cpu {time.process_time():.0f} s", flush=True)


@torch.no_grad()
def nats_per_byte(model: Decoder, ids: Tensor, text: str) -> float:
    """Total negative log-likelihood of the documents over the text's UTF-8 bytes.

    Windows of 512 tokens without overlap; the first token of each is conditioned on end-of-text.
    """
    total = 0.0
    for start in range(0, len(ids), EVAL_TOKENS):
        target = ids[start : start + EVAL_TOKENS]
        inputs = torch.cat([ids.new_zeros(1), target[:-1]])
        logits = model.logits(model.features(inputs[None]))[0]
        total += F.cross_entropy(logits.float(), target, reduction="sum").item()
    return total / len(text.encode())


if __name__ == "__main__":
    main()
