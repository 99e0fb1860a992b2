"""The contracts of the four scheduler policies."""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.core.request import RequestId
from interlock.core.scheduler import (
    AdmissionPolicy,
    ChunkingPolicy,
    Decodes,
    Load,
    OrderPolicy,
    RequestView,
    Share,
    VictimPolicy,
)


def a_view(number: int, **changes: object) -> RequestView:
    """A waiting request of 10 prompt tokens, with some fields changed."""
    view = RequestView(
        id=RequestId(number), arrival_s=float(number), priority=0, tenant="", prompt_tokens=10,
        total_tokens=10, pending=10, admission=None, pages=0, preemptions=0,
    )  # fmt: skip
    return replace(view, **changes)  # type: ignore[arg-type]  # names are checked when it runs


def a_decode(number: int) -> RequestView:
    """A running request that waits for its next token."""
    return a_view(number, total_tokens=15, pending=1, admission=number, pages=1)


@st.composite
def views(draw: st.DrawFn, admitted: bool, least: int = 0) -> list[RequestView]:
    """Requests in any state, each with its own id."""
    return [
        a_view(
            number,
            arrival_s=draw(st.sampled_from([0.0, 0.5, 2.0])),
            priority=draw(st.integers(-2, 2)),
            pending=draw(st.integers(1, 10)),
            admission=number if admitted else None,
            pages=draw(st.integers(1, 5)) if admitted else 0,
            preemptions=draw(st.integers(0, 3)),
        )
        for number in draw(st.permutations(range(draw(st.integers(least, 8)))))
    ]


class OrderContract:
    """Every promise of `OrderPolicy`."""

    def make(self) -> OrderPolicy:
        """A fresh policy."""
        raise NotImplementedError

    def test_any_requests_can_be_sorted(self) -> None:
        @settings(max_examples=50, deadline=None)
        @given(views(admitted=False))
        def check(waiting: list[RequestView]) -> None:
            policy = self.make()
            before = [copy(view) for view in waiting]
            keys = [policy.key(view) for view in waiting]
            assert sorted(keys) == sorted(reversed(keys))
            assert waiting == before

        check()

    def test_the_key_is_fixed_while_a_request_waits(self) -> None:
        policy = self.make()
        waiting = a_view(3, priority=1)
        key = policy.key(waiting)
        policy.key(a_view(4))
        assert policy.key(replace(waiting, pending=2)) == key  # another request made its prefix


class AdmissionContract:
    """Every promise of `AdmissionPolicy`."""

    def make(self) -> AdmissionPolicy:
        """A fresh policy."""
        raise NotImplementedError

    @pytest.mark.parametrize("needed_pages", [1, 7, 8])
    def test_a_request_that_fits_the_empty_engine_starts_before_long(
        self, needed_pages: int
    ) -> None:
        policy = self.make()
        loads = [Load(float(now_s), 0, 8, 8, needed_pages) for now_s in range(100)]
        assert any(policy.admit(a_view(0), load) for load in loads)

    def test_asking_changes_nothing_about_the_request(self) -> None:
        view = a_view(0)
        answer = self.make().admit(view, Load(0.0, 2, 3, 8, 4))
        assert isinstance(answer, bool)
        assert view == a_view(0)


class VictimContract:
    """Every promise of `VictimPolicy`."""

    def make(self) -> VictimPolicy:
        """A fresh policy."""
        raise NotImplementedError

    def test_the_victim_is_one_of_the_candidates(self) -> None:
        @settings(max_examples=50, deadline=None)
        @given(views(admitted=True, least=1))
        def check(candidates: list[RequestView]) -> None:
            before = [copy(view) for view in candidates]
            assert self.make().choose(candidates) in {view.id for view in candidates}
            assert candidates == before

        check()


