from itertools import pairwise

import pytest

from interlock.core.scheduler import Share
from interlock.core.testing.scheduler_contract import (
    ChunkingContract,
    TrafficModel,
    a_decode,
    a_view,
    divided,
)
from interlock.plugins.scheduler import DecodeFirstConfig, PrefillFirstConfig
from interlock.plugins.scheduler.chunking import PATIENCE_STEPS, DecodeFirst, PrefillFirst


class TestPrefillFirst(ChunkingContract):
    def make(self):
        return PrefillFirst(PrefillFirstConfig())


class TestDecodeFirst(ChunkingContract):
    def make(self):
        return DecodeFirst(DecodeFirstConfig())


def prefill_first(**options):
    return PrefillFirst(PrefillFirstConfig(**options))


def decode_first(**options):
    return DecodeFirst(DecodeFirstConfig(**options))


def a_prompt(number, pending):
    return a_view(number, prompt_tokens=pending, total_tokens=pending, pending=pending)


def longest_gap(traffic, steps, watched):
    """The most steps from one token of the request to its next."""
    served = [step for step in range(steps) if watched in {s.id for s in traffic.step()}]
    edges = [-1, *served, steps]
    return max(later - earlier for earlier, later in pairwise(edges))


@pytest.mark.parametrize(
    ("policy", "bound_steps"),
    [
        (prefill_first(), 5),
        (prefill_first(max_prefill_steps=1), 2),
        (prefill_first(max_prefill_steps=9), 10),
        (decode_first(), 1),
    ],
    ids=["prefill_first", "prefill_first-1", "prefill_first-9", "decode_first"],
)
def test_the_gap_of_a_running_request_is_bounded_while_prompts_arrive_at_every_step(
    policy, bound_steps
):
    traffic = TrafficModel(policy, budget_tokens=16, decodes=[a_decode(0)], prompt_tokens=16)
    assert longest_gap(traffic, 200, watched=0) <= bound_steps
    assert traffic.finished_prompts > 50


@pytest.mark.parametrize("decodes", [15, 16, 40])
@pytest.mark.parametrize("policy", [prefill_first, decode_first])
def test_endless_decoding_does_not_starve_prompts(policy, decodes):
    running = [a_decode(number) for number in range(decodes)]
    traffic = TrafficModel(policy(), 16, running, prompt_tokens=16, most_prompts=1)
    for _ in range(200):
        traffic.step()
    assert traffic.finished_prompts >= 10
    assert traffic.longest_left_out <= 10


def test_prefill_first_takes_whole_prompts_in_order_then_decodes():
    prompts = [a_prompt(5, 6), a_prompt(6, 4), a_prompt(7, 7), a_prompt(8, 1)]
    shares = divided(prefill_first(), [a_decode(0), a_decode(1)], prompts, 12)
    assert shares == [Share(5, 6), Share(6, 4), Share(0, 1), Share(1, 1)]


def test_prefill_first_cuts_only_prompts_longer_than_the_budget():
    long = a_prompt(5, 25)
    policy = prefill_first()
    sizes = []
    while long.pending:
        (share,) = divided(policy, [], [long], 10)
        sizes.append(share.tokens)
        long.pending -= share.tokens
    assert sizes == [10, 10, 5]
    assert divided(policy, [], [a_prompt(1, 3), a_prompt(2, 25)], 10) == [Share(1, 3)]


def test_prefill_first_alternates_when_decodes_and_prompts_both_fill_the_budget():
    running = [a_decode(number) for number in range(100)]
    policy = prefill_first()
    firsts = [divided(policy, running, [a_prompt(500, 8)], 8)[0].id for _ in range(40)]
    kinds = "".join("p" if first == 500 else "d" for first in firsts)
    assert kinds == "pppp" + "dp" * 18


def test_decode_first_gives_every_decode_a_token_then_chunks_in_order():
    shares = divided(
        decode_first(), [a_decode(0), a_decode(1)], [a_prompt(5, 6), a_prompt(6, 9)], 12
    )
    assert shares == [Share(0, 1), Share(1, 1), Share(5, 6), Share(6, 4)]


def test_decode_first_keeps_its_share_for_prompts_and_rotates_decodes():
    running = [a_decode(number) for number in range(20)]
    policy = decode_first(min_prefill_share=0.25)
    prompt = a_prompt(500, 10_000)
    tokens = dict.fromkeys([*range(20), 500], 0)
    for _ in range(40):
        for share in divided(policy, running, [prompt], 10):
            tokens[share.id] += share.tokens
    assert tokens.pop(500) == 100  # a quarter of 40 budgets of 10, in steps of 2 and 3
    assert set(tokens.values()) == {15}  # 300 over 20


def test_a_share_below_one_token_adds_up_over_steps():
    policy = decode_first(min_prefill_share=0.25)
    given = [divided(policy, [a_decode(0)], [a_prompt(9, 50)], 1)[0].id for _ in range(8)]
    assert given == [0, 0, 0, 9, 0, 0, 0, 9]


def test_what_prompts_did_not_need_is_not_saved_up():
    policy = decode_first(min_prefill_share=0.5)
    running = [a_decode(number) for number in range(10)]
    for _ in range(20):
        divided(policy, running, [a_prompt(99, 1)], 10)
    decodes = [s for s in divided(policy, running, [a_prompt(99, 100)], 10) if s.id != 99]
    assert len(decodes) == 5


@pytest.mark.parametrize("policy", [prefill_first, decode_first])
def test_a_prompt_that_was_left_out_long_enough_overtakes_newcomers(policy):
    chunking, old = policy(), a_prompt(1, 8)
    steps = 0
    while 1 not in {s.id for s in divided(chunking, [], [a_prompt(100 + steps, 8), old], 8)}:
        steps += 1
    assert steps == PATIENCE_STEPS
