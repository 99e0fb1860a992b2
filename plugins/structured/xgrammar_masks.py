"""Grammars by xgrammar (Dong et al., MLSys 2025): compiled once, matched token by token."""

import json
import re
from collections.abc import Collection

import numpy as np
import xgrammar

from interlock.core.batch import Words
from interlock.core.component import BuildContext
from interlock.core.errors import ConfigError
from interlock.core.sampling_params import GrammarKind
from interlock.core.structured import Matcher, StructuredOutput
from interlock.core.text import TextCodec
from interlock.plugins.structured import XGrammarConfig
from interlock.plugins.structured.json_schema import unenforced

_PLACE = re.compile(r"^\[[\d:]+\] \S+:\d+: (Check failed: \(.*?\) is \w+: )?")
"""What xgrammar writes before a reason: time, source line and failed condition."""


class XGrammar(StructuredOutput):
    """Compiles for one vocabulary; equal texts are compiled once."""

    def __init__(self, config: XGrammarConfig, codec: TextCodec, vocab_size: int) -> None:
        self._config = config
        self._words = -(-vocab_size // 32)
        info = tokenizer_info(codec, vocab_size)
        self._textless = frozenset(info.special_token_ids)
        self._compiler = xgrammar.GrammarCompiler(
            info,
            max_threads=config.threads,
            cache_limit_bytes=config.cache_mib << 20,
        )

    def matcher(self, kind: GrammarKind, text: str, end_ids: Collection[int]) -> "XGrammarMatcher":
        """See StructuredOutput."""
        if kind == "json_schema":
            _require_enforced(text)
        try:
            compiled = self._compile(kind, text)
        except Exception as error:  # the library raises RuntimeError, ValueError and its own
            lines = _PLACE.sub("", str(error)).strip().splitlines()
            raise ValueError(lines[0] if lines else type(error).__name__) from error
        return XGrammarMatcher(compiled, end_ids, self._textless, self._words)

    def _compile(self, kind: GrammarKind, text: str) -> xgrammar.CompiledGrammar:
        if kind == "json_schema":
            return self._compiler.compile_json_schema(
                text, any_whitespace=self._config.any_whitespace, strict_mode=True
            )
        if kind == "regex":
            return self._compiler.compile_regex(text)
        return self._compiler.compile_grammar(text)


class XGrammarMatcher(Matcher):
    """A pushdown automaton's states after the tokens so far."""

    def __init__(
        self,
        compiled: xgrammar.CompiledGrammar,
        end_ids: Collection[int],
        textless: frozenset[int],
        words: int,
    ) -> None:
        self._never = textless.difference(end_ids)
        self._matcher = xgrammar.GrammarMatcher(compiled, override_stop_tokens=sorted(end_ids))
        self._words = words

    def allowed(self) -> Words:
        """See Matcher."""
        mask_1W = np.full((1, self._words), -1, dtype=np.int32)
        self._matcher.fill_next_token_bitmask(mask_1W, 0)
        mask_W: Words = mask_1W[0]
        return mask_W

    def accept(self, token: int) -> bool:
        """See Matcher. xgrammar would warn of a token without text on standard error."""
        return token not in self._never and bool(self._matcher.accept_token(token))

    def rollback(self, count: int) -> None:
        """See Matcher."""
        self._matcher.rollback(count)


def tokenizer_info(codec: TextCodec, vocab_size: int) -> xgrammar.TokenizerInfo:
    """The bytes of every token as xgrammar finds them: byte-level, byte-fallback or plain.

    Special tokens, which decoded text leaves out, and ids without a token have no bytes: they
    never come but as end tokens. Ids beyond the model's vocabulary are left out.
    """
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=codec.tokenizer)  # type: ignore[no-untyped-call]
    # Its stop tokens do not matter: every matcher gets those of its request.
    found = xgrammar.TokenizerInfo.from_huggingface(
        tokenizer, vocab_size=vocab_size, stop_token_ids=[0]
    )
    texts, before = list(found.decoded_vocab), codec.encode("a", add_special_tokens=False)
    for token, added in codec.tokenizer.get_added_tokens_decoder().items():
        if token < vocab_size:
            texts[token] = b"" if added.special else codec.continuation(before, [token]).encode()
    return xgrammar.TokenizerInfo(
        texts, vocab_size=vocab_size, stop_token_ids=[0], add_prefix_space=found.add_prefix_space
    )


def _require_enforced(schema: str) -> None:
    """ValueError for a schema that is no JSON, or that xgrammar would follow only in part."""
    try:
        problems = list(unenforced(json.loads(schema)))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except (AttributeError, TypeError) as error:
        raise ValueError(f"it is no JSON Schema: {error}") from error
    if problems:
        raise ValueError("; ".join(problems[:5]))


def build(config: XGrammarConfig, context: BuildContext) -> XGrammar:
    """See Component."""
    if context.codec is None:
        raise ConfigError(
            f"structured=xgrammar needs the texts of tokens, and model {context.model.name!r} has "
            "no tokenizer.json; choose structured=none"
        )
    return XGrammar(config, context.codec, context.model.vocab_size)
