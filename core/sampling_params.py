"""What a user may ask of an output: how its tokens are drawn, when it ends, what comes with it.

What values the fields may have is judged in `conf/check_sampling.py`, for settings and requests.
"""

import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

from interlock.core.capabilities import (
    EditsLogits,
    FollowsGrammars,
    MakesText,
    ReturnsLogprobs,
    RunsBeams,
)
from interlock.core.options import option

MOST = sys.float_info.max
MOST_WHOLE = 2**63 - 1
"""Of any whole number that a request gives: more fit in no array and no file."""

GrammarKind = Literal["json_schema", "regex", "grammar"]
"""JSON Schema, a regular expression for the whole output, or EBNF rules from `root` on."""
GRAMMARS: tuple[GrammarKind, ...] = get_args(GrammarKind)

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


def _id(key: Any) -> Any:
    """A token id that JSON wrote as a text."""
    return int(key) if isinstance(key, str) and key.isdecimal() and len(key) < 20 else key
