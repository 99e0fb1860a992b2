"""The tokenizer in a GGUF file's metadata, as Hugging Face's tokenizer.json.

"gpt2" is byte-level BPE: the file names how text is split before merging (llama.cpp's names, the
expressions are those of the models' own tokenizer.json). "llama" is SentencePiece's BPE: scores
instead of merges, unknown characters as bytes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from interlock.core.closest import unknown_name
from interlock.core.errors import CheckpointError

KEY = "tokenizer.ggml."
SPACE = "\u2581"
DIGITS = r"\p{N}"
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + REST
QWEN2 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + REST
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA_CPP = (r"[\p{P}\$\+<=>\^~\|]+", GPT2.removesuffix(r"|\s+"), r"\p{N}+", "[0-9][0-9][0-9]")


class Kind(IntEnum):
    """What a token is (`token_type`)."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class Splitting:
    """How text is cut into the pieces that are merged, one expression after the other."""

    expressions: tuple[str, ...]
    whole_words: bool = False
    """A piece that is a token is not merged up from bytes."""
    begins: bool = False
    """Texts begin with the begin token where the file does not say."""
    composed: bool = False
    """Characters are composed first (NFC)."""


def _named(names: str, splitting: Splitting) -> dict[str, Splitting]:
    return dict.fromkeys(names.split(), splitting)


SPLITTINGS = {
    **_named("gpt-2 phi-2 olmo jais", Splitting((GPT2,))),
    **_named("smollm starcoder refact command-r codeshell exaone", Splitting((DIGITS, GPT2))),
    **_named("llama-bpe llama3 llama-v3 falcon3 pixtral", Splitting((LLAMA3,), True, True)),
    **_named("dbrx smaug-bpe", Splitting((LLAMA3,))),
    **_named("qwen2 deepseek-r1-qwen megrez", Splitting((QWEN2,), composed=True)),
    **_named("tekken", Splitting((TEKKEN,), True, True)),
    **_named("default", Splitting(LLAMA_CPP)),
}
"""By `tokenizer.ggml.pre`."""
SPECIAL = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
"""Key of tokenizer_config.json -> metadata."""
ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")
END_TEXTS = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>",
    "<|end_of_text|>",
)  # fmt: skip
"""Control tokens that end an output by their name, as in llama.cpp: a file names only one."""


