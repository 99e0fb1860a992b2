"""Block ids through a policy alone: equal to naive replays, and to published hit rates."""

import json
import os
import random
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pytest

from interlock.core.errors import ContractError, WorkloadError
from interlock.core.eviction import EvictionPolicy
from interlock.core.prefix_index import Run
from interlock.core.request import HashedPrompt, Request
from interlock.core.testing.eviction_contract import a_run
from interlock.core.testing.workload_contract import byte_context
from interlock.driver.block_replay import replay
from interlock.plugins.cache.eviction.belady import BeladyEviction
from interlock.plugins.cache.eviction.fifo import FIFOEviction
from interlock.plugins.cache.eviction.length_aware import LengthAwareEviction
from interlock.plugins.cache.eviction.lfu import LFUEviction
from interlock.plugins.cache.eviction.lru import LRUEviction
from interlock.plugins.frontend.configs import TraceConfig
from interlock.plugins.frontend.trace import Trace
from tests import forked

DATA = Path(os.environ.get("INTERLOCK_DATA", "../shared/data"))
UNIQUE = {"conversation": 182_790, "synthetic": 43_924}


def asking(index: int, blocks: Sequence[int], arrival_s: float = 0.0) -> Request:
    prompt = HashedPrompt(tuple(blocks), 512, 512 * len(blocks))
    return Request(index=index, hashed_prompt=prompt, arrival_s=arrival_s)


@cache
def trace(name: str) -> list[Request]:
    path = DATA / "traces" / f"mooncake_{name}.jsonl.gz"
    if not path.exists():
        pytest.skip(f"{path} is absent; INTERLOCK_DATA names the folder that holds traces/")
    return Trace(TraceConfig(path=str(path))).requests(byte_context())  # type: ignore[return-value]


def hit_rate(policy: EvictionPolicy, name: str, capacity: int) -> float:
    return round(replay(policy, trace(name), capacity).summary()["hit_rate"], 3)


Value = Callable[[dict[str, int]], tuple[int, ...]]
NAIVE: dict[str, tuple[Callable[[], EvictionPolicy], Value]] = {
    "lru": (LRUEviction, lambda block: (block["used"],)),
    "fifo": (FIFOEviction, lambda block: (block["entered"],)),
    "lfu": (LFUEviction, lambda block: (block["count"], block["used"])),
    "length_aware": (
        LengthAwareEviction,
        lambda block: (block["count"], -block["depth"], block["used"]),
    ),
}


def naive_hits(requests: Sequence[Request], capacity: int, value: Value) -> list[int]:
    """Hits of each request when the block of least value goes, found by looking at all."""
    there: dict[int, dict[str, int]] = {}
    now, hits = 0, []
    for request in requests:
        found = 0
        for depth, block in enumerate(request.hashed_prompt.block_ids):
            now += 1
            if block in there:
                found += 1
                there[block]["used"], there[block]["count"] = now, there[block]["count"] + 1
                continue
            if len(there) == capacity:
                del there[min(there, key=lambda one: value(there[one]))]
            there[block] = {"entered": now, "used": now, "count": 1, "depth": depth}
        hits.append(found)
    return hits


@pytest.mark.parametrize("name", NAIVE)
def test_hits_equal_those_of_a_naive_replay_on_random_traces(name):
    make, value = NAIVE[name]
    draw = random.Random(11)
    for capacity in (1, 3, 8, 20):
        requests = [
            asking(i, [100 * depth + draw.randrange(4) for depth in range(draw.randint(1, 9))])
            for i in range(60)
        ]
        played = replay(make(), requests, capacity)
        assert [one.hits for one in played.requests] == naive_hits(requests, capacity, value)


def test_a_block_is_a_hit_without_those_before_it_but_no_usable_prefix():
    blocks = [[1, 2, 3], [4], [2, 3], [1, 2, 3]]
    played = replay(LRUEviction(), [asking(i, some) for i, some in enumerate(blocks)], 3)
    assert vars(played.requests[3]) == {"index": 3, "blocks": 3, "hits": 2, "prefix_hits": 0}
    assert played.evicted == 2


