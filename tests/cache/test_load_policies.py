"""Which pages are loaded: by estimates that follow what was measured, against stated limits."""

import dataclasses
from itertools import pairwise

import pytest

from interlock.core.load_policy import LoadOffer
from interlock.core.testing.load_contract import (
    LoadPolicyContract,
    NoStoreContract,
    PricedTierContract,
)
from interlock.core.transfers import Moved
from interlock.plugins.cache.load.cost import FIRST_PROBE, ByCost
from interlock.plugins.cache.load.estimates import Estimates, Line
from interlock.plugins.cache.load.simple import Always, Never, no_tier
from interlock.plugins.cache.tiering import PricedConfig
from interlock.plugins.cache.tiers.priced import Priced

OFFER = LoadOffer(
    tiers=(0,) * 60, page_size=16, payload_bytes=1 << 20, pending_tokens=1000,
    budget_tokens=2048, backlog_tokens=0, queued=(0,), behind=0, waited_s=0.0, limit_s=None,
    timeout_s=10.0,
)  # fmt: skip
TOKEN_S, STEP_S = 1e-3, 5e-3


def taught(page_s, start_s=0.0, policy=None):
    """A policy that has seen steps at the prices above and loads from tier 0 at these."""
    policy = policy or ByCost()
    for tokens in (1, 64, 500, 2048):
        policy.stepped(tokens, STEP_S + tokens * TOKEN_S)
    for pages in (1, 5, 20):
        policy.loaded([0] * pages, [Moved(0, pages, start_s + pages * page_s)], 0.0)
    return policy


@pytest.mark.parametrize(("start", "slope"), [(0.0, 1.0), (2.0, 0.5), (3.0, 0.0)])
def test_a_line_is_found_exactly(start, slope):
    line = Line()
    for amount in (1.0, 4.0, 9.0):
        line.see(amount, start + slope * amount)
    assert line.fit() == pytest.approx((start, slope), abs=1e-9)


def test_one_amount_alone_gives_a_line_through_the_origin():
    line = Line()
    line.see(4.0, 2.0)
    line.see(4.0, 2.0)
    assert line.fit() == pytest.approx((0.0, 0.5))


@pytest.mark.parametrize("points", [[(1, 5.0), (10, 1.0)], [(1, 0.0), (2, 9.0), (3, 20.0)]])
def test_a_line_never_falls_nor_starts_below_zero(points):
    line = Line()
    for amount, seconds in points:
        line.see(amount, seconds)
    start, slope = line.fit()
    assert start >= 0.0
    assert slope >= 0.0


def test_new_measurements_outweigh_old_ones():
    estimates = Estimates()
    for _ in range(50):
        estimates.stepped(100, 1.0)
    for _ in range(200):
        estimates.stepped(100, 3.0)
    assert estimates.compute_s(100, 2048) == pytest.approx(3.0, rel=0.05)


def test_always_loads_everything_and_never_nothing():
    assert Always().choose(OFFER) == 60
    assert Never().choose(OFFER) == 0


@pytest.mark.parametrize("page_s", [1e-4, 8e-3, 15e-3, 17e-3, 32e-3, 1.0])
def test_the_cheaper_of_loading_and_computing_is_chosen(page_s):
    loads = page_s < 16 * TOKEN_S
    assert taught(page_s).choose(OFFER) == (60 if loads else 0)


def test_what_was_never_measured_is_tried():
    policy = ByCost()
    policy.stepped(100, 0.1)
    assert policy.choose(OFFER) == 60


def test_the_part_in_the_faster_tier_is_loaded_and_the_rest_computed():
    policy = taught(1e-4)
    policy.loaded([1] * 4, [Moved(1, 4, 4.0)], 4.0)
    offer = dataclasses.replace(OFFER, tiers=(0,) * 25 + (1,) * 35, queued=(0, 0))
    assert policy.choose(offer) == 25
    assert policy.facts()["splits"] == 1


def test_no_more_is_loaded_than_the_timeout_allows():
    policy = taught(10e-3)
    pages = policy.choose(dataclasses.replace(OFFER, timeout_s=0.305))
    assert pages == 30


def test_a_queue_before_the_tier_makes_computing_cheaper():
    policy = taught(10e-3)
    assert policy.choose(OFFER) == 60
    assert policy.choose(dataclasses.replace(OFFER, queued=(100,))) == 0


def test_prompts_that_compute_first_hide_a_load():
    policy = taught(20e-3)
    assert policy.choose(OFFER) == 0
    assert policy.choose(dataclasses.replace(OFFER, backlog_tokens=3000)) == 60


def test_requests_behind_make_loading_worth_more():
    policy = taught(20e-3)
    assert policy.choose(dataclasses.replace(OFFER, behind=3)) == 60


def test_what_meets_the_latency_limit_goes_before_what_is_cheaper_for_others():
    policy = taught(20e-3)
    offer = dataclasses.replace(OFFER, behind=3, limit_s=1.1)
    assert policy.choose(offer) == 0


def test_after_many_computed_prompts_one_page_is_loaded_to_see():
    policy = taught(1.0)
    chosen = [policy.choose(OFFER) for _ in range(7 * FIRST_PROBE + 7)]
    probes = [i for i, pages in enumerate(chosen) if pages]
    assert {chosen[i] for i in probes} == {1}
    gaps = [b - a for a, b in pairwise([-1, *probes])]
    assert gaps == [FIRST_PROBE, 2 * FIRST_PROBE, 4 * FIRST_PROBE]


def test_regret_is_what_the_other_choice_would_have_saved():
    always, never = taught(1e-3, policy=Always()), taught(1e-3, policy=Never())
    before = always.facts()["regret_of_loading_s"]
    always.choose(OFFER)
    always.loaded([0] * 60, [Moved(0, 60, 5.0)], 5.0)
    lost = always.facts()["regret_of_loading_s"] - before
    assert lost == pytest.approx(5.0 - (STEP_S + 960 * TOKEN_S), rel=0.01)
    never.choose(OFFER)
    saved = 60 * 16 * TOKEN_S - 60 * 1e-3
    assert never.facts()["regret_of_computing_s"] == pytest.approx(saved, rel=0.01)


class TestAlways(LoadPolicyContract):
    def make(self):
        return Always()


class TestNever(LoadPolicyContract):
    def make(self):
        return Never()


class TestCost(LoadPolicyContract):
    def make(self):
        return ByCost()


class TestPriced(PricedTierContract):
    def make(self):
        return Priced(PricedConfig(capacity_mib=1), 1 << 16)


class TestNoTier(NoStoreContract):
    def make(self):
        return no_tier
