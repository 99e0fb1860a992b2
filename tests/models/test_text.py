"""Tokenizers and chat templates against transformers' AutoTokenizer."""

import json
import warnings
from datetime import datetime
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from interlock.conf.find_model import shipped_models
from interlock.core.errors import CheckpointError, ConfigError
from interlock.core.testing.tiny import write_byte_tokenizer
from interlock.core.text import TextCodec
from interlock.driver.chat_template import chat_ids, chat_text
from interlock.plugins.models.hugging_face import HuggingFaceDirectory
from interlock.plugins.models.text import load_codec

TEXTS = [
    "",
    "Hello, world!",
    " two  spaces\n\nand lines ",
    "naïve 日本語 🙂🏽",
    "a<|end|>b",
    "I ' m .",
]
MESSAGES = [{"role": "system", "content": "be <b>brief</b>"}, {"role": "user", "content": "hi \n"}]


def word_tokenizer(directory: Path) -> None:
    """A tokenizer of another kind: words, "▁" for spaces, begin and end tokens added."""
    vocab = {"<s>": 0, "</s>": 1, "<unk>": 2, "▁": 3}
    for word in ["▁two", "▁spaces", "▁a", "b", "▁Hello", ",", "▁world", "!", "I", "'", "▁m", "."]:
        vocab[word] = len(vocab)
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation()]
    )
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    tokenizer.add_special_tokens([AddedToken("<s>", special=True)])
    tokenizer.enable_truncation(3)
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": {"content": "</s>", "__type": "AddedToken"},
        "clean_up_tokenization_spaces": False,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config))


@pytest.fixture(params=["bytes", "words", *sorted(shipped_models())])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param in shipped_models():
        return shipped_models()[request.param]
    (write_byte_tokenizer if request.param == "bytes" else word_tokenizer)(tmp_path)
    return tmp_path


def codec_of(directory: Path) -> TextCodec:
    codec = load_codec(HuggingFaceDirectory(directory))
    assert codec is not None
    return codec


@cache
def bytes_codec() -> TextCodec:
    with TemporaryDirectory() as directory:
        write_byte_tokenizer(Path(directory))
        return codec_of(Path(directory))


def theirs_of(directory: Path) -> Any:
    import transformers

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return transformers.AutoTokenizer.from_pretrained(directory)


def set_template(directory: Path, template: Any) -> None:
    file = directory / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "chat_template": template}))


def test_encoding_and_decoding_equal_transformers(directory: Path) -> None:
    ours, theirs = codec_of(directory), theirs_of(directory)
    for text in TEXTS:
        ids = theirs(text)["input_ids"]
        assert ours.encode(text) == ids
        plain = theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.encode(text, add_special_tokens=False) == plain
        for skip in (True, False):
            decoded = ours.decode(ids, skip_special_tokens=skip)
            assert decoded == theirs.decode(ids, skip_special_tokens=skip)


def test_pieces_join_to_the_whole_text(directory: Path) -> None:
    codec = codec_of(directory)
    for text in TEXTS:
        ids = codec.encode(text)
        stream = codec.detokenizer()
        pieces = [stream.push([token]) for token in ids]
        assert "".join(pieces) + stream.flush() == codec.decode(ids)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    ids=st.lists(st.integers(0, 256), max_size=24),
    cuts=st.lists(st.integers(1, 4), min_size=24, max_size=24),
)
def test_pieces_of_any_bytes_join_to_the_whole_text(ids: list[int], cuts: list[int]) -> None:
    stream, pieces, at = bytes_codec().detokenizer(), [], 0
    for cut in cuts:
        pieces.append(stream.push(ids[at : at + cut]))
        at += cut
    assert "".join(pieces) + stream.flush() == bytes_codec().decode(ids)


def test_an_incomplete_character_is_held_back() -> None:
    ids = bytes_codec().encode("é🙂")
    stream = bytes_codec().detokenizer()
    assert [stream.push([token]) for token in ids] == ["", "é", "", "", "", "🙂"]
    assert bytes_codec().detokenizer().push(ids[:1]) == ""
    cut_short = bytes_codec().detokenizer()
    cut_short.push(ids[:1])
    assert cut_short.flush() == "\ufffd"


def test_the_cost_of_a_token_does_not_grow_with_the_output() -> None:
    stream = bytes_codec().detokenizer()
    for token in bytes_codec().encode("word " * 200):
        stream.push([token])
        assert len(stream._window) <= 2


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}\n  {% if not loop.first %}\n|{% endif %}\n{{ m.content | tojson }}"
        "{% endfor %}\n{{ eos_token }}",
        "{% if tools is none and not documents %}{{ messages[0]['content'].strip() }}{% endif %}",
        "{% for m in messages %}{% if m.role == 'user' %}{% break %}{% endif %}{{ m | tojson }}"
        "{% endfor %}{% generation %} x {% endgeneration %}{{ bos_token }}",
        [{"name": "tools", "template": "no"}, {"name": "default", "template": "{{ 1 }}!"}],
    ],
)
def test_chats_are_rendered_as_by_transformers(tmp_path: Path, template: Any) -> None:
    write_byte_tokenizer(tmp_path)
    set_template(tmp_path, template)
    theirs, ours = theirs_of(tmp_path), codec_of(tmp_path)
    for prompt in (True, False):
        expected = theirs.apply_chat_template(
            MESSAGES, tokenize=False, add_generation_prompt=prompt
        )
        assert chat_text(ours, MESSAGES, prompt) == expected


def test_the_shipped_chat_template_is_rendered_as_by_transformers(directory: Path) -> None:
    ours, theirs = codec_of(directory), theirs_of(directory)
    if ours.chat_template is None:
        assert theirs.chat_template is None
        return
    expected = theirs.apply_chat_template(MESSAGES, add_generation_prompt=True)
    ids = expected["input_ids"] if hasattr(expected, "keys") else expected
    assert chat_ids(ours, MESSAGES) == ids


def test_a_template_file_wins_over_the_config(tmp_path: Path) -> None:
    write_byte_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("from the file")
    assert chat_text(codec_of(tmp_path), MESSAGES) == "from the file"


def test_templates_read_the_clock_that_they_are_given(tmp_path: Path) -> None:
    write_byte_tokenizer(tmp_path)
    set_template(tmp_path, "{{ strftime_now('%d %b %Y') }}")
    codec = load_codec(HuggingFaceDirectory(tmp_path))
    assert codec is not None
    assert chat_text(codec, MESSAGES, now=lambda: datetime(2031, 2, 3)) == "03 Feb 2031"


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('no system role') }}", "no system role"),
        ("{% if %}", "Expected an expression"),
        ("{{ messages.append(1) }}", "not safely callable|is unsafe|safe"),
    ],
)
def test_what_a_template_refuses_is_a_config_error(
    tmp_path: Path, template: str, reason: str
) -> None:
    write_byte_tokenizer(tmp_path)
    set_template(tmp_path, template)
    with pytest.raises(ConfigError, match=reason):
        chat_text(codec_of(tmp_path), MESSAGES)


def test_a_model_without_template_says_so(tmp_path: Path) -> None:
    word_tokenizer(tmp_path)
    with pytest.raises(ConfigError, match="no chat template"):
        chat_text(codec_of(tmp_path), MESSAGES)


def test_a_directory_without_tokenizer_has_no_codec(tmp_path: Path) -> None:
    assert load_codec(HuggingFaceDirectory(tmp_path)) is None


def test_a_malformed_tokenizer_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: not a tokenizer"):
        load_codec(HuggingFaceDirectory(tmp_path))
