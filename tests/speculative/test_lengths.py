"""Policies of draft length: each keeps the contract, and does what its rule says."""

import pytest

from interlock.conf.hydra_edge import compose
from interlock.core.batch import NO_TIMES, Draft
from interlock.core.draft_length import DraftRound, StepLoad, StepOutcome
from interlock.core.errors import ConfigError, InterlockError
from interlock.core.registry import load_registry
from interlock.core.testing.draft_length_contract import DraftLengthContract
from interlock.plugins.speculative.lengths.ema import Ema
from interlock.plugins.speculative.lengths.fixed import FixedLength
from interlock.plugins.speculative.lengths.goodput import Goodput
from interlock.plugins.speculative.lengths.options import (
    DSparkConfig,
    EmaConfig,
    GoodputConfig,
    ScheduleConfig,
    ThresholdConfig,
)
from interlock.plugins.speculative.lengths.schedule import Schedule
from interlock.plugins.speculative.lengths.threshold import Threshold

TABLE = ((1, 7), (8, 3), (32, 1), (64, 0))


class TestFixed(DraftLengthContract):
    def make(self):
        return FixedLength(3)


class TestSchedule(DraftLengthContract):
    def make(self):
        return Schedule(TABLE)


class TestEma(DraftLengthContract):
    def make(self):
        return Ema(EmaConfig(every=1, warmup=0, probe=2))


class TestGoodput(DraftLengthContract):
    def make(self):
        return Goodput(GoodputConfig(probe=2))


class TestThreshold(DraftLengthContract):
    def make(self):
        return Threshold(0.5, path=True)


class TestThresholdOfCandidates(DraftLengthContract):
    def make(self):
        return Threshold(0.5, path=False)


def load(decodes, drafts=1, room=1000):
    return StepLoad(decodes, False, room, [1.0] * drafts)


def finished(length, accepted, decodes=1, times=NO_TIMES):
    """A step in which every request verified `length` candidates and `accepted` were kept."""
    draft = Draft(tuple(range(length)))
    rounds = [DraftRound(draft, tuple(range(accepted)), 1.0)] * (decodes if length else 0)
    return StepOutcome(decodes, 0, rounds, decodes if length else 0, length, times)


def test_a_fixed_length_is_at_most_what_the_drafter_makes():
    assert [FixedLength(3).propose(most, 1) for most in (0, 2, 3, 9)] == [0, 2, 3, 3]
    assert [FixedLength(None).propose(most, 1) for most in (0, 9)] == [0, 9]


def test_a_schedule_gives_the_length_at_the_largest_number_of_requests_reached():
    policy = Schedule(TABLE)
    asked = [policy.propose(9, decodes) for decodes in (1, 7, 8, 31, 32, 63, 64, 500)]
    assert asked == [7, 7, 3, 3, 1, 1, 0, 0]
    assert policy.propose(2, 1) == 2
    drafts = [Draft((1, 2, 3, 4, 5)), Draft((1,))]
    assert policy.verify(drafts, load(8, 2)) == [3, 1]
    assert policy.verify(drafts, load(64, 2)) == [0, 0]


def test_a_threshold_cuts_before_the_first_doubtful_candidate():
    draft = Draft((1, 2, 3, 4), confidence=(0.9, 0.8, 0.5, 0.9))
    assert Threshold(0.6, path=False).verify([draft], load(1)) == [2]
    assert Threshold(0.73, path=True).verify([draft], load(1)) == [1]
    assert Threshold(0.0, path=True).verify([draft], load(1)) == [4]
    assert Threshold(1.0, path=False).verify([draft], load(1)) == [0]
    assert Threshold(0.9, path=True).verify([Draft((1, 2))], load(1)) == [2]


def test_a_threshold_follows_the_path_in_a_tree():
    tree = Draft((1, 2, 3), (-1, -1, 0), confidence=(0.9, 0.5, 0.8))
    assert Threshold(0.45, path=True).verify([tree], load(1)) == [3]  # 0.9, 0.5, 0.72
    assert Threshold(0.6, path=True).verify([tree], load(1)) == [1]


def test_an_average_of_accepted_candidates_steps_down_and_up_again():
    policy = Ema(EmaConfig(warmup=0))
    assert policy.propose(9, 1) == 7
    for _ in range(40):
        policy.observe(finished(policy.propose(9, 1), 0))
    assert policy.propose(9, 1) == 1  # 0 is not among the lengths of one request
    for _ in range(100):
        policy.observe(finished(policy.propose(9, 1), policy.propose(9, 1)))
    assert policy.propose(9, 1) == 7
    assert policy.propose(9, 8) == 3
    assert policy.propose(9, 64) == 0
    assert policy.propose(2, 1) == 2


def test_an_average_that_reached_0_tries_again_after_a_while():
    policy = Ema(EmaConfig(warmup=0, probe=20))
    for _ in range(60):
        policy.observe(finished(min(1, policy.propose(9, 8)), 0, decodes=8))
        if policy.propose(9, 8) == 0:
            break
    assert policy.propose(9, 8) == 0
    asked = []
    for _ in range(100):
        length = policy.propose(9, 8)
        asked.append(length)
        policy.observe(finished(length, length, decodes=8))
    assert asked[:20] == [0] * 20
    assert asked[20] == 1
    assert asked[-1] == 3


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: ScheduleConfig(at=((2, 3),)), "do not rise from 1"),
        (lambda: ScheduleConfig(at=()), r"at=\{\}: .*write \{1: ..., 8: ...\}"),
        (lambda: ScheduleConfig(at=((1, 3), (8, -1))), r"at=\{8: -1\} are no candidates"),
        (lambda: EmaConfig(tiers=((1, (3, 1)),)), r"tiers=\{1: \[3, 1\]\}"),
        (lambda: EmaConfig(weight=0), "weight=0"),
        (lambda: EmaConfig(every=0, probe=0), "every=0.*\n?.*probe=0"),
        (lambda: GoodputConfig(hysteresis=1.0), "hysteresis=1.0"),
        (lambda: GoodputConfig(memory=0, probe=1), "memory=0.*\n?.*probe=1"),
        (lambda: DSparkConfig(search="globl"), "globl.*global"),
        (lambda: ThresholdConfig(least=1.5, of="paht"), "least=1.5.*\n?.*paht"),
    ],
)
def test_options_that_make_no_sense_are_named(make, told):
    with pytest.raises(ConfigError, match=told):
        make()


def test_tables_are_given_as_mappings():
    config = compose(["spec/length=schedule", "spec.length.at={1:4,16:0}"], load_registry())
    assert config.choices["spec/length"].config.at == ((1, 4), (16, 0))
    config = compose(["spec/length=ema", "spec.length.tiers={1:[2,4],8:[0,1]}"], load_registry())
    assert config.choices["spec/length"].config.tiers == ((1, (2, 4)), (8, (0, 1)))


def test_policies_of_estimates_need_a_drafter_that_makes_them():
    from interlock.core.assemble import assemble

    with pytest.raises(InterlockError, match="decides by the drafter's estimates"):
        assemble(["model=tiny-gqa", "spec=ngram", "spec/length=threshold"])
    assemble(["executor=fixed", "spec=ngram", "spec/length=threshold"])
