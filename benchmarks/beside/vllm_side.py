"""vLLM as a side of a comparison: its engine in this process, driven step by step.

The engine core runs in the process that drives it: with its own processes and two cores, the one
that waits for results takes a core from the one that computes. `eager` among the options leaves
torch.compile out, which starts in seconds instead of a minute and is slower afterwards.
"""

import os
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
from side import Prompt, SteppedSide
from vllm import EngineArgs, SamplingParams
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.llm_engine import LLMEngine


class VllmSide(SteppedSide):
    """`options`: `eager`, or nothing."""

    def __init__(self, model: str, dtype: str, threads: int, options: Sequence[str]) -> None:
        super().__init__()
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = f"0-{threads - 1}" if threads > 1 else "0"
        self.eager = "eager" in options
        self.engine = LLMEngine.from_engine_args(
            EngineArgs(
                model=model, dtype=dtype, skip_tokenizer_init=True, max_model_len=4096,
                max_num_seqs=64, max_num_batched_tokens=2048, enforce_eager=self.eager,
                disable_log_stats=True,
            )
        )  # fmt: skip

    def facts(self) -> dict[str, Any]:
        """What ran."""
        return {
            "vllm-cpu": version("vllm-cpu"),
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "compiled": not self.eager,
        }

    def add(self, name: int, prompt: Prompt, tokens: int) -> None:
        """A greedy request."""
        sampling = SamplingParams(
            temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )  # fmt: skip
        self.engine.add_request(str(name), {"prompt_token_ids": prompt}, sampling)

    def step(self) -> Iterable[tuple[int, Sequence[int]]]:
        """One step of the engine."""
        for output in self.engine.step():
            if output.outputs and output.outputs[0].token_ids:
                yield int(output.request_id), list(output.outputs[0].token_ids)

    def busy(self) -> bool:
        """Whether the engine has work."""
        return self.engine.has_unfinished_requests()

    def cancel(self, name: int) -> None:
        """Abort."""
        self.engine.abort_request([str(name)])