def test_requests_are_served_in_order_of_arrival():
    played = replay(LRUEviction(), [asking(0, [1], arrival_s=5.0), asking(1, [1])], 4)
    assert [(one.index, one.hits) for one in played.requests] == [(1, 0), (0, 1)]


def test_prompt_of_tokens_is_refused():
    with pytest.raises(WorkloadError, match=r"request 0 has no block ids"):
        replay(LRUEviction(), [Request(index=0, prompt_token_ids=(1, 2))], 4)


def test_policy_that_chooses_what_is_not_there_is_named():
    class Liar(LRUEviction):
        def choose(self) -> Run | None:
            return a_run(0)

    with pytest.raises(ContractError, match=r"Liar let go of what is no candidate"):
        replay(Liar(), [asking(0, [1, 2])], 1)


@pytest.mark.parametrize(
    ("name", "share", "expected"),
    [
        ("conversation", 0.05, 0.195),
        ("synthetic", 0.01, 0.034),
        ("synthetic", 0.10, 0.260),
        ("synthetic", 0.50, 0.589),
    ],
)
def test_lru_at_shares_of_the_unique_blocks_is_as_published(name, share, expected):
    assert hit_rate(LRUEviction(), name, round(share * UNIQUE[name])) == expected


@pytest.mark.parametrize(
    ("make", "capacity", "expected"),
    [
        (LRUEviction, 10_000, 0.423),
        (LFUEviction, 30_000, 0.626),
        (LFUEviction, 10_000, 0.358),
        (LengthAwareEviction, 30_000, 0.507),
        (LengthAwareEviction, 1_000, 0.019),
        (lambda: LFUEviction(aging=True), 10_000, 0.428),
    ],
)
def test_block_hit_rates_of_the_synthetic_trace_equal_an_independent_replay(
    make, capacity, expected
):
    assert hit_rate(make(), "synthetic", capacity) == expected


def test_belady_bounds_the_other_policies_on_the_synthetic_trace():
    blocks = [one for request in trace("synthetic") for one in request.hashed_prompt.block_ids]
    assert hit_rate(BeladyEviction(blocks), "synthetic", 10_000) == 0.618


def command(folder: Path, *overrides: str) -> tuple[int, str]:
    lines = [
        {"timestamp": 0, "input_length": 1030, "output_length": 5, "hash_ids": [0, 4, 9]},
        {"timestamp": 9, "input_length": 1024, "output_length": 5, "hash_ids": [0, 4]},
    ]
    path = folder / "trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    given = ["executor=fixed", "workload=trace", f"workload.path={path}", "replay.blocks=ids"]
    given += ["cache.num_pages=3", f"hydra.run.dir={folder / 'out'}", *overrides]
    code = "from interlock.driver.cli import main; main()"
    return forked.run(code, *given, cwd=folder, environment=dict(os.environ))


def test_the_command_line_replays_a_trace_and_leaves_a_run_folder(tmp_path):
    status, printed = command(tmp_path, "cache.page_size=512", "cache/eviction=lfu")
    assert status == 0, printed
    assert "hits before the first miss" in printed
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (summary["blocks"], summary["hits"], summary["evicted_blocks"]) == (5, 2, 0)
    lines = (tmp_path / "out" / "requests.jsonl").read_text().splitlines()
    assert json.loads(lines[1]) == {"index": 1, "blocks": 2, "hits": 2, "prefix_hits": 2}
    manifest = json.loads((tmp_path / "out" / "run.json").read_text())
    assert manifest["inert"] == ["cache/eviction"], "three blocks fit"
    assert manifest["components"]["cache/eviction"]["class"].endswith("lfu.LFUEviction")


def test_a_page_that_is_no_block_is_refused_with_the_size_to_set(tmp_path):
    status, printed = command(tmp_path)
    assert status == 1
    assert "set cache.page_size=512" in printed
