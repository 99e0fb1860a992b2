"""A tokenizer of 64 entries in which words overlap and characters span tokens."""

import itertools
import json
import shutil
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from interlock.core.text import TextCodec
from interlock.plugins.models.hugging_face import HuggingFaceDirectory
from interlock.plugins.models.text import load_codec

ALPHABET = "abc"
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def wordy_tokenizer() -> Tokenizer:
    """`<s>`, `</s>` (id 1), words of one to three letters, bytes of é and 🙂, and digits."""
    words = ["".join(w) for n in (1, 2, 3) for w in itertools.product(ALPHABET, repeat=n)]
    spelt = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    ((symbols, _),) = spelt.pre_tokenize_str("é🙂")
    words += [*dict.fromkeys(symbols)]
    words += [str(digit) for digit in range(10)] + list("defghijkl")
    vocab = {text: i for i, text in enumerate(["<s>", "</s>", *words[:62]])}
    assert len(vocab) == 64
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.pre_tokenizer = spelt
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ("<s>", "</s>")])
    return tokenizer


def with_words(model: Path, directory: Path) -> Path:
    """A copy of a tiny model of 64 tokens, with this tokenizer."""
    shutil.copytree(model, directory)
    wordy_tokenizer().save(str(directory / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


def codec_of(directory: Path) -> TextCodec:
    """The codec of a directory that has one."""
    codec = load_codec(HuggingFaceDirectory(directory))
    assert codec is not None
    return codec
