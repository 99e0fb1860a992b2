"""Train a drafter head for a language model on a CPU.

    python -m interlock.models.recipe.train_drafter eagle3 --target models/tiny-gqa
    python -m interlock.models.recipe.train_drafter medusa --target my-model --text ~/my-code
    python -m interlock.models.recipe.train_drafter eagle3 --target DIR --prompts my.jsonl --chat

The target is any model that Interlock serves; it stays frozen. First it writes continuations of the
text, or answers to the prompts, because those are what the head has to guess when it is used, and
runs over them once: what the head learns from is kept in a store (--store keeps it for the next
head). Then the head trains from the store alone.

Writes config.json, model.safetensors (bf16) and training.json with the CPU time and, on held-out
prompts, how often each draft of a chain is the target's next token, and the tokens emitted per
target pass.
"""

import argparse
import inspect
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress

from interlock.core.errors import CheckpointError, ConfigError
from interlock.models.recipe.drafters import KINDS, head_class
from interlock.models.recipe.drafters.facts import Drafter
from interlock.models.recipe.drafters.measure import measure
from interlock.models.recipe.drafters.store import Store, open_store
from interlock.models.recipe.drafters.target import Target
from interlock.models.recipe.drafters.texts import (
    Plan,
    PromptPlan,
    TextPlan,
    read_prompts,
    read_text,
)
from interlock.models.recipe.optim import make_optimizers, set_learning_rate

BATCH_TOKENS = 1024
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
SCHEDULE = 100_000
"""Parts into which the learning rate's schedule is cut."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse arguments, let the target write, train, measure, save."""
    args = _arguments(arguments)
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    try:
        target = Target(args.target, DTYPES[args.dtype])
        plan = _plan(args, target)
        with tempfile.TemporaryDirectory() as scratch:
            _run(args, target, plan, args.store or Path(scratch))
    except (CheckpointError, ConfigError, ValueError, OSError) as error:
        sys.exit(f"train_drafter: {error}")


def _run(args: argparse.Namespace, target: Target, plan: Plan, root: Path) -> None:
    store = open_store(root, target, plan)
    head_type = head_class(args.kind)
    facts = target.facts(store.counts(target.description.vocab_size))
    head = head_type(facts, **{name: getattr(args, name) for name in _options(head_type)})
    store.require(target, head.taps)
    start = time.process_time()
    curve = train(head, store, _progress(args, head, start), args.lr, args.seed)
    out = args.out or target.directory / args.kind
    head.round_weights()  # what is measured is what is written
    head.save(out)
    report = {
        **measure(head, store).report(),
        "cpu_seconds": round(time.process_time() - start),
        "target_cpu_seconds": round(store.manifest["target_cpu_seconds"]),
        "steps": curve[-1]["step"],
        "tokens": curve[-1]["tokens"],
        "store_tokens": store.tokens,
        "parameters": sum(p.numel() for p in head.parameters() if p.requires_grad),
        "options": {name: getattr(args, name) for name in _options(head_type)},
        "lr": args.lr,
        "seed": args.seed,
        "torch": torch.__version__,
        "loss_curve": curve[:: max(1, len(curve) // 10)],
    }
    (out / "training.json").write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report))


