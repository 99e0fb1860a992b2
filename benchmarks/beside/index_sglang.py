"""SGLang's radix cache on ready prompts, for benchmarks/index_vs_peers.py, which runs this.

    ENVIRONMENT/bin/python benchmarks/beside/index_sglang.py PROMPTS.npz POOL_TOKENS PAGE_SIZE

Runs in an environment of its own that has SGLang and nothing of Interlock. For each prompt, one
after the other, what its scheduler does with the cache: match_prefix, inc_lock_ref, evict what is
missing, take slots, insert, dec_lock_ref. The free list is that of SGLang's allocator of single
tokens: a tensor, cut at the front, with what is freed appended.
"""

import json
import sys
import time
from array import array
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey


class Slots:
    """The free list."""

    device = "cpu"

    def __init__(self, count: int) -> None:
        self.free = torch.arange(count, dtype=torch.int64)

    def take(self, count: int) -> Any:
        """The first free slots."""
        taken, self.free = self.free[:count], self.free[count:]
        return taken

    def free_segment(self, slots: Any, start_pos: int = 0) -> None:
        """These slots are free again."""
        self.free = torch.cat((self.free, slots))


def main() -> None:
    """Print one JSON object."""
    file, pool, page_size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    data = np.load(file)
    tokens, ends = data["tokens"], data["ends"].tolist()
    prompts = [
        array("q", tokens[start:end].tobytes())
        for start, end in zip([0, *ends[:-1]], ends, strict=True)
    ]
    torch.set_num_threads(1)
    slots = Slots(pool)
    cache = RadixCache.create_simulated(mock_allocator=slots, page_size=page_size)
    hits, start = 0, time.thread_time()
    for prompt in prompts:
        found = cache.match_prefix(MatchPrefixParams(key=RadixKey(prompt, limit=len(prompt) - 1)))
        node, known = found.last_device_node, found.device_prefix_len
        hits += known
        cache.inc_lock_ref(node)
        whole = len(prompt) // page_size * page_size
        missing = whole - known - len(slots.free)
        if missing > 0:
            cache.evict(EvictParams(num_tokens=missing))
        taken = slots.take(whole - known)
        value = torch.cat((cache.path_device_indices(node), taken))
        inserted = cache.insert(InsertParams(key=RadixKey(prompt), value=value))
        if inserted.prefix_len > known:
            slots.free_segment(value[known : inserted.prefix_len])
        cache.dec_lock_ref(node)
    seconds = time.thread_time() - start
    found = {"hit_tokens": hits, "ns_per_token": round(seconds / ends[-1] * 1e9, 2)}
    print(json.dumps({**found, "sglang": version("sglang")}))


if __name__ == "__main__":
    main()
