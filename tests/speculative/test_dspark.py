"""DSpark's search: what it takes, and whether what is emitted still follows the target's law.

Two requests share a step. Every outcome of their drafts, of the policy and of the ratio rule is
enumerated with its probability; the joint law of what they emit must be that of two targets alone.
"""

import itertools
import sys

import numpy as np
import pytest

from interlock.core.assemble import assemble
from interlock.core.batch import Draft
from interlock.core.draft_length import DraftRound
from interlock.core.errors import InterlockError
from interlock.core.request import Request, SamplingParams
from interlock.core.testing.draft_length_contract import DraftLengthContract
from interlock.plugins.speculative.lengths.calibration import Calibration
from interlock.plugins.speculative.lengths.dspark import DSpark, search
from interlock.plugins.speculative.lengths.options import DSparkConfig

DEPTH = 2
STEEP = {2: 1.0, 3: 1.25, 4: 1.25, 5: 1.6, 6: 1.6}
"""Seconds by rows, with cliffs: here what looks best last differs from what looked best before."""


class TestDSpark(DraftLengthContract):
    def make(self):
        return DSpark(DSparkConfig(probe=4))


class TestDSparkGlobal(DraftLengthContract):
    def make(self):
        return DSpark(DSparkConfig(search="global", probe=4))


def test_candidates_are_taken_while_they_pay():
    survival = [(0.9, 0.8), (0.5, 0.1)]
    flat, linear = (lambda rows: 1.0), float
    assert search(survival, 2, flat, 99, stops=True) == [2, 2]
    assert search(survival, 2, linear, 99, stops=True) == [0, 0]
    gently = lambda rows: 10.0 + rows  # noqa: E731  # 12 seconds without drafts, 1 a row
    assert search(survival, 2, gently, 99, stops=True) == [2, 1]
    assert search(survival, 2, gently, 99, stops=False) == [2, 1]
    assert search(survival, 2, gently, 1, stops=True) == [1, 0]


def test_the_early_stop_halts_at_a_cliff_that_the_global_search_crosses():
    cliff = lambda rows: 1.0 if rows < 2 else 1.9  # noqa: E731
    survival = [(0.8, 0.8, 0.8)]
    assert search(survival, 1, cliff, 99, stops=True) == [0]
    assert search(survival, 1, cliff, 99, stops=False) == [3]


def laws(seed, temperature=2.0):
    """Of two requests, target and draft laws over two tokens after every prefix."""
    generator = np.random.default_rng(seed)
    made = {}
    for request in range(2):
        for depth in range(DEPTH + 1):
            for prefix in itertools.product(range(2), repeat=depth):
                pair = generator.normal(size=(2, 2)) * temperature
                pair = np.exp(pair) / np.exp(pair).sum(1, keepdims=True)
                made[request, prefix] = pair
    return made


def estimates(made, request, drawn, anticipating):
    """The true acceptance of each candidate, before it is drawn (or, wrongly, after)."""
    found = []
    for depth in range(DEPTH):
        target, draft = made[request, drawn[:depth]]
        token = drawn[depth]
        chance = np.minimum(target, draft).sum()
        found.append(min(1.0, target[token] / draft[token]) if anticipating else chance)
    return np.cumprod(found).tolist()


def emitted(made, request, drawn, kept, rule):
    """Law of the DEPTH + 1 tokens that come of a draft cut to `kept`, the rest being decoded."""
    total = {}

    def finish(prefix, weight):
        if weight <= 0:
            return
        if len(prefix) == DEPTH + 1:
            total[prefix] = total.get(prefix, 0.0) + weight
            return
        target = made[request, prefix][0]
        for token in range(2):
            finish((*prefix, token), weight * target[token])

    def walk(depth, weight):
        prefix = drawn[:depth]
        target, draft = made[request, prefix]
        if depth == kept:
            for token in range(2):
                finish((*prefix, token), weight * target[token])
            return
        token = drawn[depth]
        accept, rest = rule(target, draft, token)
        walk(depth + 1, weight * accept)
        for other in range(2):
            finish((*prefix, other), weight * (1 - accept) * rest[other])

    walk(0, 1.0)
    return total


def ratio(target, draft, token):
    rest = np.maximum(target - draft, 0)
    return min(1.0, target[token] / draft[token]), rest / rest.sum() if rest.sum() else target


def target_only(target, draft, token):
    rest = target.copy()
    rest[token] = 0
    return target[token], rest / rest.sum()


