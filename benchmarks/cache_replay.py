"""Hit rates of every eviction policy on recorded traces, beside Belady's bound: tables and figure.

    python benchmarks/cache_replay.py --traces ../shared/data/traces \
        --json docs/results/cache_replay.json --page docs/results/cache_replay.md \
        --figure docs/images/cache_replay.png --engine 30000,10000

Block ids are replayed against each policy alone (`replay.blocks=ids`) at the capacities of the
Mooncake paper and at shares of the unique blocks. Beside it, for every policy and capacity, full
blocks alone, and then through the engine's own cache one request at a time (a leaf before what it
follows, a token left to compute): what each of these changes. With `--engine CAPACITY,...` the
engine serves the requests in virtual time as they arrive: with LRU every step on the way there is
measured, with the other policies the last one, in which requests overlap. Cells that are in the
JSON file are not computed again. The figure needs the extra `plot`.
"""

import argparse
import io
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.progress import Progress

sys.path.insert(0, str(Path(__file__).parents[1]))  # started as a file or as a module

from benchmarks.beside.needs import absent
from interlock.conf.find_model import describe_models
from interlock.conf.hydra_edge import compose
from interlock.core.assemble import build_engine
from interlock.core.component import BuildContext
from interlock.core.eviction import EvictionPolicy
from interlock.core.model import ModelDescription
from interlock.core.registry import Chosen, load_registry
from interlock.core.request import HashedPrompt, Request
from interlock.driver.block_replay import replay
from interlock.driver.run import make_entries, serve
from interlock.driver.tree_replay import replay_tree
from interlock.plugins.cache.eviction.belady import BeladyEviction, RecordedLRU
from interlock.plugins.cache.paged import PagedAllocator
from interlock.plugins.cache.radix import RadixIndex

TRACES = ("conversation", "synthetic")
CAPACITIES = (100_000, 50_000, 30_000, 10_000, 1_000)
SHARES = (0.01, 0.05, 0.10, 0.25, 0.50)
POLICIES = {
    "lru": (), "fifo": (), "lfu": (), "lfu, aging=dynamic": ("cache.eviction.aging=dynamic",),
    "length_aware": (), "s3fifo": (), "lruk": (), "arc": (), "cost_aware": (), "ttl": (),
}  # fmt: skip
BELADY = "belady"
BLOCK = 512
SERVED = ("executor.step_ms=10", "executor.token_ms=0.01", "scheduler.max_requests=256")
"""What an engine's steps take, and how many requests it runs, where requests overlap."""

NOTES = (
    "`cost_aware` has the costs of the model tiny-gqa, whose attention outweighs the rest from "
    "1,536 tokens on; `ttl` lets go after 300 s. `priority` is `lru` here: traces ask for nothing.",
    "",
    "Of the engine's own cache with one request at a time, cells with `-` were not run; the "
    "command adds them.",
    "",
    "The engine's steps, each on top of those before: a block that its prompt does not fill is "
    "neither kept nor looked for (in ids it takes room and seldom comes back); a hit ends at the "
    "first miss and leaves go before what they follow; the prompt's last token is always computed, "
    "so that its last full block is not used where nothing follows it; requests overlap (pages in "
    "use cannot go, and what another has not finished computing cannot be found) and the pages of "
    "answers take room.",
)


@dataclass(frozen=True)
class Job:
    """A trace, what is replayed on it, and the results, which hold those of earlier runs."""

    name: str
    path: Path
    policies: Sequence[str]
    capacities: Sequence[int]
    found: dict[str, Any]
    save: Callable[[], None]

    @property
    def mine(self) -> dict[str, Any]:
        """The results of this trace."""
        found: dict[str, Any] = self.found[self.name]
        return found


def base(path: Path) -> list[str]:
    """Overrides of a run without a model on this trace."""
    given = [
        "executor=fixed",
        "workload=trace",
        f"workload.path={path}",
        f"cache.page_size={BLOCK}",
    ]
    return [*given, "progress=false"]


