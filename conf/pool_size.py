"""How many pages each pool gets when `cache.num_pages` does not say."""

import os
from bisect import bisect_right

import torch

from interlock.core.cache_spec import CacheLayout, Window
from interlock.core.settings import EngineConfig
from interlock.core.window_pages import window_pages

CPU_SHARE, CPU_MOST_BYTES = 0.25, 2 << 30
CUDA_SHARE = 0.8
SIMULATED_MOST_PAGES = 1 << 18


def pool_sizes(
    config: EngineConfig, layout: CacheLayout, max_tokens: int, item_bytes: int,
    device: torch.device, reserves: bool, ranks: int = 1,
) -> list[int]:  # fmt: skip
    """Pages of each table: what all requests at full length could use, as memory allows.

    A window's table gets no more than all requests see at once, and as much again for prefix hits
    (unless the allocator `reserves`: then a page serves once); the rest of the memory is for the
    others. Each table has a scratch page besides (`Planes`). A CPU lends a quarter of its free
    memory and at most 2 GiB to all `ranks` together, a GPU 80 % of what is free.
    Where nothing is stored, 262,144 pages are the most.
    """
    if config.cache.num_pages is not None:
        return [config.cache.num_pages] * len(layout.lifetimes)
    size, step_tokens = config.cache.page_size, config.scheduler.budget_tokens
    longest = -(-max_tokens // size)
    most, page_bytes = [], []
    for lifetime in layout.lifetimes:
        each = longest
        if isinstance(lifetime, Window) and not reserves:
            each = min(longest, 2 * window_pages(lifetime.tokens, step_tokens, size))
        most.append(config.scheduler.max_requests * each)
        groups = tuple(group for group in layout.groups if group.lifetime == lifetime)
        page_bytes.append(size * CacheLayout(groups, ()).bytes_per_token(item_bytes))
    if page_bytes[0] == 0:
        most[0] = min(most[0], SIMULATED_MOST_PAGES)

    def bytes_of(pages: int) -> int:
        return sum((min(pages, m) + 1) * b for m, b in zip(most, page_bytes, strict=True))

    memory = _lendable_bytes(device) if any(page_bytes) else 0
    if device.type == "cpu":
        memory //= ranks
    pages = max(1, bisect_right(range(1, max(most) + 1), memory, key=bytes_of))
    return [m if b == 0 else min(pages, m) for m, b in zip(most, page_bytes, strict=True)]


def _lendable_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free * CUDA_SHARE)
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(int(free * CPU_SHARE), CPU_MOST_BYTES)
