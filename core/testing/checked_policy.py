"""An eviction policy beside a look at all its candidates."""

from collections.abc import Callable
from typing import Any

from interlock.core.eviction import EvictionPolicy
from interlock.core.prefix_index import Run
from interlock.core.retention import DEFAULT_PRIORITY, NO_END, RETAIN_S

Law = Callable[[Run, float], Any]
"""(run, now in seconds) -> anything comparable: the candidate with the least of it goes first."""


def _priority(run: Run, now_s: float) -> tuple[int, float]:
    holds = run.last_used_s + run.state.get(RETAIN_S, NO_END) > now_s
    return (run.priority if holds else DEFAULT_PRIORITY), run.last_used_s


LAWS: dict[str, Law] = {
    "lru": lambda run, _now_s: run.last_used_s,
    "ttl": lambda run, _now_s: run.last_used_s,
    "fifo": lambda run, _now_s: run.created_s,
    "lfu": lambda run, _now_s: (run.uses, run.last_used_s),
    "length_aware": lambda run, _now_s: (run.uses, -run.depth_pages - len(run.pages)),
    "priority": _priority,
}
"""By the name of a policy with its default options, where the law is one line."""


class CheckedPolicy(EvictionPolicy):
    """A policy whose every choice is compared with all candidates it was told of."""

    def __init__(self, policy: EvictionPolicy, law: Law | None = None) -> None:
        self.policy, self.law = policy, law
        self.wants_identity = policy.wants_identity
        self._candidates: dict[int, Run] = {}
        self._now_s = 0.0

    def add(self, run: Run) -> None:
        """See EvictionPolicy."""
        assert id(run) not in self._candidates, "a candidate was added again"
        self._candidates[id(run)] = run
        self.policy.add(run)

    def discard(self, run: Run) -> None:
        """See EvictionPolicy."""
        self._candidates.pop(id(run), None)
        self.policy.discard(run)

    def choose(self) -> Run | None:
        """See EvictionPolicy."""
        chosen = self.policy.choose()
        if chosen is None:
            assert not self._candidates, "a policy with candidates chose none"
            return None
        assert id(chosen) in self._candidates, "a policy chose what is no candidate"
        if self.law is not None:
            ranks = {key: self.law(run, self._now_s) for key, run in self._candidates.items()}
            assert ranks[id(chosen)] == min(ranks.values()), "another candidate had to go first"
        del self._candidates[id(chosen)]
        return chosen

    def expired(self, now_s: float) -> Run | None:
        """See EvictionPolicy."""
        self._now_s = now_s
        gone = self.policy.expired(now_s)
        if gone is not None:
            assert self._candidates.pop(id(gone), None) is gone, "what expired is no candidate"
        return gone

    def num_candidates(self) -> int:
        """See EvictionPolicy."""
        assert self.policy.num_candidates() == len(self._candidates), "candidates are miscounted"
        return len(self._candidates)

    def entered(self, run: Run, count: int) -> None:
        """See EvictionPolicy."""
        self.policy.entered(run, count)

    def used(self, run: Run) -> None:
        """See EvictionPolicy."""
        self.policy.used(run)

    def leaving(self, run: Run, count: int) -> None:
        """See EvictionPolicy."""
        self.policy.leaving(run, count)

    def forgotten(self, run: Run) -> None:
        """See EvictionPolicy."""
        self.policy.forgotten(run)
