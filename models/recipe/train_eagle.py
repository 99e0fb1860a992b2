"""Train an EAGLE head for one of the recipe's language models on a CPU.

    python -m interlock.models.recipe.train_eagle --target models/tiny-gqa
    python -m interlock.models.recipe.train_eagle --target my-model --text ~/my-code

The head is one decoder layer that guesses the target's next features from its last ones, so that
a chain of guessed tokens can be verified in one pass of the target. The target stays frozen. Half
of the training windows are the target's own continuations of training prompts, because those are
what the head has to guess when it is used; the rest is the text itself. Each window is drafted
several steps deep on the head's own guesses, with the target's law and features as the goal.

Writes config.json, model.safetensors (bf16) and training.json with the CPU time and the measured
acceptance on held-out prompts: tokens emitted per target pass, the target's own token included.
"""

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.progress import track
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F

from interlock.models.recipe.acceptance import measure_acceptance
from interlock.models.recipe.checkpoint import load_decoder
from interlock.models.recipe.corpus import read_corpus
from interlock.models.recipe.decode import continue_prompts
from interlock.models.recipe.eagle import EagleHead, load_head, save_head
from interlock.models.recipe.network import Decoder, Shape
from interlock.models.recipe.optim import make_optimizers, set_learning_rate
from interlock.models.recipe.tokenizer import encode_documents

PROMPT_TOKENS, OWN_TOKENS, OWN_BATCH = 64, 128, 128
TEXT_TOKENS, LONG_TOKENS = 256, 1024
TOKENS_PER_STEP = 2048
SAMPLED_SHARE = 0.4
STEP_DECAY = 0.9
FEATURE_WEIGHT = 0.5
LR_SCALE = 2.0


@dataclass(frozen=True)
class Windows:
    """Training data: the token stream of the text and the target's own continuations."""

    text_ids: Tensor
    own_ids: Tensor

    def draw(self, step: int, generator: torch.Generator) -> Tensor:
        """[B, T] ids of about TOKENS_PER_STEP tokens: own, text, own, long text, own, ..."""
        if step % 2 == 0 and len(self.own_ids):
            count = TOKENS_PER_STEP // self.own_ids.shape[1]
            return self.own_ids[torch.randint(len(self.own_ids), (count,), generator=generator)]
        length = LONG_TOKENS if step % 4 == 3 else TEXT_TOKENS
        return draw_text(self.text_ids, length, TOKENS_PER_STEP // length, generator)


def main() -> None:
    """Parse arguments, let the target write, train, measure, save."""
    args = _arguments()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    start = time.process_time()
    target = load_decoder(args.target).requires_grad_(False)
    tokenizer = Tokenizer.from_file(str(args.target / "tokenizer.json"))
    corpus = read_corpus(args.text, args.pattern)
    text_ids = encode_documents(tokenizer, corpus.train)
    own_ids = write_continuations(target, text_ids, args.own_windows, args.seed)
    print(f"{len(own_ids)} continuations after {time.process_time() - start:.0f} CPU s", flush=True)

    head = EagleHead(
        Shape(
            attention="gqa",
            vocab_size=target.shape.vocab_size,
            hidden=target.shape.hidden,
            intermediate=args.intermediate,
            norm_eps=target.shape.norm_eps,
        )
    )
    head.fc.token_scale = 1.0 / target.embed_tokens.weight.std().item()
    train(head, target, Windows(text_ids, own_ids), args.steps, args.depth, args.seed)
    cpu_s = time.process_time() - start
    out = args.out or args.target / "eagle"
    save_head(head, out)
    held_out_ids = encode_documents(tokenizer, [(args.target / "held_out.txt").read_text()])
    acceptance = measure_acceptance(target, load_head(out), held_out_ids)
    report = {
        "acceptance": acceptance.report(),
        "cpu_seconds": round(cpu_s),
        "steps": args.steps,
        "depth": args.depth,
        "tokens": args.steps * TOKENS_PER_STEP,
        "own_windows": len(own_ids),
        "parameters": sum(p.numel() for p in head.parameters()),
        "seed": args.seed,
        "torch": torch.__version__,
    }
    (out / "training.json").write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report))