def train(
    head: Drafter,
    store: Store,
    progress: Callable[[int], float],
    lr: float = 1.0,
    seed: int = 0,
) -> list[dict[str, float]]:
    """Minimise the head's loss until `progress` of the steps done is 1; points of the curve.

    A point is the mean of the figures since the one before.
    """
    generator = torch.Generator().manual_seed(seed)
    optimizers = make_optimizers(head, head.lr_scale * lr, head.tables)
    curve: list[dict[str, float]] = []
    since: list[dict[str, float]] = []
    step = tokens = 0
    with Progress(disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("training", total=1.0)
        while (done := progress(step)) < 1:
            window = store.draw(BATCH_TOKENS, generator, head.taps)
            with torch.autocast("cpu", torch.bfloat16):
                loss, figures = head.loss(window)
            set_learning_rate(optimizers, int(done * SCHEDULE), SCHEDULE)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            step, tokens = step + 1, tokens + window.ids_BT.numel()
            since.append({"loss": loss.item(), **figures})
            if step % 25 == 0 or progress(step) >= 1:
                means = {n: sum(f.get(n, 0.0) for f in since) / len(since) for n in since[-1]}
                rounded = {name: round(value, 4) for name, value in means.items()}
                curve.append({"step": step, "tokens": tokens, **rounded})
                print(f"{json.dumps(curve[-1])} cpu {time.process_time():.0f} s", flush=True)
                since = []
            bar.update(task, completed=done)
    return curve


def _progress(args: argparse.Namespace, head: Drafter, start: float) -> Callable[[int], float]:
    """The share of the training that is done after so many steps: by steps or by CPU time."""
    if args.minutes:
        return lambda step: (time.process_time() - start) / (60 * args.minutes)
    steps = args.steps or head.default_steps
    return lambda step: step / steps


def _plan(args: argparse.Namespace, target: Target) -> Plan:
    if target.codec is None:
        raise ValueError(f"{args.target} has no tokenizer.json: its text cannot be encoded")
    if args.prompts is None:
        own_tokens, windows = args.own_tokens or 128, args.own_windows or 1536
        corpus = read_text(target, args.text, args.pattern)
        return TextPlan(corpus, windows, args.prompt_tokens, own_tokens, args.seed)
    prompts = read_prompts(args.prompts)
    windows = args.own_windows or len(prompts)
    return PromptPlan(prompts, args.chat, windows, args.own_tokens or 256, args.seed)


def _options(head: type[Drafter]) -> dict[str, Any]:
    """Name -> default of the keywords that a head's constructor takes."""
    parameters = inspect.signature(head.__init__).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty}


class _Formatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Keep the module's text as it is and show defaults."""


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Formatter)
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    for kind in KINDS:
        head = head_class(kind)
        text = inspect.getdoc(head.__init__) or ""
        one = kinds.add_parser(
            kind, formatter_class=_Formatter, help=(head.__doc__ or "").splitlines()[0],
            description=text,
        )  # fmt: skip
        _add_shared(one, head.default_steps)
        for name, default in _options(head).items():
            flag = f"--{name.replace('_', '-')}"
            switch = argparse.BooleanOptionalAction if isinstance(default, bool) else None
            how = {"action": switch} if switch else {"type": type(default)}
            one.add_argument(flag, **how, default=default, help="see above")
    return parser.parse_args(arguments)


def _add_shared(parser: argparse.ArgumentParser, steps: int) -> None:
    add = parser.add_argument
    add("--target", required=True, help="folder or name of a model that Interlock serves")
    add("--out", type=Path, help="folder of the head (default: TARGET/KIND)")
    add("--store", type=Path, help="keep what the target computed here (default: nowhere)")
    data = parser.add_mutually_exclusive_group()
    data.add_argument("--text", type=Path, help="folder of text files (default: Python's stdlib)")
    data.add_argument("--prompts", type=Path, help="file: JSON lines with `prompt`, or plain lines")
    add("--pattern", default="*.py", help="which files of the text's folder")
    add("--chat", action="store_true", help="put prompts through the model's chat template")
    add("--own-windows", type=int, help="texts the target writes (default: 1536, or each prompt's)")
    add("--own-tokens", type=int, help="of each, at most (default: 128, or 256 to a prompt)")
    add("--prompt-tokens", type=int, default=64, help="of the text before a continuation")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--steps", type=int, help=f"of {BATCH_TOKENS} tokens (default: {steps})")
    length.add_argument("--minutes", type=float, help="CPU minutes to train, instead of steps")
    add("--lr", type=float, default=1.0, help="factor on the head's learning rates")
    add("--dtype", choices=DTYPES, default="float32", help="in which the target runs")
    add("--threads", type=int, default=1)
    add("--seed", type=int, default=0)


if __name__ == "__main__":
    main()