@dataclass
class TrafficModel:
    """An engine without memory limits under endless traffic, for chunking policies.

    Every step brings a prompt of `prompt_tokens` while fewer than `most_prompts` wait. It becomes
    a decode when it is computed, and that decode ends after `output_tokens` tokens. `decodes` are
    requests that never end. With `newest_first` the order policy prefers newcomers.
    """

    policy: ChunkingPolicy
    budget_tokens: int
    decodes: list[RequestView]
    prompt_tokens: int
    most_prompts: int = 6
    output_tokens: int = 3
    newest_first: bool = False
    prefills: list[RequestView] = field(default_factory=list)
    left_out: dict[RequestId, int] = field(default_factory=dict)
    longest_left_out: int = 0
    finished_prompts: int = 0

    def step(self) -> list[Share]:
        """Divide one budget, check the shares, and compute them."""
        if len(self.prefills) < self.most_prompts:
            number = 1000 + self.finished_prompts + len(self.prefills)
            size = self.prompt_tokens
            self.prefills.append(
                a_view(number, prompt_tokens=size, total_tokens=size, pending=size)
            )
        order = -1 if self.newest_first else 1
        decodes, prefills = self.decodes[::order], self.prefills[::order]
        shares = divided(self.policy, decodes, prefills, self.budget_tokens)
        check_shares(shares, [*decodes, *prefills], self.budget_tokens)
        present = {view.id for view in [*decodes, *prefills]}
        served = {share.id: share.tokens for share in shares}
        self.left_out = {id: 0 if id in served else self.left_out.get(id, 0) + 1 for id in present}
        self.longest_left_out = max(self.longest_left_out, *self.left_out.values())
        self._compute(served)
        return shares

    def _compute(self, served: dict[RequestId, int]) -> None:
        for view in [*self.decodes]:
            view.total_tokens += view.id in served
            ended = view.total_tokens - view.prompt_tokens > self.output_tokens
            if view.id >= 1000 and ended:
                self.decodes.remove(view)
        for view in [*self.prefills]:
            view.pending -= served.get(view.id, 0)
            if view.pending == 0:
                view.pending, view.total_tokens = 1, view.total_tokens + 1
                self.prefills.remove(view)
                self.decodes.append(view)
                self.finished_prompts += 1


def divided(
    policy: ChunkingPolicy,
    decodes: Sequence[RequestView],
    prefills: Sequence[RequestView],
    budget_tokens: int,
) -> list[Share]:
    """What the policy gives out, in order of importance; a decode's share is one token."""
    views = {view.id: view for view in decodes}
    asked = Decodes(np.array(list(views), dtype=np.int64), views.__getitem__)
    found = policy.divide(asked, prefills, budget_tokens)
    tokens = [Share(RequestId(id), 1) for id in np.asarray(found.decodes).tolist()]
    assert {share.id for share in tokens} <= set(views), "a token for somebody else"
    assert not {share.id for share in found.shares} & set(views), "a share for a decode"
    return [*found.shares, *tokens] if found.shares_first else [*tokens, *found.shares]


def check_shares(
    shares: Sequence[Share], requests: Sequence[RequestView], budget_tokens: int
) -> None:
    """Assert what every division owes to the core."""
    pending = {view.id: view.pending for view in requests}
    assert len({share.id for share in shares}) == len(shares), "a request has two shares"
    assert all(1 <= share.tokens <= pending[share.id] for share in shares)
    assert sum(share.tokens for share in shares) <= budget_tokens
    assert shares or not requests, "nobody got a share"


class ChunkingContract:
    """Every promise of `ChunkingPolicy`."""

    patience_steps: int = 200
    """Steps after which a request counts as left out for ever in the traffic used here."""

    def make(self) -> ChunkingPolicy:
        """A fresh policy."""
        raise NotImplementedError

    def test_shares_stay_within_the_budget_and_somebody_always_gets_one(self) -> None:
        @settings(max_examples=60, deadline=None)
        @given(views(admitted=True), st.integers(0, 12), st.lists(st.integers(1, 20), max_size=6))
        def check(prefills: list[RequestView], decodes: int, budgets: list[int]) -> None:
            policy = self.make()
            running = [a_decode(100 + number) for number in range(decodes)]
            before = [copy(view) for view in [*running, *prefills]]
            for budget_tokens in budgets:
                shares = divided(policy, running, prefills, budget_tokens)
                check_shares(shares, before, budget_tokens)
            assert [*running, *prefills] == before

        check()

    def test_nobody_is_left_out_for_ever(self) -> None:
        @settings(max_examples=20, deadline=None)
        @given(
            budget_tokens=st.integers(1, 20),
            decodes=st.integers(0, 24),
            prompt_tokens=st.integers(2, 40),
            newest_first=st.booleans(),
        )
        def check(budget_tokens: int, decodes: int, prompt_tokens: int, newest_first: bool) -> None:
            running = [a_decode(number) for number in range(decodes)]
            traffic = TrafficModel(
                self.make(), budget_tokens, running, prompt_tokens, newest_first=newest_first
            )
            for _ in range(2 * self.patience_steps):
                traffic.step()
            assert traffic.longest_left_out < self.patience_steps

        check()

    def test_a_lone_decode_and_a_lone_prompt_are_served_at_once(self) -> None:
        assert divided(self.make(), [a_decode(0)], [], 8) == [Share(RequestId(0), 1)]
        (share,) = divided(self.make(), [], [a_view(1)], 16)
        assert share.id == 1
        assert divided(self.make(), [], [], 8) == []
