"""Streaming text of SentencePiece-style tokenizers: spaces at the start, bytes as tokens."""

from functools import cache
from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from interlock.core.text import TextCodec
from interlock.plugins.models.text import MOST_HELD, TokenizersCodec

STYLES = ("llama", "gemma", "metaspace")
NUM_SPECIAL, NUM_BYTES = 3, 256
TEXTS = [
    "Hello world",
    " two  spaces   at once ",
    "ab 日本 a🙂🏽b é",
    "a\nb\n\n b",
    "",
    " ",
    "▁",
]


@cache
def codec_of(style: str) -> TextCodec:
    """Some letters and spaces as words, all else as bytes, as in the style's tokenizer.json."""
    vocab = {text: i for i, text in enumerate(["<unk>", "<s>", "</s>"])}
    vocab |= {f"<0x{byte:02X}>": len(vocab) + byte for byte in range(NUM_BYTES)}
    for word in ("▁", *"abHelowrdtspcn", "▁▁", "▁a", "▁b", "lo", "▁H", "▁He"):
        vocab[word] = len(vocab)
    merges = [("▁", "▁"), ("▁", "a"), ("▁", "b"), ("l", "o"), ("▁", "H"), ("▁H", "e")]
    tokenizer = Tokenizer(
        models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    spaces = decoders.Replace("▁", " ")
    if style == "llama":
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
        tokenizer.decoder = decoders.Sequence(
            [spaces, decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
    elif style == "gemma":
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
        tokenizer.decoder = decoders.Sequence([spaces, decoders.ByteFallback(), decoders.Fuse()])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        tokenizer.decoder = decoders.Sequence(
            [decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first", split=False)]
        )
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ("<s>", "</s>")])
    return TokenizersCodec(tokenizer, {}, None)


def streamed(codec: TextCodec, ids: list[int], after: list[int] | None = None) -> str:
    stream = codec.detokenizer(after or [])
    return "".join([stream.push([token]) for token in ids]) + stream.flush()


every_style = pytest.mark.parametrize("style", STYLES)


@every_style
@pytest.mark.parametrize("text", TEXTS)
def test_pieces_join_to_the_whole_text(style, text):
    codec = codec_of(style)
    for ids in (codec.encode(text), [1, 2, *codec.encode(text), 2, 2, *codec.encode(text), 2]):
        assert streamed(codec, ids) == codec.decode(ids)


def valid(ids):
    """Whether every run of byte tokens is UTF-8."""
    for is_byte, run in groupby(ids, lambda i: 0 <= i - NUM_SPECIAL < NUM_BYTES):
        try:
            bytes(i - NUM_SPECIAL for i in run if is_byte).decode()
        except UnicodeDecodeError:
            return False
    return True


def spelt(codec, ids):
    """`ids` with each run of bytes read by itself: characters as they complete, then U+FFFD."""
    spelt_out = []
    special = (i for i in ids if i not in (1, 2))
    for is_byte, run in groupby(special, lambda i: 0 <= i - NUM_SPECIAL < NUM_BYTES):
        waiting = b""
        for token in run:
            if not is_byte:
                spelt_out.append(codec._tokenizer.id_to_token(token).replace("▁", " "))
                continue
            waiting += bytes([token - NUM_SPECIAL])
            try:
                spelt_out.append(waiting.decode())
                waiting = b""
            except UnicodeDecodeError:
                pass
        spelt_out.append("\ufffd" * len(waiting))
    return "".join(spelt_out)


letters = "日é🙂".encode()
some_ids = st.lists(
    st.one_of(
        st.sampled_from([NUM_SPECIAL + byte for byte in letters]),
        st.sampled_from([1, 2]),
        st.integers(NUM_SPECIAL + NUM_BYTES, NUM_SPECIAL + NUM_BYTES + 20),
        st.sampled_from([NUM_SPECIAL + NUM_BYTES] * 3),
    ),
    max_size=MOST_HELD,
)


@every_style
@settings(max_examples=150, deadline=None, derandomize=True)
@given(ids=some_ids, cuts=st.lists(st.integers(1, 4), min_size=16, max_size=16))
def test_pieces_of_any_tokens_are_their_text_however_they_are_cut(style, ids, cuts):
    codec = codec_of(style)
    stream, pieces, at = codec.detokenizer(), [], 0
    for cut in cuts:
        pieces.append(stream.push(ids[at : at + cut]))
        at += cut
    text = "".join(pieces) + stream.flush()
    assert text == streamed(codec, ids)
    if valid([i for i in ids if i not in (1, 2)]):
        assert text == codec.decode(ids)
    whole = spelt(codec, ids)
    strips = style != "gemma" and whole.startswith(" ")
    assert text == whole[strips:]


@every_style
@settings(max_examples=100, deadline=None, derandomize=True)
@given(text=st.text("ab 日é\n", max_size=24), data=st.data())
def test_a_continuation_is_what_its_ids_add_to_the_text_before(style, text, data):
    codec = codec_of(style)
    ids = codec.encode(text)
    cut = data.draw(st.integers(0, len(ids)))
    before, after = ids[:cut], ids[cut:]
    if valid(before):
        assert codec.decode(before) + codec.continuation(before, after) == codec.decode(ids)
    assert streamed(codec, after, before) == codec.continuation(before, after)


@every_style
def test_a_continuation_keeps_the_space_of_its_first_word(style):
    codec = codec_of(style)
    before, word = codec.encode("Hello"), codec.encode("x b")[-1:]
    assert codec.continuation(before, word) == " b"
    assert codec.continuation([*before, *[2] * 40], word) == " b"


@every_style
def test_bytes_of_a_character_come_out_together(style):
    codec = codec_of(style)
    stream = codec.detokenizer(codec.encode("a"))
    ids = [NUM_SPECIAL + byte for byte in "🙂é".encode()]
    assert [stream.push([token]) for token in ids] == ["", "", "", "🙂", "", "é"]


@every_style
@pytest.mark.parametrize("token", [2, NUM_SPECIAL + 0x80, NUM_SPECIAL + NUM_BYTES])
def test_a_long_run_of_tokens_without_text_or_sense_keeps_the_window_short(style, token):
    codec = codec_of(style)
    for before in ([], codec.encode("a")):
        ids = [*[token] * 200, *codec.encode("b a")]
        stream = codec.detokenizer(before)
        pieces = []
        for one in ids:
            pieces.append(stream.push([one]))
            assert len(stream._window) <= 2 * MOST_HELD
        text = "".join(pieces) + stream.flush()
        assert codec.decode(before) + text == codec.decode([*before, *ids])
