"""Key rows of prompts that are known by the ids of their blocks only."""

from hypothesis import given
from hypothesis import strategies as st

from interlock.core.request import HashedPrompt, Request
from interlock.core.token_sequence import TokenSequence

blocks = st.lists(st.integers(0, 2), min_size=1, max_size=5)


@given(
    page=st.integers(1, 7), lookback=st.integers(0, 2), size=st.integers(1, 7),
    first=blocks, second=blocks, short=st.integers(0, 6), other=st.integers(0, 6),
    outputs=st.tuples(st.lists(st.integers(0, 1), max_size=9), st.lists(st.integers(0, 1))),
)  # fmt: skip
def test_two_pages_have_one_key_exactly_if_they_cover_the_same_tokens(
    page, lookback, size, first, second, short, other, outputs
):
    seen = {}
    for ids, less, output in zip((first, second), (short, other), outputs, strict=True):
        length = max(1, len(ids) * size - less)
        prompt = HashedPrompt(tuple(ids), size, length)
        sequence = TokenSequence(Request(0, hashed_prompt=prompt), page, lookback, list(output))
        covered = [(ids[at // size], at % size) for at in range(length)] + list(output)
        pages = sequence.full_pages(len(covered))
        words = sequence.units(0, pages)
        assert words.shape == (pages, 1)
        for number in range(pages):
            begin = number * page
            tokens = tuple(covered[begin : begin + page + lookback])
            assert sequence.units(number, number + 1)[0, 0] == words[number, 0]
            assert seen.setdefault(int(words[number, 0]), tokens) == tokens
    assert len(set(seen.values())) == len(seen), "one content has two keys"
