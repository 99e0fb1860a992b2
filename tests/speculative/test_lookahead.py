"""Lookahead decoding: its window is a Jacobi iteration, its drafts never change an output."""

import numpy as np
import pytest

from interlock.core.errors import ConfigError
from interlock.core.request import RequestId
from interlock.core.testing.drafter_contract import TokenDrafterContract
from interlock.plugins.speculative.host.lookahead import LookaheadDrafter
from interlock.plugins.speculative.host.options import LookaheadConfig
from interlock.plugins.speculative.lengths.options import FixedLengthConfig, GoodputConfig
from tests.engine.serving import asking, build, outputs, serve, solo, tokens


class TestLookahead(TokenDrafterContract):
    remembers = True

    def make(self):
        return LookaheadDrafter(LookaheadConfig(window=3, ngram=3, guesses=2))


def after(token):
    """A target whose next token is a function of the last one, in cycles of 16."""
    return (5 * token + 3) % 16


def draws_of(anchor, draft):
    return [after(token) for token in (anchor, *draft.tokens)]


def accepted(anchor, draft):
    """Tokens that target-only verification gives."""
    path, node, given = [], -1, after(anchor)
    for candidate, token in enumerate(draft.tokens):
        if draft.parents[candidate] == node and token == given:
            path.append(token)
            node, given = candidate, after(token)
    return [*path, given]


def paths(draft):
    found = []
    for node, parent in enumerate(draft.parents):
        found.append((*(found[parent] if parent >= 0 else ()), draft.tokens[node]))
    return found


def test_columns_of_the_window_become_ngrams_of_the_target():
    config = LookaheadConfig(window=4, ngram=3, guesses=3)
    drafter, text, steps = LookaheadDrafter(config), [1], 0
    while len(text) < 200:
        draft = drafter.propose(RequestId(0), np.array(text), 99)
        assert len(draft.tokens) <= drafter.num_drafts
        drafter.verified(RequestId(0), draft, draws_of(text[-1], draft))
        text += accepted(text[-1], draft)
        steps += 1
    right = [1]
    while len(right) < len(text):
        right.append(after(right[-1]))
    assert text == right
    state = drafter._of[RequestId(0)]
    for first, ngrams in state.ngrams.items():
        for ngram in ngrams:
            assert ngram == (after(first), after(after(first)))
    assert len(text) / steps > 2.5  # once all n-grams of the cycle are known: 3 tokens a step


def test_a_window_level_extends_each_column_by_one_token():
    config = LookaheadConfig(window=3, ngram=4, guesses=1)
    drafter = LookaheadDrafter(config)
    text = np.array([7, 1, 2])
    first = drafter.propose(RequestId(0), text, 99)
    assert paths(first) == [(7,), (7, 1), (7, 1, 2)]
    drafter.verified(RequestId(0), first, [50, 61, 62, 63])
    second = drafter.propose(RequestId(0), text, 99)
    assert paths(second)[3:] == [(7, 61), (7, 1, 62), (7, 1, 2, 63)]
    drafter.verified(RequestId(0), second, [0, 0, 0, 0, 71, 72, 73])
    third = drafter.propose(RequestId(0), text, 99)
    assert paths(third)[6:] == [(7, 61, 71), (7, 1, 62, 72), (7, 1, 2, 63, 73)]
    drafter.verified(RequestId(0), third, [0] * 7 + [81, 82, 83])
    fourth = drafter.propose(RequestId(0), text, 99)
    assert drafter._of[RequestId(0)].ngrams == {
        7: [(61, 71, 81)], 1: [(62, 72, 82)], 2: [(63, 73, 83)]
    }  # fmt: skip
    assert paths(fourth)[:3] == [(63,), (63, 73), (63, 73, 83)]  # after the text's last token
    assert paths(fourth)[3:6] == [(61,), (61, 62), (61, 62, 63)]


def test_a_cut_draft_moves_nothing_on_and_breaks_nothing():
    drafter = LookaheadDrafter(LookaheadConfig(window=3, ngram=3, guesses=2))
    text = np.array([1, 2, 3])
    whole = drafter.propose(RequestId(0), text, 99)
    cut = drafter.propose(RequestId(0), text, 2)
    assert cut == whole.first(2)
    drafter.verified(RequestId(0), cut, draws_of(3, cut))
    assert drafter.propose(RequestId(0), text, 99) == whole


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_outputs_are_those_without_drafts(model_of, page_size, temperature):
    requests = [
        asking(0, tokens(7, salt=3), 30, temperature=temperature, ignore_eos=True),
        asking(1, tokens(13, salt=2), 20, temperature=temperature),
        asking(2, tokens(5, salt=4), 25, temperature=temperature, ignore_eos=True),
    ]
    right = solo(model_of(), requests)
    spec = LookaheadConfig(window=4, ngram=3, guesses=3)
    engine = build(model_of(), spec=spec, page_size=page_size)
    assert outputs(serve(engine, *requests)) == right
    assert engine.core.ledger.drafted > 0
    small = build(model_of(), spec=spec, page_size=page_size, budget_tokens=9, num_pages=48)
    assert outputs(serve(small, *requests)) == right


def test_a_window_that_no_step_could_hold_is_refused(model_of):
    spec = LookaheadConfig(window=4, ngram=3)
    with pytest.raises(ConfigError, match=r"= 9 tokens .* but scheduler.budget_tokens=8: set at"):
        build(model_of(), spec=spec, budget_tokens=8)
    build(model_of(), spec=spec, budget_tokens=9)


def test_a_text_that_runs_in_circles_is_accepted_in_ngrams(model_of):
    request = asking(0, tokens(8), 60, ignore_eos=True)
    engine = build(model_of(positions=128), spec=LookaheadConfig(window=6, ngram=3, guesses=4))
    record = serve(engine, request)[0]
    assert record.output_token_ids == solo(model_of(positions=128), [request])[0]
    assert record.accepted_tokens > 0


@pytest.mark.parametrize(
    "length", [FixedLengthConfig(num=1), GoodputConfig()], ids=lambda c: c.name
)
def test_a_length_policy_chooses_all_of_a_window_or_nothing(model_of, length):
    request = asking(0, tokens(8), 60, ignore_eos=True)
    spec = LookaheadConfig(window=6, ngram=3, guesses=4)
    engine = build(model_of(positions=128), spec=spec, length=length)
    record = serve(engine, request)[0]
    assert record.output_token_ids == solo(model_of(positions=128), [request])[0]
    assert record.drafted_tokens >= 12 * record.draft_rounds > 0, "windows of 6 x 2 were cut"


def test_every_option_that_is_out_of_range_is_named():
    with pytest.raises(ConfigError) as error:
        LookaheadConfig(window=0, ngram=1, guesses=0)
    for name in ("window=0", "ngram=1", "guesses=0"):
        assert name in str(error.value)
