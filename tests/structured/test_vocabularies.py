"""Whatever the tokenizer, the text of what is allowed is in the grammar, and all of it can come."""

import random
import re

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

from interlock.conf.find_model import shipped_models
from interlock.plugins.models.hugging_face import HuggingFaceDirectory
from interlock.plugins.models.text import TokenizersCodec, load_codec
from interlock.plugins.structured import XGrammarConfig
from interlock.plugins.structured.xgrammar_masks import XGrammar

WORDS = [
    "\u2581",
    "\u2581ab",
    "ab",
    "abc",
    "\u2581c",
    "c",
    "\u00e9",
    "1",
    "{",
    "}",
    '"',
    "\u2581\u2581",
]


def byte_fallback():
    """As Llama 2's: pieces with U+2581 for a space, bytes for what no piece spells."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *WORDS]
    tokenizer = Tokenizer(
        models.BPE({piece: i for i, piece in enumerate(pieces)}, [], unk_token="<unk>",
                   byte_fallback=True, fuse_unk=True)
    )  # fmt: skip
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
         decoders.Strip(" ", 1, 0)]
    )  # fmt: skip
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in ("<unk>", "<s>", "</s>")])
    tokenizer.add_tokens([AddedToken("<tool call>", special=False)])
    return TokenizersCodec(tokenizer, {}, None)


def byte_level():
    return load_codec(HuggingFaceDirectory(next(iter(shipped_models().values()))))


@pytest.mark.parametrize("make", [byte_fallback, byte_level])
@pytest.mark.parametrize("extra", [-1, 0, 37])
@pytest.mark.parametrize(
    "regex",
    [
        "(ab|a\u00e9|\u4e16){2,4}( c| \\{1\\})?",
        "  ?abc",
        " ?<tool call>(<s>)?",
        "[\u00e0-\u00ff]{3}",
    ],
)
def test_random_walks_spell_texts_of_the_grammar_and_nothing_is_lost(make, extra, regex):
    codec = make()
    size, end = codec.vocab_size + extra, 2
    made = XGrammar(XGrammarConfig(), codec, size)
    draw, before = random.Random(0), codec.encode("x")
    for _ in range(12):
        matcher, output = made.matcher("regex", regex, [end]), []
        while end not in output:
            bits = np.unpackbits(matcher.allowed().view(np.uint8), bitorder="little")[:size]
            choices = np.flatnonzero(bits).tolist()
            assert choices, codec.decode([*before, *output])
            output.append(draw.choice(choices))
            assert matcher.accept(output[-1])
        text = codec.decode([*before, *output[:-1]]).removeprefix(codec.decode(before))
        assert re.fullmatch(regex, text), (text, output)


@pytest.mark.parametrize("make", [byte_fallback, byte_level])
def test_the_tokenizers_own_spelling_is_allowed(make):
    codec = make()
    made = XGrammar(XGrammarConfig(), codec, codec.vocab_size)
    for text in ("ab\u00e9 c", "{1}", "  ab\u4e16\U0001f600"):
        tokens = codec.encode_after(text)
        matcher = made.matcher("regex", re.escape(text).replace("\\ ", " "), [2])
        for token in tokens:
            assert token == 2 or matcher.accept(token), (text, tokens)
        assert matcher.accept(2)
