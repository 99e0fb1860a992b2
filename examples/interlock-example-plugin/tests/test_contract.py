"""The policy keeps Interlock's contract, and its order is the one it promises."""

import math
import random

import pytest
from interlock_example_lrfu import LRFUConfig
from interlock_example_lrfu.policy import LRFUEviction

from interlock.core.eviction import EvictionPolicy
from interlock.core.testing.eviction_contract import EvictionContract, a_run, drain


class TestLRFUEviction(EvictionContract):
    def make(self) -> EvictionPolicy:
        return LRFUEviction()


class TestLRFUEvictionWithoutFading(EvictionContract):
    def make(self) -> EvictionPolicy:
        return LRFUEviction(half_life_s=math.inf, min_uses=0)


@pytest.mark.parametrize("half_life_s", [0.5, 10.0, math.inf])
def test_order_is_that_of_the_faded_use_counts(half_life_s: float) -> None:
    draw = random.Random(3)
    policy = LRFUEviction(half_life_s, min_uses=0)
    weights = {}
    for number in range(60):
        times = sorted(draw.uniform(0, 30) for _ in range(draw.randint(1, 6)))
        run = a_run(number, created_s=times[0])
        for time in times[1:]:
            run.last_used_s = time
            run.uses += 1
            policy.used(run)
        policy.add(run)
        faded = sum(2 ** ((time - 30) / half_life_s) for time in times)
        weights[number] = (faded, run.last_used_s)
    order = [int(run.pages[0]) for run in drain(policy)]
    assert order == sorted(weights, key=weights.__getitem__)


def test_run_used_too_few_times_goes_before_an_old_favourite() -> None:
    policy = LRFUEviction(half_life_s=1.0, min_uses=2)
    favourite = a_run(0, created_s=0.0, uses=5)
    seen_once = a_run(1, created_s=100.0, uses=1)
    policy.add(favourite)
    policy.add(seen_once)
    assert drain(policy) == [seen_once, favourite]


@pytest.mark.parametrize("options", [{"half_life_s": 0.0}, {"min_uses": -1}])
def test_option_out_of_range_is_named_with_its_value(options: dict[str, float]) -> None:
    (name,) = options
    with pytest.raises(ValueError, match=f"{name}={options[name]}"):
        LRFUConfig(**options)
