"""What penalties, biases and masks cost a step: host and law, with and without them.

python benchmarks/edited_laws.py --vocab 128000 --rows 32 --context 4000
"""

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from interlock.core.batch import NO_DRAFT, Draft
from interlock.core.logit_edits import LogitEdits
from interlock.core.request import SamplingParams
from interlock.plugins.executor.sampling import SampledRows

KINDS = {
    "nothing": {},
    "penalties": {"repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.5},
    "bias of 100": {"logit_bias": {token: 1.0 for token in range(100)}},
    "banned": {"banned_token_ids": (5, 6)},
    "all of it": {
        "repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.5,
        "logit_bias": {token: 1.0 for token in range(100)}, "banned_token_ids": (5, 6),
    },
}  # fmt: skip


def milliseconds(run: Callable[[], object], times: int = 15) -> float:
    """The median time of a call."""
    taken = []
    for _ in range(times):
        start_s = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start_s)
    return 1e3 * sorted(taken)[times // 2]


def main() -> None:
    """Print a line for each kind of request."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocab", type=int, default=128_000)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--context", type=int, default=4000, help="different tokens of a history")
    parser.add_argument("--drafts", type=int, default=0, help="candidates of each row")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    draft = Draft(tuple(range(args.drafts))) if args.drafts else NO_DRAFT
    nodes = args.rows * (1 + args.drafts)
    logits = torch.randn(nodes, args.vocab, generator=torch.Generator().manual_seed(0))
    found_ms = []
    for temperature in (0.0, 0.8):
        for name, fields in KINDS.items():
            params = SamplingParams(temperature=temperature, **fields)
            prompt = np.arange(args.context, dtype=np.int64)
            states = [LogitEdits(params, args.vocab, (0,), prompt) for _ in range(args.rows)]

            def plan(states: list[LogitEdits] = states) -> dict[int, object]:
                found = {}
                for row, state in enumerate(states):
                    state.commit([row])
                    found[row * (1 + args.drafts)] = state.at(draft)
                return {first: edits for first, edits in found.items() if edits}

            edits = plan()

            def draw(params: SamplingParams = params, edits: dict[int, object] = edits) -> None:
                SampledRows(logits, [params] * nodes, range(nodes), range(nodes), edits).sample()

            host_ms, draw_ms = milliseconds(plan), milliseconds(draw)
            found_ms.append([temperature, name, round(host_ms, 3), round(draw_ms, 2)])
            print(
                f"temperature {temperature}, {name:12} host {host_ms:7.2f} ms a step, "
                f"draw {draw_ms:8.1f} ms a step"
            )
    if args.json:
        report = {
            "torch": torch.__version__, "python": platform.python_version(),
            "vocab": args.vocab, "rows": args.rows, "context": args.context, "drafts": args.drafts,
            "columns": ["temperature", "request", "host_ms", "draw_ms"], "steps": found_ms,
        }  # fmt: skip
        args.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