class _Formatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Keep the module's text as it is and show defaults."""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Formatter)
    parser.add_argument(
        "--target", type=Path, required=True, help="folder of a model that train_lm wrote"
    )
    parser.add_argument("--out", type=Path, help="folder of the head (default: TARGET/eagle)")
    parser.add_argument("--text", type=Path, help="folder of text files (default: Python's stdlib)")
    parser.add_argument("--pattern", default="*.py", help="which files of the folder")
    parser.add_argument("--steps", type=int, default=700, help=f"of {TOKENS_PER_STEP} tokens")
    parser.add_argument("--depth", type=int, default=4, help="drafting steps to unroll")
    parser.add_argument(
        "--own-windows", type=int, default=1536, help="continuations that the target writes first"
    )
    parser.add_argument("--intermediate", type=int, default=512, help="size of the head's MLP")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def draw_text(ids: Tensor, length: int, count: int, generator: torch.Generator) -> Tensor:
    """[count, length]: random windows of a token stream."""
    starts = torch.randint(len(ids) - length, (count,), generator=generator)
    return torch.stack([ids[s : s + length] for s in starts.tolist()])


def write_continuations(target: Decoder, text_ids: Tensor, count: int, seed: int) -> Tensor:
    """[count, prompt + continuation]: most are greedy, a share is sampled at temperature 0.8."""
    generator = torch.Generator().manual_seed(seed)
    parts = [torch.empty(0, PROMPT_TOKENS + OWN_TOKENS, dtype=torch.long)]
    for first in track(range(0, count, OWN_BATCH), description="target writes"):
        prompts = draw_text(text_ids, PROMPT_TOKENS, min(OWN_BATCH, count - first), generator)
        sampled = torch.rand(len(prompts), generator=generator) < SAMPLED_SHARE
        with torch.autocast("cpu", torch.bfloat16):
            parts.append(continue_prompts(target, prompts, OWN_TOKENS, 0.8 * sampled, first))
    return torch.cat(parts)


def train(
    head: EagleHead, target: Decoder, windows: Windows, steps: int, depth: int, seed: int
) -> None:
    """Minimise `unrolled_loss` over random windows with a cosine schedule."""
    generator = torch.Generator().manual_seed(seed)
    optimizers = make_optimizers(head, LR_SCALE)
    for step in track(range(steps), description="training"):
        loss, agreement = unrolled_loss(head, target, windows.draw(step, generator), depth)
        set_learning_rate(optimizers, step, steps)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if step % 25 < 2:
            rates = " ".join(f"{rate:.2f}" for rate in agreement)
            cpu_s = time.process_time()
            print(f"step {step} loss {loss.item():.3f} agree {rates} cpu {cpu_s:.0f} s", flush=True)


def unrolled_loss(
    head: EagleHead, target: Decoder, ids_BT: Tensor, depth: int
) -> tuple[Tensor, list[float]]:
    """The loss of all drafting steps, and per step how often head and target argmax agree.

    Step k adds STEP_DECAY**k times the cross-entropy to the target's law of the same token, and
    FEATURE_WEIGHT times the smooth L1 distance of the estimated feature (arXiv 2401.15077, eq. 5).
    """
    with torch.autocast("cpu", torch.bfloat16):
        with torch.no_grad():
            features = target.features(ids_BT)
            goal = target.logits(features)[:, 1:].float()
            law, best = goal.softmax(-1), goal.argmax(-1)
        estimates = head.unroll(target.embed_tokens(ids_BT[:, 1:]), features[:, :-1], depth)
        guesses = [target.logits(estimate) for estimate in estimates]
    total, agreement = torch.zeros(()), []
    for k, (estimate, guess) in enumerate(zip(estimates, guesses, strict=True)):
        rows = guess[:, k:].float()
        entropy = F.cross_entropy(rows.flatten(0, 1), law[:, k:].flatten(0, 1))
        distance = F.smooth_l1_loss(estimate[:, k:].float(), features[:, 1 + k :])
        total = total + STEP_DECAY**k * (entropy + FEATURE_WEIGHT * distance)
        agreement.append((rows.argmax(-1) == best[:, k:]).float().mean().item())
    return total, agreement


if __name__ == "__main__":
    main()
