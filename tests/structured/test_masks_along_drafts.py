"""The mask of every row of a draft is that of its own path, and the walk leaves no trace."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.core.batch import Draft
from interlock.core.errors import ContractError
from interlock.core.logit_edits import LogitEdits
from interlock.core.request import SamplingParams
from interlock.core.testing.sampler_contract import path_to
from interlock.core.testing.tiny import write_byte_tokenizer
from interlock.core.testing.verifier_contract import draft_trees
from interlock.plugins.models.hugging_face import HuggingFaceDirectory
from interlock.plugins.models.text import load_codec
from interlock.plugins.structured import XGrammarConfig
from interlock.plugins.structured.xgrammar_masks import XGrammar

SIZE, END = 300, 256
TEXTS = ["abca", "abcb", "ab", "acc", "b", "bbbb", "ca"]
REGEX = "|".join(TEXTS)


@pytest.fixture(scope="module")
def bytewise(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bytes")
    write_byte_tokenizer(folder)
    codec = load_codec(HuggingFaceDirectory(folder))
    return XGrammar(XGrammarConfig(), codec, SIZE), codec.encode("abc")


def bits(mask_W):
    return {*np.flatnonzero(np.unpackbits(mask_W.view(np.uint8), bitorder="little")[:SIZE])}


def test_each_row_allows_what_continues_its_own_path(bytewise):
    made, letters = bytewise
    alphabet = [*letters, END, 270]  # 270 has no text
    language = [[*(letters["abc".index(c)] for c in text), END] for text in TEXTS]

    def after(path):
        """What can follow, or None where nobody asks: behind a dead end and behind the end."""
        fitting = [text for text in language if text[: len(path)] == path]
        if not fitting or END in path:
            return None
        return {text[len(path)] for text in fitting}

    @settings(max_examples=150, deadline=None)
    @given(draft_trees(vocab_size=len(alphabet), most=10), st.sampled_from(language), st.data())
    def check(shape, text, data):
        draft = Draft(tuple(alphabet[token] for token in shape.tokens), shape.parents)
        matcher = made.matcher("regex", REGEX, [END])
        banned = data.draw(st.sampled_from([(), (letters[1],)]))
        params = SamplingParams(banned_token_ids=banned, min_tokens=2)
        state = LogitEdits(params, SIZE, [END], np.array([1]), matcher)
        output = []
        for token in text[:-1]:
            found = state.at(draft)
            for row in range(1 + len(draft.tokens)):
                path = [*output, *path_to(draft, row)]
                allowed = after(path)
                if allowed is None:
                    allowed = {*range(SIZE)}
                allowed -= {*banned} | ({END} if len(path) < 2 else set())
                assert bits(found.masks_NW[row]) == allowed, (path, draft)
            state.commit([token])
            output.append(token)

    check()


def test_a_token_that_the_grammar_does_not_allow_stops_the_engine_by_name(bytewise):
    made, (a, b, _) = bytewise
    state = LogitEdits(
        SamplingParams(), SIZE, [END], np.array([1]), made.matcher("regex", REGEX, [END])
    )
    state.commit([a, b, END])
    state = LogitEdits(
        SamplingParams(), SIZE, [END], np.array([1]), made.matcher("regex", REGEX, [END])
    )
    with pytest.raises(ContractError, match=f"token {a} came, which XGrammarMatcher"):
        state.commit([a, a])