@cache
def read(path: Path) -> Sequence[Request]:
    """The requests of a trace."""
    config = compose([*base(path), "cache.num_pages=1000"])
    entries = make_entries(config, build_engine(config))
    return [entry for entry in entries if isinstance(entry, Request)]


@cache
def chosen(policy: str, path: Path) -> tuple[ModelDescription, Chosen]:
    """The model whose costs count, and a policy as the command line chooses it."""
    name = policy.split(",")[0]
    config = compose([*base(path), f"cache/eviction={name}", *POLICIES[policy]])
    registry = load_registry()
    model = describe_models(compose([*base(path), "model=tiny-gqa"]), registry)[0]
    return model, registry.chosen("cache/eviction", name, config.choices["cache/eviction"].config)


def make(policy: str, path: Path, capacity: int) -> EvictionPolicy:
    """A policy for so many blocks."""
    model, found = chosen(policy, path)
    built = found.build(BuildContext(model, page_size=BLOCK, num_pages=capacity))
    assert isinstance(built, EvictionPolicy)
    return built


def cells(job: Job) -> Iterator[tuple[str, int]]:
    """(policy, capacity) of every replay, Belady's bound among them."""
    known = [*job.policies, BELADY]
    yield from ((policy, capacity) for capacity in job.capacities for policy in known)


def shares(unique: int) -> list[int]:
    """Capacities that hold a share of the different blocks."""
    return [max(1, round(share * unique)) for share in SHARES]


def measure(job: Job) -> None:
    """All replays of a trace that its results lack."""
    name, path = job.name, job.path
    requests = read(path)
    blocks = [block for one in requests for block in one.hashed_prompt.block_ids]
    facts = {"requests": len(requests), "blocks": len(blocks), "unique": len(set(blocks))}
    facts["ideal"] = round(1 - facts["unique"] / facts["blocks"], 5)
    mine = job.found.setdefault(name, {"trace": facts, "ids": {}, "engine": {}})
    wanted = [*cells(job), *(("lru", capacity) for capacity in shares(facts["unique"]))]
    todo = [cell for cell in wanted if f"{cell[0]}@{cell[1]}" not in mine["ids"]]
    with Progress() as progress:
        task = progress.add_task(name, total=len(todo))
        for policy, capacity in todo:
            built = BeladyEviction(blocks) if policy == BELADY else make(policy, path, capacity)
            summary = replay(built, requests, capacity).summary()
            kept = {key: summary[key] for key in ("hit_rate", "prefix_hit_rate")}
            mine["ids"][f"{policy}@{capacity}"] = {k: round(v, 5) for k, v in kept.items()}
            job.save()
            progress.advance(task)


def whole_blocks(requests: Sequence[Request]) -> list[Request]:
    """The requests without the block that a prompt does not fill."""
    found = []
    for one in requests:
        full = one.num_prompt_tokens // BLOCK
        prompt = HashedPrompt(one.hashed_prompt.block_ids[:full], BLOCK, full * BLOCK)
        found.append(replace(one, hashed_prompt=prompt))
    return found


def in_tree(job: Job) -> None:
    """Every policy and capacity that the results lack, with full blocks alone and in a tree."""
    path = job.path
    requests, mine = read(path), job.mine
    full, total = whole_blocks(requests), mine["trace"]["blocks"]
    tree = mine.setdefault("tree", {})
    todo = [cell for cell in cells(job) if f"{cell[0]}@{cell[1]}" not in tree]
    with Progress() as progress:
        task = progress.add_task(f"{job.name}, in a tree", total=len(todo))
        for policy, capacity in todo:
            if policy == BELADY:
                blocks = [block for one in full for block in one.hashed_prompt.block_ids]
                alone: EvictionPolicy = BeladyEviction(blocks)
                treed: EvictionPolicy = BeladyEviction(references(requests))
            else:
                alone, treed = (make(policy, path, capacity) for _ in range(2))
            steps = {"full blocks only": replay(alone, full, capacity).summary()["hits"] / total}
            pool, index = PagedAllocator(capacity), RadixIndex(capacity)
            hits = replay_tree(requests, BLOCK, pool, index, treed)
            steps["a leaf before what it follows"] = hits.found / total
            steps["the last token is computed"] = hits.used / total
            tree[f"{policy}@{capacity}"] = {step: round(rate, 5) for step, rate in steps.items()}
            job.save()
            progress.advance(task)


