"""How many pages a pool gets when `cache.num_pages` does not say."""

import os

import torch

from interlock.core.cache_spec import CacheLayout
from interlock.core.settings import EngineConfig

CPU_SHARE, CPU_MOST_BYTES = 0.25, 2 << 30
CUDA_SHARE = 0.8
SIMULATED_MOST_PAGES = 1 << 18


def pool_size(
    config: EngineConfig,
    layout: CacheLayout,
    max_tokens: int,
    dtype: torch.dtype,
    device: torch.device,
) -> int:
    """Pages of every table: what all requests at full length could use, as memory allows.

    A CPU lends a quarter of its free memory and at most 2 GiB, a GPU 80 % of what is free. Without
    planes (nothing is stored) 262,144 pages are the most.
    """
    if config.cache.num_pages is not None:
        return config.cache.num_pages
    page_size = config.cache.page_size
    wanted = config.scheduler.max_requests * -(-max_tokens // page_size)
    page_bytes = page_size * layout.bytes_per_token(dtype.itemsize)
    if page_bytes == 0:
        return min(wanted, SIMULATED_MOST_PAGES)
    return max(1, min(wanted, _lendable_bytes(device) // page_bytes))


def _lendable_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free * CUDA_SHARE)
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(int(free * CPU_SHARE), CPU_MOST_BYTES)