def error(made, rule, *, stops, anticipating=False, room=99):
    """Largest difference between the joint law of what both emit and that of plain decoding."""
    joint = {}
    for first in itertools.product(range(2), repeat=DEPTH):
        for second in itertools.product(range(2), repeat=DEPTH):
            weight, drafts = 1.0, (first, second)
            for request, drawn in enumerate(drafts):
                for depth in range(DEPTH):
                    weight *= made[request, drawn[:depth]][1][drawn[depth]]
            survival = [estimates(made, r, drafts[r], anticipating) for r in range(2)]
            kept = search(survival, 2, STEEP.__getitem__, room, stops=stops)
            outcomes = [emitted(made, r, drafts[r], kept[r], rule) for r in range(2)]
            for a, p in outcomes[0].items():
                for b, q in outcomes[1].items():
                    joint[a, b] = joint.get((a, b), 0.0) + weight * p * q
    alone = [emitted(made, r, (0,) * DEPTH, 0, rule) for r in range(2)]
    pairs = itertools.product(alone[0], alone[1])
    return max(abs(joint.get((a, b), 0) - alone[0][a] * alone[1][b]) for a, b in pairs)


SEEDS = range(12)


@pytest.mark.parametrize("room", [99, 2, 1])
def test_the_early_stop_is_exact_with_the_ratio_rule(room):
    assert max(error(laws(seed), ratio, stops=True, room=room) for seed in SEEDS) <= 4e-16


def test_the_global_search_biases_the_ratio_rule_and_not_the_target_only_rule():
    assert max(error(laws(seed), ratio, stops=False) for seed in SEEDS) > 0.005
    assert max(error(laws(seed), target_only, stops=False) for seed in SEEDS) <= 4e-16


def test_estimates_made_after_the_draw_bias_even_the_early_stop():
    assert max(error(laws(seed), ratio, stops=True, anticipating=True) for seed in SEEDS) > 0.01


def test_the_global_search_is_refused_with_a_verifier_that_it_biases():
    drafts = ["executor=fixed", "spec=ngram", "spec/length=dspark"]
    assemble([*drafts, "spec.length.search=global"])
    with pytest.raises(InterlockError, match="decides by the drafter's estimates"):
        assemble(["model=tiny-gqa", "spec=ngram", "spec/length=dspark"])
    with pytest.raises(InterlockError, match=r"spec\.length\.search=global"):
        assemble([*drafts, "spec.length.search=global", "spec/verifier=ratio"])


def test_estimates_are_corrected_for_each_place_and_temperature():
    calibration, generator = Calibration(), np.random.default_rng(0)
    draft = Draft((1, 2), confidence=(0.95, 0.8))
    for _ in range(3000):
        for temperature, chances in ((0.0, (0.95, 0.95)), (1.0, (0.7, 0.8))):
            kept = 0
            while kept < 2 and generator.random() < chances[kept]:
                kept += 1
            calibration.observe([DraftRound(draft, tuple(range(kept)), temperature)])
    assert calibration.chances(draft, 0.0) == pytest.approx([0.95, 0.95], abs=0.03)
    assert calibration.chances(draft, 1.0) == pytest.approx([0.7, 0.8], abs=0.04)
    assert calibration.chances(draft, 0.3) == [0.95, 0.8]  # nothing known of such requests


def test_temperatures_that_requests_choose_take_no_more_memory_and_break_nothing():
    calibration, draft = Calibration(), Draft((5,), confidence=(0.7,))
    for temperature in (2.0, 2.5, 70.0, 1e300, sys.float_info.max):
        calibration.observe([DraftRound(draft, (0,), temperature)])
        assert len(calibration.chances(draft, temperature)) == 1
    assert len(calibration._places) == 1


@pytest.mark.parametrize("search", ["early_stop", "global"])
def test_on_a_virtual_clock_rows_that_do_not_pay_are_not_verified(search):
    counts = {}
    for row_ms in (0.01, 3):
        engine = assemble(
            [
                "executor=fixed", "spec=ngram", "spec/length=dspark",
                f"spec.length.search={search}", "spec.num_drafts=4", "executor.acceptance=0.6",
                f"executor.token_ms={row_ms}", "executor.draft_ms=0.1", "progress=false",
            ]
        )  # fmt: skip
        for index in range(4):
            sampling = SamplingParams(max_tokens=150, ignore_eos=True)
            engine.submit(Request(index, (1, 2, index), sampling))
        for _ in engine.outputs():
            pass
        ledger = engine.core.ledger
        ledger.check()
        counts[row_ms] = ledger.cut / sum(ledger.offered_by_depth)
    assert counts[0.01] < 0.15
    assert counts[3] > 0.7
