"""What a user may ask of an output: how its tokens are drawn, when it ends, what comes with it."""

import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Literal, get_args

from interlock.core.capabilities import (
    EditsLogits,
    FollowsGrammars,
    MakesText,
    ReturnsLogprobs,
    RunsBeams,
)
from interlock.core.errors import shown
from interlock.core.options import option

MOST_STOPS, MOST_STOP_LENGTH = 16, 1000
"""Stop strings of a request, and characters of one."""
MOST_SAMPLES = 1024
"""Of one request."""

MOST = sys.float_info.max
MOST_WHOLE = 2**63 - 1
"""Of any whole number that a request gives: more fit in no array and no file."""

GrammarKind = Literal["json_schema", "regex", "grammar"]
"""JSON Schema, a regular expression for the whole output, or EBNF rules from `root` on."""
GRAMMARS: tuple[GrammarKind, ...] = get_args(GrammarKind)

_NOT_WITH_BEAMS = frozenset(
    ("temperature", "seed", "best_of", "stop", "repetition_penalty", "presence_penalty",
     "frequency_penalty", "logit_bias", "allowed_token_ids", *GRAMMARS)
)  # fmt: skip

_edit = partial(option, needs=(EditsLogits(),))
_grammar = partial(option, None, needs=(FollowsGrammars(),))


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are drawn; the order in which the fields apply is written in core/verifier.py.

    temperature 0 is argmax (lowest id on ties). top_k 0 and top_p 1 and min_p 0 switch a filter
    off; top_p 0 keeps one token. `logprobs` asks for that many top log-probabilities (raw law)
    beside the chosen token's, `prompt_logprobs` for as many beside each prompt token's. `seed` None
    derives one from the run's seed and the request's index. `n` samples are given out; each draws
    from a stream of its own (`sample_seed` in core/streams.py). With `best_of` above n that many
    run, and those n whose tokens have the highest mean log-probability (raw law) are given out when
    all have ended. With `beam_width` above 1 the outputs are those of a beam search, best first;
    the last two fields of its three mean what they mean in transformers. `logit_bias` may be given
    as a mapping; it is kept as pairs (token id, bias). At most one of json_schema (a mapping
    becomes text), regex and grammar is given.
    """

    temperature: float = option(0.0, "0: the most likely token")
    top_k: int = option(0, "draw from the k most likely tokens; 0: off")
    top_p: float = option(1.0, "draw from the most likely tokens of this total probability")
    min_p: float = option(0.0, "drop tokens below this share of the most likely one's probability")
    seed: int | None = option(None, "seed of every request; null: from the run's seed and index")
    max_tokens: int = option(64, "output limit")
    stop_token_ids: tuple[int, ...] = option((), "token ids that end the output")
    ignore_eos: bool = option(False, "do not stop at the model's end tokens")
    logprobs: int | None = option(
        None, "top log-probabilities to return per token; null: none", needs=(ReturnsLogprobs(),)
    )
    stop: tuple[str, ...] = option(
        (), "texts that end the output, which is cut before them", needs=(MakesText(),)
    )
    include_stop: bool = option(False, "cut the output's text behind what ended it, not before")
    detokenize: bool = option(
        False, "give the output's text as well as its tokens", needs=(MakesText(),)
    )
    echo: bool = option(
        False, "give the prompt back before the output, with log-probabilities if logprobs is set"
    )
    repetition_penalty: float = _edit(
        1.0, "above 1 makes tokens of prompt and output rarer; 1: off"
    )
    presence_penalty: float = _edit(0.0, "off the logit of each token in the output; -2 to 2")
    frequency_penalty: float = _edit(0.0, "off a token's logit for each time it is in the output")
    min_tokens: int = _edit(0, "output tokens before which nothing that ends the output can come")
    logit_bias: tuple[tuple[int, float], ...] | None = _edit(
        None, "added to logits: {id: -100 to 100, ...}; null: nothing"
    )
    prompt_logprobs: int | None = option(
        None,
        "top log-probabilities to return per prompt token; null: none",
        needs=(ReturnsLogprobs(),),
    )
    n: int = option(1, "samples of each prompt")
    best_of: int | None = option(
        None, "run so many samples and return the n likeliest; null: n", needs=(ReturnsLogprobs(),)
    )
    beam_width: int = option(
        1, "beams of a beam search, whose n best outputs are given out; 1: no search",
        needs=(RunsBeams(), ReturnsLogprobs()),
    )  # fmt: skip
    length_penalty: float = option(
        1.0, "a beam's log-probability is divided by its length to this power; above 0: longer"
    )
    early_stopping: bool | Literal["never"] = option(
        False,
        "end a beam search with beam_width outputs (true), when its best beam looks no better than "
        "they (false), or cannot become better (never)",
    )
    allowed_token_ids: tuple[int, ...] | None = _edit(None, "the only ids to draw from; null: all")
    banned_token_ids: tuple[int, ...] = _edit((), "token ids that can never come")

    json_schema: str | None = _grammar("JSON Schema that the output is an instance of, as text")
    regex: str | None = _grammar("regular expression that the whole output matches")
    grammar: str | None = _grammar("EBNF grammar of the output, from its rule `root` on")

    def __post_init__(self) -> None:
        if isinstance(self.json_schema, Mapping):
            with suppress(TypeError, ValueError, RecursionError):  # `problems` names the field
                object.__setattr__(self, "json_schema", json.dumps(self.json_schema))
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        if isinstance(self.logit_bias, Mapping):
            pairs = tuple((_id(key), bias) for key, bias in self.logit_bias.items())
            object.__setattr__(self, "logit_bias", pairs)

    @property
    def samples(self) -> int:
        """How many samples run."""
        if self.beam_width > 1:
            return self.beam_width
        return self.n if self.best_of is None else self.best_of

    @property
    def selects(self) -> bool:
        """True when samples are given out when all have ended, for some may not be."""
        return self.beam_width > 1 or self.samples > self.n

    def problems(self, vocab_size: int | None = None) -> list[str]:
        """Every field that is out of range, each named with its value and what is allowed."""
        most = self.max_tokens if is_whole(self.max_tokens) else MOST_WHOLE
        least_best = self.n if is_whole(self.n) else 1
        ids = f"token ids from 0 to {vocab_size - 1}" if vocab_size else "token ids >= 0"
        allowed = self.allowed_token_ids
        checks = [
            (_within(self.temperature, 0, MOST), "temperature", "a finite number >= 0"),
            (is_whole(self.top_k), "top_k", "an integer from 0 to 2**63 - 1 (0: off)"),
            (_within(self.top_p, 0, 1), "top_p", "a number from 0 to 1"),
            (_within(self.min_p, 0, 1), "min_p", "a number from 0 to 1"),
            (_may_be(self.seed, 0, 2**64 - 1), "seed", "an integer from 0 to 2**64 - 1, or null"),
            (is_whole(self.max_tokens, 1), "max_tokens", "an integer from 1 to 2**63 - 1"),
            *((_may_be(getattr(self, name), 0, 100), name, "an integer from 0 to 100, or null")
              for name in ("logprobs", "prompt_logprobs")),
            (is_whole(self.n, 1, MOST_SAMPLES), "n", f"an integer from 1 to {MOST_SAMPLES}"),
            (_may_be(self.best_of, least_best, MOST_SAMPLES), "best_of",
             f"an integer from n to {MOST_SAMPLES}, or null"),
            (is_whole(self.beam_width, 1, MOST_SAMPLES), "beam_width",
             f"an integer from 1 to {MOST_SAMPLES}"),
            (_within(self.length_penalty, -10, 10), "length_penalty", "a number from -10 to 10"),
            (self.early_stopping in (True, False, "never") and not is_whole(self.early_stopping),
             "early_stopping", "true, false or never"),
            (_are_ids(self.stop_token_ids, vocab_size), "stop_token_ids", ids),
            (_are_stops(self.stop), "stop",
             f"up to {MOST_STOPS} texts of 1 to {MOST_STOP_LENGTH} characters"),
            *((isinstance(getattr(self, name), bool), name, "true or false")
              for name in ("ignore_eos", "include_stop", "detokenize", "echo")),
            (_within(self.repetition_penalty, 0.01, 100),
             "repetition_penalty", "a number from 0.01 to 100 (1: off)"),
            (_within(self.presence_penalty, -2, 2), "presence_penalty", "a number from -2 to 2"),
            (_within(self.frequency_penalty, -2, 2), "frequency_penalty", "a number from -2 to 2"),
            (is_whole(self.min_tokens, 0, most),
             "min_tokens", f"an integer from 0 to max_tokens={shown(self.max_tokens)}"),
            (self.logit_bias is None or _is_bias(self.logit_bias, vocab_size),
             "logit_bias", f"biases from -100 to 100 of different {ids}"),
            (allowed is None or _are_ids(allowed, vocab_size), "allowed_token_ids", ids),
            (_are_ids(self.banned_token_ids, vocab_size), "banned_token_ids", ids),
            *((text is None or (isinstance(text, str) and text.strip()), kind, "a text, or null")
              for kind, text in ((kind, getattr(self, kind)) for kind in GRAMMARS)),
        ]  # fmt: skip
        wrong = [(name, what) for ok, name, what in checks if not ok]
        found = [f"{name}={shown(getattr(self, name))} is not {what}" for name, what in wrong]
        kinds = [kind for kind in GRAMMARS if getattr(self, kind) is not None]
        if len(kinds) > 1:
            found.append(f"{' and '.join(kinds)} cannot both hold; ask for one of them")
        if not found:
            found = self._about_beams()
        return found or self._nothing_left(vocab_size)

    def _about_beams(self) -> list[str]:
        """What a beam search, which ranks raw laws, cannot follow; what means nothing without."""
        if self.beam_width == 1:
            own = self.length_penalty != 1, self.early_stopping is not False
            return [
                f"{name}={shown(getattr(self, name))} is of a beam search; set beam_width above 1"
                for name, given in zip(("length_penalty", "early_stopping"), own, strict=True)
                if given
            ]
        followed = {f.name: f.default for f in fields(self) if f.name in _NOT_WITH_BEAMS}
        found = [
            f"{name}={shown(getattr(self, name))} cannot be followed by a beam search "
            f"(beam_width={self.beam_width}); leave one of them out"
            for name, default in followed.items()
            if getattr(self, name) != default
        ]
        if self.n > self.beam_width:
            found.append(f"n={self.n} is not an integer from 1 to beam_width={self.beam_width}")
        return found

    def _nothing_left(self, vocab_size: int | None) -> list[str]:
        allowed, banned = self.allowed_token_ids, set(self.banned_token_ids)
        if len(banned) < (vocab_size or MOST_WHOLE) if allowed is None else set(allowed) - banned:
            return []
        return ["allowed_token_ids and banned_token_ids leave no token that could come"]


def _may_be(value: Any, least: int, most: int) -> bool:
    return value is None or is_whole(value, least, most)


def _within(value: Any, least: float, most: float) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and least <= value <= most


def _are_ids(value: Any, vocab_size: int | None) -> bool:
    """A tuple of token ids."""
    return isinstance(value, tuple) and all(
        is_whole(token, 0, (vocab_size or 2**63) - 1) for token in value
    )


def _is_bias(value: Any, vocab_size: int | None) -> bool:
    """Pairs of different token ids and biases."""
    if not isinstance(value, tuple) or not all(isinstance(p, tuple) and len(p) == 2 for p in value):
        return False
    ids = tuple(token for token, _ in value)
    sound = _are_ids(ids, vocab_size) and len(set(ids)) == len(ids)
    return sound and all(_within(bias, -100, 100) for _, bias in value)


def _id(key: Any) -> Any:
    """A token id that JSON wrote as a text."""
    return int(key) if isinstance(key, str) and key.isdecimal() and len(key) < 20 else key


def _are_stops(value: Any) -> bool:
    listed = isinstance(value, tuple) and len(value) <= MOST_STOPS
    return listed and all(isinstance(s, str) and 1 <= len(s) <= MOST_STOP_LENGTH for s in value)


def is_whole(value: Any, least: int = 0, most: int = MOST_WHOLE) -> bool:
    """Whether this is an integer (true and false are none) from `least` to `most`."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
