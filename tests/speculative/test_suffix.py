"""Suffix decoding against a trie that is written out in full."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.core.errors import ConfigError
from interlock.core.request import RequestId
from interlock.core.testing.drafter_contract import TokenDrafterContract
from interlock.plugins.speculative.host.occurrences import Occurrences
from interlock.plugins.speculative.host.options import SuffixConfig
from interlock.plugins.speculative.host.suffix import SuffixDrafter
from tests.engine.serving import asking, build, outputs, serve, solo, tokens


class TestSuffix(TokenDrafterContract):
    remembers = True

    def make(self):
        return SuffixDrafter(SuffixConfig())


class TestSuffixTree(TokenDrafterContract):
    remembers = True

    def make(self):
        return SuffixDrafter(SuffixConfig(tree=True, min_prob=0.05))


def followers(texts, pattern):
    """What comes after each occurrence of a pattern, oldest first."""
    found = []
    for text in texts:
        for at in range(len(text) - len(pattern)):
            if text[at : at + len(pattern)] == pattern:
                found.append(text[at + len(pattern)])
    return found


def greedy_path(texts, pattern, most, min_prob):
    path, score, prob = [], 0.0, 1.0
    while len(path) < most:
        found = followers(texts, [*pattern, *path])
        if not found:
            break
        newest = {token: at for at, token in enumerate(found)}
        best = max(newest, key=lambda token: (found.count(token), newest[token]))
        share = found.count(best) / len(found)
        if prob * share < min_prob:
            break
        prob *= share
        score += prob
        path.append(best)
    return score, path


def expected(own, past, limit, config):
    """Of equal scores the own text's, then the longer match's."""
    best_score, best = 0.0, []
    for texts in ([own], past):
        source_score, source = 0.0, []
        for matched in range(1, min(len(own), config.max_depth) + 1):
            pattern = own[-matched:]
            if not followers(texts, pattern):
                break
            most = min(limit, int(matched * config.factor + config.offset + 1e-6))
            score, path = greedy_path(texts, pattern, most, config.min_prob)
            if path and score >= source_score:
                source_score, source = score, path
        if source_score > best_score:
            best_score, best = source_score, source
    return best


TEXT = st.lists(st.integers(0, 2), min_size=1, max_size=25)


@settings(max_examples=60, deadline=None)
@given(
    TEXT,
    st.lists(TEXT, max_size=4),
    st.integers(0, 6),
    st.sampled_from([(1.0, 0.0), (0.5, 1.0), (2.0, -1.0)]),
    st.sampled_from([0.0, 0.1, 0.4]),
)
def test_drafts_are_those_of_a_full_trie(own, past, limit, shape, min_prob):
    config = SuffixConfig(factor=shape[0], offset=shape[1], min_prob=min_prob, cached_requests=3)
    drafter = SuffixDrafter(config)
    for number, answer in enumerate(past):
        text = np.array([9, *answer])
        drafter.propose(RequestId(100 + number), text[:1], 3)
        drafter.ended(RequestId(100 + number), text, 1)
    for length in range(1, len(own) + 1):
        text = np.array(own[:length])
        draft = drafter.propose(RequestId(0), text, limit)
        assert list(draft.tokens) == expected(own[:length], past[-3:], limit, config)


@settings(max_examples=60, deadline=None)
@given(TEXT, st.integers(1, 8))
def test_a_tree_holds_the_likeliest_nodes_and_each_prefix_of_it_is_the_best_of_its_size(own, most):
    config = SuffixConfig(num_drafts=most, tree=True, min_prob=0.0, factor=9.0)
    draft = SuffixDrafter(config).propose(RequestId(0), np.array(own), most)
    if not draft.tokens:
        assert not followers([own], own[-1:])
        return
    probs, paths = [], []
    for node, parent in enumerate(draft.parents):
        path = [*(paths[parent] if parent >= 0 else ()), draft.tokens[node]]
        assert path not in paths
        paths.append(path)
        probs.append((probs[parent] if parent >= 0 else 1.0) * draft.confidence[node])
    assert probs == sorted(probs, reverse=True)
    matched = next(
        m for m in range(len(own), 0, -1) if followers([own], own[-m:])
    )  # the longest match
    shares = {}
    for pattern in (own[-m:] for m in range(1, matched + 1)):
        found = followers([own], pattern)
        shares[len(pattern)] = {t: found.count(t) / len(found) for t in set(found)}
    first = {path[0]: prob for path, prob in zip(paths, probs, strict=True) if len(path) == 1}
    assert any(first.items() <= share.items() for share in shares.values())


def test_old_answers_are_forgotten_and_their_memory_with_them():
    drafter = SuffixDrafter(SuffixConfig(cached_requests=2))
    for number in range(50):
        text = np.array([1000 + number, 2000 + number, 3000 + number])
        drafter.propose(RequestId(number), text, 4)
        drafter.ended(RequestId(number), text, 0)
    assert drafter.propose(RequestId(99), np.array([1049]), 1).tokens == (2049,)
    assert drafter.propose(RequestId(98), np.array([1010]), 1).tokens == ()
    assert len(drafter._past.tokens) == 8
    assert len(drafter._past._places) == 7


@given(st.lists(st.tuples(st.lists(st.integers(0, 3), max_size=9), st.integers(0, 5)), max_size=8))
@settings(deadline=None)
def test_places_are_those_of_the_tokens_that_are_kept(steps):
    occurrences, kept = Occurrences(), []
    for added, dropped in steps:
        occurrences.append(np.array(added, dtype=np.int64))
        kept += added
        dropped = min(dropped, len(kept))
        occurrences.drop(dropped)
        del kept[:dropped]
        assert occurrences.tokens.tolist() == kept
        for token in range(4):
            assert occurrences.ends_of(token).tolist() == [
                at for at, other in enumerate(kept) if other == token
            ]


@pytest.mark.parametrize("tree", [False, True])
@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_outputs_are_those_without_drafts(model_of, tree, page_size, temperature):
    repeated = (*tokens(6, salt=1), *tokens(6, salt=1), *tokens(4, salt=1))
    requests = [
        asking(0, repeated, 20, temperature=temperature, ignore_eos=True),
        asking(1, tokens(13, salt=2), 12, temperature=temperature),
        asking(2, repeated[:9], 9, temperature=temperature),
    ]
    right = solo(model_of(), requests)
    spec = SuffixConfig(tree=tree)
    engine = build(model_of(), spec=spec, page_size=page_size, budget_tokens=24)
    assert outputs(serve(engine, *requests)) == right
    assert engine.core.ledger.drafted > 0
    again = [asking(3 + r.index, r.prompt_token_ids, 9, ignore_eos=True) for r in requests]
    assert outputs(serve(engine, *again)) == solo(model_of(), again)


def test_a_second_answer_to_the_same_prompt_is_drafted_from_the_first(model_of):
    first, second = (asking(i, tokens(9), 30, ignore_eos=True) for i in (0, 1))
    engine = build(model_of(), spec=SuffixConfig())
    serve(engine, first)
    record = serve(engine, second)[1]
    assert record.accepted_tokens >= 20


def test_every_option_that_is_out_of_range_is_named():
    with pytest.raises(ConfigError) as error:
        SuffixConfig(num_drafts=0, max_depth=0, factor=-1, offset=float("nan"), min_prob=2)
    for name in ("num_drafts=0", "max_depth=0", "factor=-1", "offset=nan", "min_prob=2"):
        assert name in str(error.value)
