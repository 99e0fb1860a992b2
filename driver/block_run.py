"""A run with `replay.blocks=ids`: a trace's block ids against one eviction policy, reported."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from interlock.conf.find_model import describe_models
from interlock.conf.read_config import to_plain
from interlock.core.component import BuildContext
from interlock.core.errors import ConfigError
from interlock.core.eviction import EvictionPolicy
from interlock.core.registry import load_registry
from interlock.core.request import Request
from interlock.core.resolver import Resolution, resolve
from interlock.core.settings import EngineConfig
from interlock.core.workload import Workload, WorkloadContext
from interlock.driver.block_replay import BlockReplay, replay
from interlock.driver.interrupts import Interrupts
from interlock.driver.manifest import manifest
from interlock.driver.report import Progress, ProgressView, ReportConsole, number, percent
from interlock.driver.run_folder import write_replay


def replay_run(config: EngineConfig, run_dir: Path, overrides: Sequence[str]) -> int:
    """Replay the trace, write the run folder, print the hit rates; 0 once it ended.

    Only the workload and cache/eviction are built: other choices have no part in it.

    Raises:
        InterlockError: it could not start, or the policy broke its contract.
        KeyboardInterrupt: Ctrl-C ended it; nothing is written.
    """
    registry = load_registry()
    resolution = resolve(config, registry, describe_models(config, registry)).require()
    capacity = _capacity(config)
    context = BuildContext(
        resolution.model, page_size=config.cache.page_size, num_pages=capacity, seed=config.seed
    )
    workload: Workload = resolution.build("workload", context)
    policy: EvictionPolicy = resolution.build("cache/eviction", context)
    entries = workload.requests(
        WorkloadContext(resolution.model, config.sampling, config.seed, None, None)
    )
    requests = [entry for entry in entries if isinstance(entry, Request)]
    _check_blocks(requests, config)
    with ProgressView(config.progress) as view, Interrupts() as interrupts:

        def told(done: int) -> None:
            if interrupts.asked:
                raise KeyboardInterrupt
            if view.due:
                view.update(Progress(now_s=0.0, done=done, total=len(requests)))

        played = replay(policy, requests, capacity, told)
    _finish(config, resolution, played, {"workload": workload, "cache/eviction": policy},
            entries, run_dir, overrides)  # fmt: skip
    return 0


def _capacity(config: EngineConfig) -> int:
    if config.rerun is not None:
        raise ConfigError(f"rerun={config.rerun}: replay.blocks=ids has no decisions to run again")
    if config.cache.num_pages is None:
        raise ConfigError("replay.blocks=ids needs cache.num_pages: how many blocks the pool holds")
    return config.cache.num_pages


def _check_blocks(requests: Sequence[Request], config: EngineConfig) -> None:
    """A block is a page, and every request is known by its blocks."""
    size = config.cache.page_size
    for request in requests:
        if request.hashed_prompt is None:
            raise ConfigError(
                "replay.blocks=ids replays block ids, which the requests of workload="
                f"{config.choices['workload'].name} lack; set workload=trace"
            )
        if request.hashed_prompt.block_tokens != size:
            raise ConfigError(
                f"cache.page_size={size}: with replay.blocks=ids a page is a block of the trace; "
                f"set cache.page_size={request.hashed_prompt.block_tokens}"
            )


def _finish(
    config: EngineConfig, resolution: Resolution, played: BlockReplay, built: Mapping[str, Any],
    entries: Sequence[Any], run_dir: Path, overrides: Sequence[str],
) -> None:  # fmt: skip
    summary = {"replay": "ids", **played.summary()}
    found = manifest(
        components={seam: type(one) for seam, one in built.items()},
        config=to_plain(resolution.config),
        overrides=overrides,
        seed=config.seed,
        entries=entries,
        model=resolution.model,
        device=torch.device(config.device),
        clock="virtual",
        counters={"cache/eviction": {"evicted_pages": played.evicted}},
        inert=[] if played.evicted else ["cache/eviction"],
    )
    found["exact_times"] = True
    write_replay(run_dir, [asdict(one) for one in played.requests], summary, found)
    console = ReportConsole()
    name = config.choices["cache/eviction"].name
    console.print(f"Block ids through cache/eviction={name} alone: no index, scheduler or model")
    table = Table(box=None, show_header=False, pad_edge=False)
    for row in _rows(summary):
        table.add_row(*row)
    console.print(table)
    console.print(f"run folder: {run_dir}", markup=False, highlight=False, soft_wrap=True)


def _rows(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "capacity, blocks", number(summary["capacity_blocks"])
    yield "requests", number(summary["requests"])
    yield "blocks touched", number(summary["blocks"])
    yield "block hit rate", percent(summary["hit_rate"])
    yield "hits before the first miss", percent(summary["prefix_hit_rate"])
    yield "evicted blocks", number(summary["evicted_blocks"])
