"""The tokenizer of a GGUF file gives the ids of transformers, and of BPE's definition."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import LlamaTokenizer, Qwen2Tokenizer
from transformers.integrations.gguf.gguf_tokenizer_mapping import convert_gguf_tokenizer

from interlock.core.errors import CheckpointError
from interlock.plugins.models.gguf_tokenizer import GGUFTokenizer
from tests.models.bpe_oracle import GPT2, byte_level_ids, byte_symbols, sentencepiece_ids

CORPUS = (
    ["We'll see 12345 numbers, 2024-11-29; isn't it? HE'S here, they'RE not."] * 3
    + ["def main(argv):\n    return [x ** 2 for x in range(10)]\n\n\n"] * 3
    + ["naïve café größer Ελληνικά русский 中文字符 日本語 العربية हिन्दी 🙂🙃 e\u0301"] * 3
)
TEXTS = [
    "",
    " ",
    "   ",
    "hello world",
    " hello  world   ",
    "We'll see: 1234567890 3.14 and \uff12\uff13 ½ Ⅷ",
    "HE'S and he's, they'RE ''quoted''",
    "tabs\tand\n\nnewlines\r\n  x\n   y",
    "    indented = code(1, 2)\n",
    "naïve cafe\u0301 größer ΕΛΛ русский 中文 日本語 🙂👨‍👩‍👧",
    "a\u00a0b\u3000c\u200bd",
    "<|stop|>between<|stop|> <|stop|>",
    "symbols $+<=>^~| §!?…",
]
# Unassigned characters (Cn) are letters to some versions of the package regex, and to no other.
ANY_TEXT = st.text(st.characters(exclude_categories=("Cs", "Cn")), max_size=40)
LLAMA_CPP = (r"[\p{P}\$\+<=>\^~\|]+", GPT2.removesuffix(r"|\s+"), r"\p{N}+", "[0-9][0-9][0-9]")


def trained() -> tuple[list[str], list[str]]:
    """Tokens in order and merges of a small byte-level BPE; the last token is special."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(byte_symbols())
    trainer = trainers.BpeTrainer(
        vocab_size=420, initial_alphabet=alphabet, show_progress=False, min_frequency=1
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    return [*tokens, "<|stop|>"], [" ".join(pair) for pair in model["merges"]]


TOKENS, MERGES = trained()
VOCAB = {token: place for place, token in enumerate(TOKENS)}


def byte_level(pre: str | None, **more) -> GGUFTokenizer:
    stated = {
        "model": "gpt2",
        "pre": pre,
        "tokens": TOKENS,
        "merges": MERGES,
        "token_type": [1] * (len(TOKENS) - 1) + [3],
        "eos_token_id": len(TOKENS) - 1,
        "bos_token_id": len(TOKENS) - 1,
        "add_bos_token": False,
        **more,
    }
    return GGUFTokenizer({f"tokenizer.ggml.{key}": value for key, value in stated.items()}, "m")


def as_transformers_reads_it(pre: str) -> Tokenizer:
    types = [1] * (len(TOKENS) - 1) + [3]
    stated = {"tokenizer_type": "gpt2", "pre_tokenizer_type": pre, "tokens": TOKENS}
    return convert_gguf_tokenizer("llama", {**stated, "merges": MERGES, "token_type": types})[0]


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "tekken", "dbrx"])
@pytest.mark.parametrize("text", TEXTS)
def test_byte_level_ids_are_those_of_transformers_gguf_reader(pre, text):
    theirs = as_transformers_reads_it(pre).encode(text, add_special_tokens=False)
    assert ids_of(byte_level(pre).tokenizer(), text) == theirs.ids


@settings(max_examples=200, deadline=None)
@given(ANY_TEXT)
def test_qwen2_ids_are_those_of_its_own_tokenizer(text):
    vocab = {token: place for token, place in VOCAB.items() if token != "<|stop|>"}
    merges = [tuple(pair.split(" ")) for pair in MERGES]
    theirs = Qwen2Tokenizer(vocab=vocab | {"<|endoftext|>": len(vocab)}, merges=merges)
    assert ids_of(QWEN2, text) == theirs(text, add_special_tokens=False)["input_ids"]


