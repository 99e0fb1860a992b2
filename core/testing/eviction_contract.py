"""The contract of an eviction policy: subclass `EvictionContract`, define `make`, run pytest."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import settings, strategies
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from interlock.core.eviction import EvictionPolicy
from interlock.core.prefix_index import Run


def a_run(
    first_page: int = 0,
    *,
    pages: int = 1,
    depth_pages: int = 0,
    created_s: float = 0.0,
    last_used_s: float | None = None,
    uses: int = 1,
    priority: int = 0,
    keys: Sequence[int] | None = None,
) -> Run:
    """A run as an index and the core leave it; used when it was created unless said otherwise.

    `keys`: of its pages; their numbers unless said otherwise.
    """
    numbers = range(first_page, first_page + pages) if keys is None else keys
    return Run(
        keys=np.array(numbers, dtype=np.int64),
        pages=np.arange(first_page, first_page + pages, dtype=np.int32),
        parent=None,
        depth_pages=depth_pages,
        salt=b"",
        created_s=created_s,
        last_used_s=created_s if last_used_s is None else last_used_s,
        uses=uses,
        priority=priority,
    )


def drain(policy: EvictionPolicy) -> list[Run]:
    """All candidates in the order in which the policy lets them go."""
    order = []
    while (run := policy.choose()) is not None:
        order.append(run)
    return order


class EvictionContract:
    """Every promise of `EvictionPolicy`."""

    examples = 40
    """Random histories that the state machine tries."""

    def make(self) -> EvictionPolicy:
        """A new policy without candidates."""
        raise NotImplementedError

    def test_policy_without_candidates_chooses_nothing(self) -> None:
        policy = self.make()
        assert policy.choose() is None
        assert policy.num_candidates() == 0

    def test_each_candidate_is_chosen_exactly_once(self) -> None:
        policy = self.make()
        runs = [a_run(i, created_s=float(i % 7), uses=1 + i % 3) for i in range(100)]
        for run in runs:
            policy.add(run)
        assert policy.num_candidates() == 100
        assert {id(run) for run in drain(policy)} == {id(run) for run in runs}
        assert policy.num_candidates() == 0

    def test_discarded_run_is_not_chosen(self) -> None:
        policy = self.make()
        kept, pinned = a_run(0), a_run(1)
        policy.add(kept)
        policy.add(pinned)
        policy.discard(pinned)
        assert drain(policy) == [kept]

    def test_discarding_a_run_that_is_no_candidate_does_nothing(self) -> None:
        policy = self.make()
        candidate = a_run(0)
        policy.add(candidate)
        policy.discard(a_run(1))
        assert policy.choose() is candidate
        policy.discard(candidate)
        assert policy.num_candidates() == 0

    def test_run_that_lost_a_part_is_chosen_again_after_add(self) -> None:
        policy = self.make()
        run = a_run(0, pages=5)
        policy.add(run)
        assert policy.choose() is run
        assert policy.choose() is None
        run.pages = run.pages[:2]
        policy.add(run)
        assert policy.choose() is run

    def test_run_pinned_and_released_many_times_stays_one_candidate(self) -> None:
        policy = self.make()
        runs = [a_run(i) for i in range(3)]
        for now in range(300):
            run = runs[now % 3]
            run.last_used_s, run.uses = float(now), run.uses + 1
            policy.used(run)
            policy.add(run)
            if now < 297:
                policy.discard(run)
        assert policy.num_candidates() == 3
        assert len(drain(policy)) == 3

    def test_content_that_comes_back_is_a_candidate_like_any_other(self) -> None:
        policy = self.make()
        for turn in range(20):
            runs = [a_run(8 * n, pages=1 + n, created_s=float(turn)) for n in range(3)]
            for run in runs:
                policy.entered(run, len(run.pages))
                policy.add(run)
            assert policy.num_candidates() == 3
            for run in drain(policy):
                policy.leaving(run, len(run.pages))
                assert run.keys is not None
                run.pages, run.keys = run.pages[:0], run.keys[:0]
                policy.forgotten(run)

    def test_nothing_expires_before_time_passes(self) -> None:
        policy = self.make()
        policy.add(a_run(0, created_s=5.0))
        assert policy.expired(5.0) is None
        assert policy.num_candidates() == 1

    def test_same_history_gives_the_same_order(self) -> None:
        orders = []
        for _ in range(2):
            policy = self.make()
            for i in range(50):
                policy.add(a_run(i, created_s=float(i * 7 % 5), uses=1 + i * 3 % 4))
            orders.append([int(run.pages[0]) for run in drain(policy)])
        assert orders[0] == orders[1]

    def test_only_candidates_are_chosen_in_any_history(self) -> None:
        run_state_machine_as_test(
            lambda: _Machine(self.make()),  # type: ignore[arg-type]  # any factory works
            settings=settings(
                max_examples=self.examples, stateful_step_count=30, deadline=None, derandomize=True
            ),
        )


class _Machine(RuleBasedStateMachine):
    """The model: the set of candidates. As in use, times and counts of a candidate stand still."""

    def __init__(self, policy: EvictionPolicy) -> None:
        super().__init__()
        self.policy = policy
        self.pinned: list[Run] = []
        self.candidates: list[Run] = []
        self.now_s = 0.0
        self.pages = 0

    @rule(
        pages=strategies.integers(1, 4),
        depth=strategies.integers(0, 4),
        step=strategies.floats(0, 9),
        known=strategies.none() | strategies.integers(0, 9),
    )
    def index_a_run(self, pages: int, depth: int, step: float, known: int | None) -> None:
        self.now_s += step
        first = self.pages if known is None else known
        run = a_run(self.pages, pages=pages, depth_pages=depth, created_s=self.now_s,
                    keys=range(first, first + pages))  # fmt: skip
        self.policy.entered(run, pages)
        self.pinned.append(run)
        self.pages += pages

    @precondition(lambda self: self.pinned)
    @rule(data=strategies.data())
    def release(self, data: Any) -> None:
        run = self.pinned.pop(data.draw(strategies.integers(0, len(self.pinned) - 1)))
        self.policy.add(run)
        self.candidates.append(run)

    @precondition(lambda self: self.candidates)
    @rule(data=strategies.data(), step=strategies.floats(0, 9))
    def hit(self, data: Any, step: float) -> None:
        self.now_s += step
        run = self.candidates.pop(data.draw(strategies.integers(0, len(self.candidates) - 1)))
        self.policy.discard(run)
        run.last_used_s, run.uses = self.now_s, run.uses + 1
        self.policy.used(run)
        self.pinned.append(run)

    @precondition(lambda self: any(len(run.pages) > 1 for run in self.candidates))
    @rule(data=strategies.data())
    def split(self, data: Any) -> None:
        long = [run for run in self.candidates if len(run.pages) > 1]
        run = long[data.draw(strategies.integers(0, len(long) - 1))]
        upper = a_run(int(run.pages[0]), depth_pages=run.depth_pages, created_s=run.created_s)
        upper.last_used_s, upper.uses = run.last_used_s, run.uses
        upper.priority, upper.state, upper.children = run.priority, dict(run.state), 1
        assert run.keys is not None
        upper.keys, run.keys = run.keys[:1], run.keys[1:]
        run.pages, run.depth_pages = run.pages[1:], run.depth_pages + 1
        self.policy.used(upper)

    @rule(whole=strategies.booleans())
    def evict(self, whole: bool) -> None:
        run = self.policy.choose()
        assert (run is None) == (not self.candidates), "candidates remain but none was chosen"
        if run is None:
            return
        assert any(run is candidate for candidate in self.candidates), "chose no candidate"
        self._take(run, whole)

    @rule(step=strategies.floats(0, 400))
    def time_passes(self, step: float) -> None:
        self.now_s += step
        while (run := self.policy.expired(self.now_s)) is not None:
            assert any(run is candidate for candidate in self.candidates), "expired no candidate"
            self._take(run, whole=True)

    def _take(self, run: Run, whole: bool) -> None:
        """Evict a run or its last page, as the core does."""
        self.candidates = [other for other in self.candidates if other is not run]
        count = len(run.pages) if whole else 1
        self.policy.leaving(run, count)
        rest = len(run.pages) - count
        assert run.keys is not None
        run.pages, run.keys = run.pages[:rest], run.keys[:rest]
        if rest == 0:
            self.policy.forgotten(run)
        else:
            self.policy.add(run)
            self.candidates.append(run)

    @invariant()
    def candidates_are_counted(self) -> None:
        assert self.policy.num_candidates() == len(self.candidates)

    def teardown(self) -> None:
        assert {id(run) for run in drain(self.policy)} == {id(run) for run in self.candidates}
