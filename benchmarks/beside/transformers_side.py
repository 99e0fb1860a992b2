"""transformers as a side of a comparison: generate, and its continuous batching where it runs.

Decode steps are those of one call of generate in a thread of its own, which waits after a step for
the permission to run further ones. Arrivals are served in three ways, of which the caller takes
the best: one request at a time, batches of what has arrived (padded on the left), and
transformers' own continuous batching.
"""

import threading
import time
import warnings
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

import torch
import transformers
from side import Arrival, Prompt, Side
from transformers import AutoModelForCausalLM, GenerationConfig, StoppingCriteria

MAX_BATCH = 16
PAD = 0


class Turnstile(StoppingCriteria):
    """Called by generate after each token: lets through as many steps as were permitted."""

    def __init__(self) -> None:
        self.permitted = threading.Semaphore(0)
        self.arrived: threading.Semaphore = threading.Semaphore(0)
        self.leave = False

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        """After a token: report, then wait for the next permission."""
        self.arrived.release()
        self.permitted.acquire()
        return torch.full((input_ids.shape[0],), self.leave, dtype=torch.bool)

    def run(self, steps: int) -> None:
        """Let this many steps pass and wait for them."""
        for _ in range(steps):
            self.permitted.release()
            self.arrived.acquire()


class TransformersSide(Side):
    """AutoModelForCausalLM with scaled_dot_product_attention; no options."""

    def __init__(self, model: str, dtype: str, threads: int, options: Sequence[str]) -> None:
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        warnings.simplefilter("ignore")
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        self.model: Any = AutoModelForCausalLM.from_pretrained(
            model, dtype=getattr(torch, dtype), attn_implementation="sdpa"
        ).eval()
        self.turnstile = Turnstile()
        self.thread: threading.Thread | None = None

    def facts(self) -> dict[str, Any]:
        """What ran."""
        return {
            "transformers": version("transformers"),
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "attention": "sdpa",
        }

    def _generate(self, prompts: Sequence[Prompt], tokens: int, **more: Any) -> torch.Tensor:
        """[B, width + tokens] of prompts padded on the left."""
        width = max(map(len, prompts))
        ids = torch.tensor([[PAD] * (width - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
        out: torch.Tensor = self.model.generate(
            ids, attention_mask=mask, do_sample=False, pad_token_id=PAD,
            max_new_tokens=tokens, min_new_tokens=tokens, **more,
        )  # fmt: skip
        return out

    def open(self, prompts: Sequence[Prompt], tokens: int) -> None:
        """Starts generate and returns after its first token."""
        self.turnstile = Turnstile()

        def run() -> None:
            with torch.no_grad():
                self._generate(prompts, tokens + 8, stopping_criteria=[self.turnstile])

        self.thread = threading.Thread(target=run)
        self.thread.start()
        self.turnstile.arrived.acquire()

    def decode(self, steps: int) -> float:
        """Seconds of these steps."""
        start_s = time.perf_counter()
        self.turnstile.run(steps)
        return time.perf_counter() - start_s

    def close(self) -> None:
        """Ends the generate that is open."""
        assert self.thread is not None
        self.turnstile.leave = True
        self.turnstile.permitted.release()
        self.thread.join()

    def greedy(self, prompts: Sequence[Prompt], tokens: int) -> list[list[int]]:
        """All prompts in one batch."""
        width = max(map(len, prompts))
        return [list(row) for row in self._generate(prompts, tokens)[:, width:].tolist()]

    def methods(self) -> list[str]:
        """Of serving arrivals."""
        return ["one at a time", "padded batches", "continuous batching"]

    def serve(self, arrivals: Sequence[Arrival], method: str) -> float:
        """By one of the methods."""
        if method == "continuous batching":
            return self._serve_continuously(arrivals)
        most = 1 if method == "one at a time" else MAX_BATCH
        return self._serve_batches(arrivals, most)

    def _serve_batches(self, arrivals: Sequence[Arrival], most: int) -> float:
        """Whatever has arrived, `most` at a time; a batch runs as long as its longest request."""
        waiting = list(arrivals)
        start_s = time.perf_counter()
        while waiting:
            passed_s = time.perf_counter() - start_s
            ready = [arrival for arrival in waiting if arrival[0] <= passed_s][:most]
            if not ready:
                time.sleep(waiting[0][0] - passed_s)
                continue
            waiting = waiting[len(ready) :]
            self._generate([prompt for _, prompt, _ in ready], max(n for _, _, n in ready))
        return time.perf_counter() - start_s

    def _serve_continuously(self, arrivals: Sequence[Arrival]) -> float:
        """Requests are added to the running manager when they are due."""
        with self._manager() as manager:
            start_s = time.perf_counter()
            for due_s, prompt, tokens in arrivals:
                time.sleep(max(0.0, due_s - (time.perf_counter() - start_s)))
                manager.add_request(prompt, max_new_tokens=tokens)
            for _ in arrivals:
                result = manager.get_result(timeout=600)
                if result is None or result.error:
                    raise RuntimeError(f"continuous batching: {result and result.error}")
            return time.perf_counter() - start_s

    def _manager(self) -> Any:
        from transformers.generation.configuration_utils import ContinuousBatchingConfig

        pages = ContinuousBatchingConfig(page_size=32, num_blocks=512, max_batch_tokens=512)
        config = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=PAD)
        open_manager: Callable[..., Any] = self.model.continuous_batching_context_manager
        return open_manager(generation_config=config, continuous_batching_config=pages)