class GGUFTokenizer:
    """Reads `tokenizer.ggml.*`; problems are CheckpointErrors with `title` in front.

    `respelled`: as Gemma's files have it, tokens of several spaces are spelled with spaces instead
    of SentencePiece's sign, and the order of the tokens, not their scores, is that of the merges.
    """

    def __init__(self, metadata: Mapping[str, Any], title: str, respelled: bool = False) -> None:
        self.title = title
        self.respelled = respelled
        self.metadata = metadata
        self.model = self._get("model", "none")
        self.tokens: Sequence[str] = self._list("tokens", str)
        self.kinds: Sequence[int] = self._list("token_type", int, [Kind.NORMAL] * len(self.tokens))
        self.present = self.model not in ("none", "no_vocab")
        if len(self.kinds) != len(self.tokens):
            raise self._error(f"{len(self.tokens)} tokens have {len(self.kinds)} token_type")
        if respelled:
            blank = [token.isspace() and not token.strip(" ") for token in self.tokens]
            pairs = list(zip(blank, self.tokens, self.kinds, strict=True))
            self.tokens = [SPACE * len(token) if is_ else token for is_, token, _ in pairs]
            self.kinds = [Kind.NORMAL if is_ else kind for is_, _, kind in pairs]

    def tokenizer(self) -> Tokenizer:
        """The tokenizer itself."""
        makers = {"gpt2": self._byte_level, "llama": self._sentencepiece}
        if self.model not in makers:
            raise self._error(unknown_name("supported tokenizer", str(self.model), makers))
        tokenizer = makers[self.model]()
        for token, kind in zip(self.tokens, self.kinds, strict=True):
            if kind in (Kind.CONTROL, Kind.USER_DEFINED):
                special = kind == Kind.CONTROL
                added = AddedToken(token, special=special, normalized=False)
                tokenizer.add_special_tokens([added]) if special else tokenizer.add_tokens([added])
        tokenizer.post_processor = self._ends_around()
        return tokenizer

    def config(self) -> dict[str, Any]:
        """tokenizer_config.json: the special tokens' texts."""
        texts = {key: self._text(self._get(name)) for key, name in SPECIAL.items()}
        return {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            **{key: text for key, text in texts.items() if text is not None},
        }

    def chat_template(self) -> str | None:
        """chat_template.jinja."""
        template = self.metadata.get("tokenizer.chat_template")
        if not isinstance(template, str | None):
            raise self._error(f"tokenizer.chat_template={template!r:.80} is no text")
        return template

    def generation(self) -> dict[str, Any]:
        """generation_config.json: begin, padding, and every token that ends an output.

        Those are the ones that the file names, and control tokens by their name.
        """
        by_name = [
            place
            for place, (token, kind) in enumerate(zip(self.tokens, self.kinds, strict=True))
            if kind == Kind.CONTROL and token in END_TEXTS
        ]
        ends = dict.fromkeys([*(self._get(name) for name in ENDS), *by_name])
        stated = {
            "bos_token_id": self._get("bos_token_id"),
            "eos_token_id": [token for token in ends if token is not None] or None,
            "pad_token_id": self._get("padding_token_id"),
        }
        return {key: value for key, value in stated.items() if value is not None}

    def _byte_level(self) -> Tokenizer:
        name = self._get("pre")
        if name not in SPLITTINGS:
            raise self._error(
                unknown_name(f"supported {KEY}pre", str(name), SPLITTINGS)
                + "; without it, ids would differ from those that the model was trained on"
            )
        splitting = SPLITTINGS[name]
        stated: list[str] = self._list("merges", str)
        merges = [(left, right) for left, _, right in (m.partition(" ") for m in stated)]
        tokenizer = self._bpe(merges, ignore_merges=splitting.whole_words)
        if splitting.composed:
            tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                *(_split(expression) for expression in splitting.expressions),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        tokenizer.decoder = decoders.ByteLevel()
        return tokenizer

    def _sentencepiece(self) -> Tokenizer:
        scores = self._list("scores", float)
        if self.respelled:
            scores = [-float(place) for place in range(len(self.tokens))]
        if len(scores) != len(self.tokens):
            raise self._error(f"{len(self.tokens)} tokens have {len(scores)} scores")
        tokenizer = self._bpe(
            _merges_of(self.tokens, self.kinds, scores),
            unk_token=self._text(self._get("unknown_token_id", 0)),
            fuse_unk=True,
            byte_fallback=True,
        )
        prefixed = self._get("add_space_prefix", True)
        spaces = normalizers.Replace(" ", SPACE)
        tokenizer.normalizer = (
            normalizers.Sequence([normalizers.Prepend(SPACE), spaces]) if prefixed else spaces
        )
        stripped = [decoders.Strip(" ", 1, 0)] if prefixed else []
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *stripped]
        )
        return tokenizer

    def _bpe(self, merges: Sequence[tuple[str, str]], **options: Any) -> Tokenizer:
        used = {
            token: place
            for place, (token, kind) in enumerate(zip(self.tokens, self.kinds, strict=True))
            if kind != Kind.UNUSED
        }
        if len(used) != sum(kind != Kind.UNUSED for kind in self.kinds):
            raise self._error("a token is listed twice")
        try:
            return Tokenizer(models.BPE(used, merges, **options))
        except Exception as error:  # the library raises bare Exception
            raise self._error(f"vocabulary and merges do not fit: {error}") from error

    def _ends_around(self) -> processors.TemplateProcessing | None:
        """Adds the begin and end tokens that the file asks for."""
        name = self._get("pre")
        begins = self.model == "llama" or (name in SPLITTINGS and SPLITTINGS[name].begins)
        parts, used = ["$A"], []
        if self._get("add_bos_token", begins):
            used.append(self._required("bos_token_id"))
            parts.insert(0, used[-1][0])
        if self._get("add_eos_token", False):
            used.append(self._required("eos_token_id"))
            parts.append(used[-1][0])
        if not used:
            return None
        return processors.TemplateProcessing(single=parts, special_tokens=used)

    def _required(self, name: str) -> tuple[str, int]:
        token = self._get(name)
        text = self._text(token)
        if text is None:
            raise self._error(f"{KEY}{name}={token!r} names no token")
        return text, token

    def _text(self, token: Any) -> str | None:
        known = isinstance(token, int) and 0 <= token < len(self.tokens)
        return self.tokens[token] if known else None

    def _get(self, name: str, default: Any = None) -> Any:
        return self.metadata.get(KEY + name, default)

    def _list(self, name: str, kind: type, default: Sequence[Any] = ()) -> list[Any]:
        value = self._get(name, list(default))
        if not isinstance(value, list) or not all(isinstance(item, kind) for item in value):
            raise self._error(f"{KEY}{name} is not a list of {kind.__name__}")
        return value

    def _error(self, problem: str) -> CheckpointError:
        return CheckpointError(f"{self.title}: {problem}")


def _split(expression: str) -> pre_tokenizers.PreTokenizer:
    if expression == DIGITS:
        return pre_tokenizers.Digits(individual_digits=True)
    return pre_tokenizers.Split(Regex(expression), behavior="isolated")


def _merges_of(
    tokens: Sequence[str], kinds: Sequence[int], scores: Sequence[float]
) -> list[tuple[str, str]]:
    """Every way to make a token from two others, by the made token's score, best first.

    Ties go to the longer first part, as in Hugging Face's conversion of SentencePiece models.
    """
    made = {
        token: place
        for place, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind in (Kind.NORMAL, Kind.USER_DEFINED)
    }
    found = [
        (-scores[place], -cut, cut - len(token), place, token[:cut], token[cut:])
        for token, place in made.items()
        for cut in range(1, len(token))
        if token[:cut] in made and token[cut:] in made
    ]
    return [(left, right) for *_, left, right in sorted(found)]