def references(requests: Sequence[Request]) -> list[int]:
    """Keys of pages in the order of their uses, in a pool that holds all of them."""
    pages = sum(one.num_prompt_tokens // BLOCK + 1 for one in requests)
    uses = io.StringIO()
    policy = RecordedLRU(uses)
    replay_tree(requests, BLOCK, PagedAllocator(pages), RadixIndex(pages), policy)
    return [key for line in uses.getvalue().splitlines() for key in json.loads(line)]


def in_engine(
    policy: str, path: Path, capacity: int, outputs: bool, *more: str
) -> tuple[int, int]:  # fmt: skip
    """Blocks that an engine finds at first admission, and prompts whose last full one it spared.

    Without `outputs` every request ends with its first token.
    """
    chosen = [f"cache/eviction={policy.split(',')[0]}", *POLICIES[policy]]
    given = [*base(path), f"cache.num_pages={capacity}", *chosen, *more]
    config = compose([*given, "max_model_len=220000", "scheduler.budget_tokens=65536"])
    engine = build_engine(config)
    entries = [one for one in make_entries(config, engine) if isinstance(one, Request)]
    if not outputs:
        entries = [replace(one, sampling=replace(one.sampling, max_tokens=1)) for one in entries]
    records = serve(engine, list(entries), progress=True)
    prompts = [(record.num_prompt_tokens, record.cached_tokens) for record in records]
    spared = sum(tokens % BLOCK == 0 and hit == tokens - BLOCK for tokens, hit in prompts)
    return sum(hit for _, hit in prompts) // BLOCK, spared


def attribute(job: Job, capacity: int) -> None:
    """From ids to the engine in four steps, as shares of all blocks."""
    path = job.path
    requests, mine = read(path), job.mine
    total = mine["trace"]["blocks"]
    key = f"lru@{capacity}"
    if key in mine["engine"]:
        return
    steps: dict[str, float] = {"ids": mine["ids"][key]["hit_rate"]}
    full = replay(make("lru", path, capacity), whole_blocks(requests), capacity).summary()
    steps["full blocks only"] = full["hits"] / total
    quick = ("executor.step_ms=0.000001", "executor.token_ms=0.0", "scheduler.max_requests=1")
    alone, spared = in_engine("lru", path, capacity, False, *quick)
    steps["in a tree, one request at a time"] = (alone + spared) / total
    steps["the last token is computed"] = alone / total
    timed, _ = in_engine("lru", path, capacity, True, *SERVED)
    steps["requests overlap and answers are kept"] = timed / total
    mine["engine"][key] = {step: round(value, 5) for step, value in steps.items()}
    job.save()


def overlapping(job: Job, capacity: int) -> None:
    """What every policy but LRU finds while requests overlap, as a share of all blocks."""
    mine = job.mine
    cells_ = mine.setdefault("overlap", {})
    for policy in [policy for policy in job.policies if policy != "lru"]:
        if (key := f"{policy}@{capacity}") not in cells_:
            hits, _ = in_engine(policy, job.path, capacity, True, *SERVED)
            cells_[key] = round(hits / mine["trace"]["blocks"], 5)
            job.save()


def share_of_gap(ids: dict[str, Any], policy: str, capacity: int) -> float | None:
    """How much of what Belady gains over LRU a policy gains; None where there is nothing."""
    rate = {name: ids[f"{name}@{capacity}"]["hit_rate"] for name in ("lru", policy, BELADY)}
    gap = rate[BELADY] - rate["lru"]
    return None if gap < 5e-4 else (rate[policy] - rate["lru"]) / gap


def page(found: dict[str, Any]) -> str:
    """The results as Markdown."""
    lines = ["# Eviction policies on recorded traces", "", f"`{found['command']}`", ""]
    lines += ["![Block hit rate by capacity](../images/cache_replay.png)", "", *NOTES, ""]
    for name in [name for name in TRACES if name in found]:
        lines += [f"## {name.capitalize()} trace", "", *_facts(found[name]["trace"]), ""]
        lines += [*_rates(found[name]["ids"]), "", *_shares(found[name]), ""]
        lines += [*_trees(found[name]), ""]
        lines += [*_overlaps(found[name]), ""]
        lines += _steps(found[name]["engine"])
    return "\n".join(lines).rstrip() + "\n"


def _facts(trace: dict[str, Any]) -> list[str]:
    return [
        f"{trace['requests']:,} requests, {trace['blocks']:,} blocks of {BLOCK} tokens, "
        f"{trace['unique']:,} different ones: {trace['ideal']:.3f} hits at best.",
        "",
        "Block hit rate of `replay.blocks=ids` by capacity in blocks; in brackets the share of the "
        "gap between LRU and Belady that the policy closes.",
    ]


def capacities_of(ids: dict[str, Any]) -> list[int]:
    """Those at which policies were compared, largest first."""
    found = (key.split("@") for key in ids)
    return sorted((int(capacity) for policy, capacity in found if policy == BELADY), reverse=True)


def _rates(ids: dict[str, Any]) -> list[str]:
    capacities = capacities_of(ids)
    lines = ["| policy | " + " | ".join(f"{c:,}" for c in capacities) + " |"]
    lines.append("|---|" + "---|" * len(capacities))
    for policy in (*POLICIES, BELADY):
        row = []
        for capacity in capacities:
            cell = ids.get(f"{policy}@{capacity}")
            if cell is None:
                row.append("-")
                continue
            share = share_of_gap(ids, policy, capacity)
            more = "" if share is None or policy in ("lru", BELADY) else f" ({share:+.0%})"
            row.append(f"{cell['hit_rate']:.3f}{more}")
        lines.append(f"| {policy} | " + " | ".join(row) + " |")
    return lines


def _shares(mine: dict[str, Any]) -> list[str]:
    capacities = shares(mine["trace"]["unique"])
    rates = [mine["ids"][f"lru@{capacity}"]["hit_rate"] for capacity in capacities]
    listed = ", ".join(f"{s:.0%} {rate:.3f}" for s, rate in zip(SHARES, rates, strict=True))
    return [f"LRU at shares of the different blocks: {listed}."]


def _trees(mine: dict[str, Any]) -> list[str]:
    capacities = capacities_of(mine["ids"])
    lines = [
        "In the engine's own cache, one request at a time: block hit rate, and in brackets what "
        "full blocks alone, the tree and the last token changed of that of ids, in thousandths.",
        "",
        "| policy | " + " | ".join(f"{c:,}" for c in capacities) + " |",
        "|---|" + "---|" * len(capacities),
    ]
    for policy in (*POLICIES, BELADY):
        row = []
        for capacity in capacities:
            steps = mine.get("tree", {}).get(f"{policy}@{capacity}")
            if steps is None:
                row.append("-")
                continue
            rates = [mine["ids"][f"{policy}@{capacity}"]["hit_rate"], *steps.values()]
            changes = ", ".join(f"{1e3 * (b - a):+.1f}" for a, b in pairwise(rates))
            row.append(f"{rates[-1]:.3f} ({changes})")
        lines.append(f"| {policy} | " + " | ".join(row) + " |")
    return lines


def _overlaps(mine: dict[str, Any]) -> list[str]:
    cells_ = dict(mine.get("overlap", {}))
    cells_ |= {key: list(steps.values())[-1] for key, steps in mine["engine"].items()}
    capacities = sorted({int(key.split("@")[1]) for key in cells_}, reverse=True)
    lines = [
        "In the engine with requests that overlap and answers that take room: block hit rate, and "
        "in brackets the change from one request at a time, in thousandths.",
        "",
        "| policy | " + " | ".join(f"{c:,}" for c in capacities) + " |",
        "|---|" + "---|" * len(capacities),
    ]
    for policy in POLICIES:
        row = []
        for capacity in capacities:
            rate = cells_.get(key := f"{policy}@{capacity}")
            steps = mine.get("tree", {}).get(key)
            change = (
                "" if None in (rate, steps) else f" ({1e3 * (rate - [*steps.values()][-1]):+.1f})"
            )
            row.append("-" if rate is None else f"{rate:.3f}{change}")
        lines.append(f"| {policy} | " + " | ".join(row) + " |")
    return lines


def _steps(engine: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    for key, steps in engine.items():
        lines += [
            f"LRU in the engine at {int(key.split('@')[1]):,} pages, in shares of all blocks:"
        ]
        lines += ["", "| semantics | hit rate | change |", "|---|---|---|"]
        before = None
        for step, rate in steps.items():
            change = "" if before is None else f"{rate - before:+.4f}"
            lines.append(f"| {step} | {rate:.4f} | {change} |")
            before = rate
        lines.append("")
    return lines


def draw(found: dict[str, Any], path: Path) -> None:
    """Hit rate by capacity, a panel for each trace, Belady's bound in black."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    names = [name for name in TRACES if name in found]
    figure, axes = plt.subplots(
        1, len(names), figsize=(5 * len(names), 4), layout="constrained", squeeze=False
    )
    for axis, name in zip(axes[0], names, strict=True):
        ids = found[name]["ids"]
        for policy in (*POLICIES, BELADY):
            xs = [c for c in capacities_of(ids) if f"{policy}@{c}" in ids]
            ys = [ids[f"{policy}@{c}"]["hit_rate"] for c in xs]
            style = {"color": "black", "linewidth": 2} if policy == BELADY else {"marker": "."}
            axis.plot(xs, ys, label=policy, **style)
        axis.set_xscale("log")
        axis.set_title(f"Mooncake {name} trace")
        axis.set_xlabel("capacity, blocks of 512 tokens")
        axis.set_ylabel("block hit rate")
        axis.grid(alpha=0.3)
    axes[0][-1].legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--traces", type=Path, required=True, help="folder of the traces")
    parser.add_argument("--json", type=Path, required=True, help="results, kept and added to")
    parser.add_argument("--page", type=Path, help="the same as Markdown")
    parser.add_argument("--figure", type=Path, help="PNG of hit rate by capacity")
    parser.add_argument("--only", choices=TRACES, help="one trace")
    parser.add_argument("--engine", default="", metavar="BLOCKS,...",
                        help="capacities at which policies also run in the engine")  # fmt: skip
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=list(POLICIES),
                        metavar="NAME", help="lru among them; default: all")  # fmt: skip
    parser.add_argument("--capacities", nargs="+", type=int, default=CAPACITIES, metavar="BLOCKS")
    arguments = parser.parse_args()
    if "lru" not in arguments.policies:
        parser.error("--policies: lru must be among them: the others are compared with it")
    engine = [int(capacity) for capacity in arguments.engine.split(",") if capacity]
    if not {*engine} <= {*arguments.capacities}:
        parser.error(f"--engine {arguments.engine}: only capacities of --capacities")
    command = (
        "python benchmarks/cache_replay.py --traces TRACES --json docs/results/cache_replay.json"
    )
    found = json.loads(arguments.json.read_text()) if arguments.json.exists() else {}
    found["command"] = (
        f"{command} --page docs/results/cache_replay.md --figure docs/images/cache_replay.png "
        "--engine 30000,10000"
    )

    def save() -> None:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")

    for name in [arguments.only] if arguments.only else TRACES:
        path = arguments.traces / f"mooncake_{name}.jsonl.gz"
        if not path.is_file():
            absent(f"--traces {arguments.traces}: {path.name} is not there")
        job = Job(name, path, arguments.policies, arguments.capacities, found, save)
        measure(job)
        in_tree(job)
        for capacity in engine:
            attribute(job, capacity)
            overlapping(job, capacity)
    save()
    if arguments.page:
        arguments.page.write_text(page(found))
    if arguments.figure:
        draw(found, arguments.figure)


if __name__ == "__main__":
    main()
