"""Interlock beside transformers on this CPU, in bf16: decode, prefill, arrivals, agreement.

    python benchmarks/vs_transformers.py --json docs/results/vs_transformers.json

Random weights of SmolLM2-135M's shape and of a 1.1B Llama. Each side is a process with 2 threads
that is stopped while the other one is measured; measurements alternate, so that noise hits both.
transformers runs `generate` with scaled_dot_product_attention; arrivals are served by the best of
one request at a time, padded batches, and its continuous batching, as measured on a third of them.
"times as fast" is the median of paired ratios [95 % bootstrap interval]; an interval with 1 is a
tie. Plain products over the same bytes say how near decode at batch 1 is to the memory's bandwidth.
Needs `pip install interlock[test]`; about 8 minutes on two cores, 2 with --shapes smollm2-135m.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # started as a file or as a module

from benchmarks.beside.command import Peer, options, run


def main() -> None:
    """Compare and print."""
    args = options(__doc__).parse_args()
    run([Peer("transformers")], args, "benchmarks/vs_transformers.py")


if __name__ == "__main__":
    main()
