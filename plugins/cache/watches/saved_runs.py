"""Runs of cached pages as plain values: what a snapshot says of the index and of eviction."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from heapq import heapify, heappop, heappush
from typing import Any

from interlock.core.batch import Pages
from interlock.core.eviction import EvictionPolicy, RankedEviction
from interlock.core.prefix_index import Run, Units


@dataclass(frozen=True)
class SavedRun:
    """A run; its pages are `first` to `first` + `pages` - 1 of the snapshot's files."""

    first: int
    pages: int
    parent: int | None
    """Its number among the runs, which is below this one's."""
    salt: str
    width: int
    """Units of a page's row."""
    created_s: float
    last_used_s: float
    uses: int
    priority: int
    state: Mapping[str, float]
    age: int | None
    """When it became a candidate for eviction, among candidates; None: it is none."""


def save_runs(runs: Iterable[Run], rows: Sequence[Units | None], policy: EvictionPolicy) -> tuple[
    list[SavedRun], list[int]
]:  # fmt: skip
    """All runs, parents first, and their pages in the order in which the files have them."""
    numbers: dict[int, int] = {}
    saved: list[SavedRun] = []
    pages: list[int] = []
    for run in sorted(runs, key=lambda one: one.depth_pages):
        numbers[id(run)] = len(saved)
        row = rows[run.pages[0]]
        assert row is not None, "a page was indexed unseen"
        saved.append(
            SavedRun(
                len(pages), len(run.pages), None if run.parent is None else numbers[id(run.parent)],
                run.salt.hex(), len(row), run.created_s, run.last_used_s, run.uses, run.priority,
                dict(run.state), age_of(policy, run),
            )
        )  # fmt: skip
        pages += run.pages.tolist()
    return saved, pages


def age_of(policy: EvictionPolicy, run: Run) -> int | None:
    """See SavedRun; None as well where the policy does not say."""
    asked = getattr(policy, "age_of", None)
    return None if asked is None else asked(run)


def as_plain(runs: Sequence[SavedRun]) -> list[dict[str, Any]]:
    """For JSON."""
    return [asdict(run) for run in runs]


def shifted(run: SavedRun, by_s: float) -> SavedRun:
    """The same at times of another clock."""
    return replace(run, created_s=run.created_s + by_s, last_used_s=run.last_used_s + by_s)


def release_order(runs: Sequence[SavedRun]) -> list[int]:
    """Numbers in the order in which runs became candidates; the others by last use, deepest first.

    Policies break ties between equal candidates by this order.
    """
    unknown = max((run.age or 0 for run in runs), default=0) + 1
    return sorted(
        range(len(runs)),
        key=lambda n: (
            unknown if runs[n].age is None else runs[n].age, runs[n].last_used_s, -n
        ),
    )  # fmt: skip


def that_fit(runs: Sequence[SavedRun], policy: EvictionPolicy, pages: int) -> list[SavedRun]:
    """The runs that stay when eviction has left `pages` of them, in the same order.

    Leaves go from their tails, lowest rank first: as this policy ranks them, or, where it is no
    single order, least recently used first.
    """
    kept, over = list(runs), sum(run.pages for run in runs) - pages
    children = [0] * len(runs)
    for run in runs:
        if run.parent is not None:
            children[run.parent] += 1
    heap = [(*_rank(runs, n, policy), n) for n, count in enumerate(children) if count == 0]
    heapify(heap)
    while over > 0:
        number = heappop(heap)[-1]
        run = kept[number]
        gone = min(run.pages, over)
        over -= gone
        kept[number] = replace(run, pages=run.pages - gone)
        parent = run.parent
        if gone == run.pages and parent is not None:
            children[parent] -= 1
            if children[parent] == 0:
                heappush(heap, (*_rank(runs, parent, policy), parent))
    return list(_renumbered(kept))


def _rank(runs: Sequence[SavedRun], number: int, policy: EvictionPolicy) -> tuple[Any, int]:
    run = runs[number]
    depth, parent = 0, run.parent
    while parent is not None:
        depth, parent = depth + runs[parent].pages, runs[parent].parent
    age = run.age if run.age is not None else 1 << 62
    if not isinstance(policy, RankedEviction):
        return (run.last_used_s, -depth), age
    as_run = Run(
        _pages(run), None, depth, bytes.fromhex(run.salt), created_s=run.created_s,
        last_used_s=run.last_used_s, uses=run.uses, priority=run.priority, state=dict(run.state),
    )  # fmt: skip
    return policy.rank(as_run), age


def _pages(run: SavedRun) -> Pages:
    import numpy as np

    return np.arange(run.first, run.first + run.pages, dtype=np.int32)


def _renumbered(runs: Sequence[SavedRun]) -> Iterator[SavedRun]:
    numbers: dict[int, int] = {}
    for number, run in enumerate(runs):
        if run.pages:
            numbers[number] = len(numbers)
            yield replace(run, parent=None if run.parent is None else numbers[run.parent])
