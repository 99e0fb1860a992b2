"""Stop strings against a search in the whole text after every token."""

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.conf.check_sampling import sampling_problems
from interlock.core.errors import shown
from interlock.core.request import SamplingParams
from interlock.core.stop_text import OutputText
from interlock.plugins.models.text import REPLACEMENT
from tests.models.test_detokenizer import codec_of, spelt


def ended(read, ids, stops, include_stop=False, min_tokens=0):
    """(tokens kept, text, stop string) by the definition; `read` gives the text of ids."""
    first = len(read(ids[:min_tokens]).rstrip(REPLACEMENT)) + 1
    for count in range(min_tokens + 1, len(ids) + 1):
        text = read(ids[:count]).rstrip(REPLACEMENT)
        for end in range(first, len(text) + 1):
            met = [stop for stop in stops if text[:end].endswith(stop)]
            if met:
                stop = max(met, key=len)
                return count, text[: end if include_stop else end - len(stop)], stop
    return len(ids), read(ids), None


def withheld(text, stops):
    """Longest end of the text that a stop string begins with."""
    return max(
        (k for stop in stops for k in range(1, len(stop)) if text.endswith(stop[:k])), default=0
    )


words = st.text("ab é\n", min_size=1, max_size=4)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(
    text=st.text("ab é\n日", max_size=30),
    stops=st.lists(words, max_size=4),
    include_stop=st.booleans(),
    min_tokens=st.sampled_from([0, 0, 1, 4]),
    cuts=st.lists(st.integers(1, 5), max_size=40),
)
def test_output_and_text_end_where_the_whole_text_says(text, stops, include_stop, min_tokens, cuts):
    codec = codec_of("gemma")
    read = partial(spelt, codec)
    ids = codec.encode(text)
    output = OutputText(codec.detokenizer(), stops, include_stop, "ab", min_tokens)
    kept, pieces = 0, []
    for cut in [*cuts, len(ids)]:
        new = ids[kept : kept + cut]
        kept += output.push(new)
        pieces.append(output.take())
        if output.stopped_by:
            break
        known = read(ids[:kept]).rstrip(REPLACEMENT)
        assert "".join(pieces) == "ab" + known[: len(known) - withheld(known, stops)]
    whole = output.end()
    count, answer, stop = ended(read, ids, stops, include_stop, min_tokens)
    assert (kept, whole, output.stopped_by) == (count, "ab" + answer, stop)
    assert "".join(pieces) + output.take() == whole
    assert output.take() == ""


@pytest.mark.parametrize(
    ("written", "stops", "text", "stop"),
    [
        ("abba", ("ba", "bb"), "a", "bb"),
        ("abba", ("abba", "bb"), "a", "bb"),
        ("abba", ("ab", "abba"), "", "ab"),
        ("abba", ("bba", "abba"), "", "abba"),
        ("abba", ("abb", "bb", "b"), "a", "b"),
    ],
)
def test_the_stop_string_completed_first_counts_and_then_the_longest(written, stops, text, stop):
    codec = codec_of("gemma")
    output = OutputText(codec.detokenizer(), stops)
    output.push(codec.encode(written))
    assert (output.end(), output.stopped_by) == (text, stop)


def test_stop_strings_are_texts_of_some_length_and_not_too_many():
    for stop in ((), ("a",), ("a" * 1000,) * 16):
        assert not sampling_problems(SamplingParams(stop=stop))
    assert SamplingParams(stop="end").stop == ("end",)
    for stop in (("",), ("a",) * 17, ("a" * 1001,), (5,), 5, None):
        (problem,) = sampling_problems(SamplingParams(stop=stop))
        assert problem == f"stop={shown(stop)} is not up to 16 texts of 1 to 1000 characters"
    for name in ("include_stop", "detokenize", "echo"):
        (problem,) = sampling_problems(SamplingParams(**{name: 1}))
        assert problem == f"{name}=1 is not true or false"