@settings(max_examples=300, deadline=None)
@given(ANY_TEXT)
def test_smollm_splits_off_each_digit_and_then_as_gpt_2(text):
    assert ids_of(SMOLLM, text) == byte_level_ids(text, VOCAB, MERGES, (r"\p{N}", GPT2))


@settings(max_examples=300, deadline=None)
@given(ANY_TEXT)
def test_default_splits_as_llama_cpp_does(text):
    assert ids_of(DEFAULT, text) == byte_level_ids(text, VOCAB, MERGES, LLAMA_CPP)


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False).ids


QWEN2, SMOLLM, DEFAULT = (byte_level(pre).tokenizer() for pre in ("qwen2", "smollm", "default"))


@settings(max_examples=200, deadline=None)
@given(ANY_TEXT)
def test_byte_level_text_comes_back(text):
    assert SMOLLM.decode(ids_of(SMOLLM, text), skip_special_tokens=False) == text


def test_special_tokens_are_found_in_text_and_left_out_of_it():
    ids = ids_of(SMOLLM, "a<|stop|>b")
    assert ids[1] == len(TOKENS) - 1
    assert SMOLLM.decode(ids) == "ab"


SPECIAL = ["<unk>", "<s>", "</s>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
WORDS = "the then there other bother abab ababab banana ana na 12 123 don't".split()


def sentencepiece_tokens() -> list[str]:
    """Special tokens, bytes, then what merges make, best first, then characters."""
    spaced = ["\u2581" + word for word in WORDS]
    made = dict.fromkeys(w[:end] for w in (*spaced, *WORDS) for end in range(2, len(w) + 1))
    made |= dict.fromkeys(w[start:] for w in WORDS for start in range(len(w) - 1))
    characters = dict.fromkeys("".join(spaced))
    return [*SPECIAL, *BYTES, *sorted(made, key=lambda t: (len(t), t)), *characters]


PIECES = sentencepiece_tokens()
PIECE_IDS = {token: place for place, token in enumerate(PIECES)}
SCORES = [0.0] * 259 + [-float(place) for place in range(len(PIECES) - 259)]
PIECE_TYPES = [2, 3, 3] + [6] * 256 + [1] * (len(PIECES) - 259)


def sentencepiece(**more) -> GGUFTokenizer:
    stated = {
        "model": "llama",
        "tokens": PIECES,
        "scores": SCORES,
        "token_type": PIECE_TYPES,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        **more,
    }
    return GGUFTokenizer({f"tokenizer.ggml.{key}": value for key, value in stated.items()}, "m")


SPM = sentencepiece().tokenizer()
WORD_TEXT = st.lists(
    st.one_of(st.sampled_from([*WORDS, " ", "  ", ",", "ab", "aba"]), ANY_TEXT), max_size=8
).map("".join)


@settings(max_examples=400, deadline=None)
@given(WORD_TEXT)
def test_sentencepiece_ids_are_those_of_its_definition_and_the_text_comes_back(text):
    if any(token in text for token in (*SPECIAL, "\u2581")):
        return
    scores = dict(zip(PIECES[259:], SCORES[259:], strict=True))
    assert ids_of(SPM, text) == sentencepiece_ids(text, scores, PIECE_IDS)
    assert SPM.decode(ids_of(SPM, text)) == text


@settings(max_examples=200, deadline=None)
@given(WORD_TEXT.filter(lambda text: not text.startswith(" ")))
def test_sentencepiece_ids_are_those_of_the_llama_tokenizer(text):
    from transformers.tokenization_utils_base import generate_merges

    made = dict(zip(PIECES[259:], SCORES[259:], strict=True))
    merges = generate_merges(PIECE_IDS, made)
    theirs = LlamaTokenizer(vocab=PIECE_IDS, merges=merges, add_bos_token=True)
    assert SPM.encode(text).ids == theirs(text)["input_ids"]


def test_begin_and_end_tokens_are_added_as_the_file_says():
    assert SPM.encode("the").ids == [1, *ids_of(SPM, "the")]  # SentencePiece begins texts itself
    both = sentencepiece(add_bos_token=False, add_eos_token=True).tokenizer()
    assert both.encode("the").ids == [*ids_of(SPM, "the"), 2]
    assert byte_level("smollm").tokenizer().encode("a").ids == ids_of(SMOLLM, "a")
    begun = byte_level("smollm", add_bos_token=True).tokenizer().encode("a")
    assert begun.ids == [len(TOKENS) - 1, *ids_of(SMOLLM, "a")]


def test_without_a_space_prefix_text_starts_as_it_is():
    tokenizer = sentencepiece(add_space_prefix=False).tokenizer()
    assert [tokenizer.id_to_token(i) for i in ids_of(tokenizer, "the the")] == ["the", "\u2581the"]
    assert tokenizer.decode(ids_of(tokenizer, " the")) == " the"


def test_gemma_merges_spaces_and_in_the_order_of_its_tokens():
    spaces = ["  ", "   ", "\u2581\u2581a"]
    pieces = [*PIECES, *spaces[:2], spaces[2]]
    made = {
        "tokens": pieces,
        "scores": [0.0] * len(pieces),  # say nothing
        "token_type": [*PIECE_TYPES, 4, 4, 1],
    }
    stated = {f"tokenizer.ggml.{key}": value for key, value in made.items()}
    stated |= {"tokenizer.ggml.model": "llama", "tokenizer.ggml.add_space_prefix": False}
    stated |= {"tokenizer.ggml.unknown_token_id": 0, "tokenizer.ggml.bos_token_id": 1}
    ours = GGUFTokenizer(stated, "m", respelled=True).tokenizer()
    theirs = convert_gguf_tokenizer("gemma3", {"tokenizer_type": "llama", **made})[0]
    for text in ("the other", "a  b   c    d", "  ab  aba", "banana \u00e9 12", "<s> the </s>x"):
        ids = ids_of(ours, text)
        assert ids == theirs.encode(text, add_special_tokens=False).ids, text
        assert ours.decode(ids, skip_special_tokens=False) == text


def test_ends_are_those_stated_and_those_with_the_name_of_one():
    end = len(TOKENS) - 1
    renamed = [*TOKENS[:-1], "<|im_end|>"]
    assert byte_level("gpt-2", eos_token_id=3).generation()["eos_token_id"] == [3]
    assert byte_level("gpt-2", tokens=renamed, eos_token_id=3).generation() == {
        "bos_token_id": end,
        "eos_token_id": [3, end],
    }
    assert byte_level("gpt-2", eot_token_id=5).generation()["eos_token_id"] == [end, 5]


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (lambda: byte_level("qwen3000"), "tokenizer.ggml.pre named 'qwen3000'.* known: .*qwen2"),
        (lambda: byte_level(None), "ggml.pre named 'None'.*ids would differ"),
        (lambda: byte_level("gpt-2", model="bert"), "no supported tokenizer named 'bert'.*gpt2"),
        (lambda: byte_level("gpt-2", merges=["a zzz"]), "vocabulary and merges do not fit"),
        (lambda: byte_level("gpt-2", tokens=["a"] * len(TOKENS)), "a token is listed twice"),
        (lambda: byte_level("gpt-2", token_type=[1]), r"421 tokens have 1 token_type"),
        (lambda: byte_level("gpt-2", tokens=5), "tokenizer.ggml.tokens is not a list of str"),
        (lambda: byte_level("gpt-2", merges=[1]), "tokenizer.ggml.merges is not a list of str"),
        (lambda: sentencepiece(scores=[0.0]), "tokens have 1 scores"),
        (lambda: sentencepiece(bos_token_id=10**6), "bos_token_id=1000000 names no token"),
    ],
)
def test_a_tokenizer_that_would_give_other_ids_is_refused(made, reason):
    with pytest.raises(CheckpointError, match=f"(?s)^m: .*{reason}"):
        made().tokenizer()
