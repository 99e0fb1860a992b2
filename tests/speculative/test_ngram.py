import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from interlock.conf.decode import decode
from interlock.core.batch import NO_DRAFT
from interlock.core.capabilities import CarriesTokens, Composition, SimulatesDrafts
from interlock.core.component import BuildContext
from interlock.core.errors import ConfigError
from interlock.core.testing.drafter_contract import REQUEST, TokenDrafterContract
from interlock.plugins.speculative import NgramConfig, NoneConfig, components
from interlock.plugins.speculative.ngram import NgramDrafter
from interlock.plugins.speculative.none import NoDrafter


class TestNgramLatest(TokenDrafterContract):
    def make(self):
        return NgramDrafter(NgramConfig())


class TestNgramEarliest(TokenDrafterContract):
    def make(self):
        return NgramDrafter(NgramConfig(num_drafts=3, ngram_min=1, match="earliest"))


class TestNoDrafter(TokenDrafterContract):
    def make(self):
        return NoDrafter()


def propose(text, limit=100, **options):
    drafter = NgramDrafter(NgramConfig(**{"num_drafts": 4, **options}))
    return list(drafter.propose(REQUEST, np.array(text, dtype=np.int64), limit).tokens)


def by_plain_search(text, wanted, config):
    """Lists and slices: the longest n-gram first, then the occurrence asked for."""
    for n in range(config.ngram_max, config.ngram_min - 1, -1):
        starts = [s for s in range(len(text) - n) if text[s : s + n] == text[len(text) - n :]]
        if n > len(text) or not starts:
            continue
        output = list(text)
        source = (starts[-1] if config.match == "latest" else starts[0]) + n
        for step in range(wanted):
            output.append(output[source + step])
        return output[len(text) :]
    return []


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=30),
    st.integers(1, 4),
    st.integers(0, 3),
    st.integers(0, 6),
    st.sampled_from(["latest", "earliest"]),
)
@example([1, 1], 1, 3, 5, "latest")
def test_candidates_are_those_of_a_plain_search(text, ngram_min, more, limit, match):
    config = NgramConfig(num_drafts=5, ngram_min=ngram_min, ngram_max=ngram_min + more, match=match)
    draft = NgramDrafter(config).propose(REQUEST, np.array(text, dtype=np.int64), limit)
    assert list(draft.tokens) == by_plain_search(text, min(limit, 5), config)
    assert draft.parents is None


def test_what_followed_the_same_tokens_before_is_copied():
    assert propose([1, 2, 3, 4, 5, 6, 9, 2, 3]) == [4, 5, 6, 9]


def test_a_longer_match_wins_over_a_nearer_one():
    assert propose([1, 2, 3, 7, 9, 2, 3, 8, 1, 2, 3], ngram_max=3, num_drafts=1) == [7]


def test_latest_and_earliest_choose_between_equal_matches():
    text = [1, 2, 7, 5, 1, 2, 8, 6, 1, 2]
    assert propose(text, num_drafts=1) == [8]
    assert propose(text, num_drafts=1, match="earliest") == [7]


def test_a_text_of_short_period_is_continued_to_full_length():
    assert propose([5, 1, 2, 1, 2]) == [1, 2, 1, 2]
    assert propose([7, 7, 7, 7]) == [7, 7, 7, 7]


def test_too_short_a_match_proposes_nothing():
    assert propose([3, 1, 9, 4, 1], ngram_min=2) == []
    assert propose([3, 1, 9, 4, 1], ngram_min=1) == [9, 4, 1, 9]


def test_texts_shorter_than_the_n_gram_are_fine():
    for text in ([], [1], [1, 2], [1, 1]):
        assert propose(text, ngram_min=4) == []


def test_every_option_out_of_range_is_named_with_its_value():
    with pytest.raises(ConfigError) as refused:
        NgramConfig(num_drafts=0, ngram_min=0, ngram_max=-1, match="lates")
    assert refused.value.problems == [
        "num_drafts=0 is not a whole number >= 1",
        "ngram_min=0 is not a whole number >= 1",
        "ngram_max=-1 is below ngram_min=0",
        "no match named 'lates'; did you mean 'latest'? known: earliest, latest",
    ]
    problems = []
    assert decode(NgramConfig, {"num_drafts": 0}, "spec", problems) is None
    assert problems == ["spec.num_drafts=0 is not a whole number >= 1"]


def component(name):
    return next(c for c in components() if (c.seam, c.name) == ("spec", name))


def test_both_drafters_are_built_by_name():
    context = BuildContext(model=None)
    assert isinstance(component("none").make(NoneConfig(), context), NoDrafter)
    drafter = component("ngram").make(NgramConfig(num_drafts=7), context)
    assert isinstance(drafter, NgramDrafter)
    assert drafter.num_drafts == 7
    assert NoDrafter().propose(REQUEST, np.array([1, 1, 1]), 5) == NO_DRAFT


def test_ngram_is_refused_where_prompts_have_no_token_ids():
    (requirement,) = component("ngram").requires(NgramConfig(), None)
    without = Composition({}, frozenset(), None)
    assert "the workload carries none" in requirement(without)
    for enough in (CarriesTokens(), SimulatesDrafts()):
        assert requirement(Composition({}, frozenset({enough}), None)) is None
