"""What the fields of SamplingParams may be, as settings (`sampling.*`) and in requests."""

from dataclasses import fields
from typing import Any

from interlock.core.errors import shown
from interlock.core.sampling_params import GRAMMARS, MOST, MOST_WHOLE, SamplingParams

MOST_STOPS, MOST_STOP_LENGTH = 16, 1000
"""Stop strings of a request, and characters of one."""
MOST_SAMPLES = 1024
"""Of one request."""

_NOT_WITH_BEAMS = frozenset(
    ("temperature", "seed", "best_of", "stop", "repetition_penalty", "presence_penalty",
     "frequency_penalty", "logit_bias", "allowed_token_ids", *GRAMMARS)
)  # fmt: skip


def sampling_problems(params: SamplingParams, vocab_size: int | None = None) -> list[str]:
    """Every field that is out of range, each named with its value and what is allowed."""
    most = params.max_tokens if is_whole(params.max_tokens) else MOST_WHOLE
    least_best = params.n if is_whole(params.n) else 1
    ids = f"token ids from 0 to {vocab_size - 1}" if vocab_size else "token ids >= 0"
    allowed = params.allowed_token_ids
    checks = [
        (_within(params.temperature, 0, MOST), "temperature", "a finite number >= 0"),
        (is_whole(params.top_k), "top_k", "an integer from 0 to 2**63 - 1 (0: off)"),
        (_within(params.top_p, 0, 1), "top_p", "a number from 0 to 1"),
        (_within(params.min_p, 0, 1), "min_p", "a number from 0 to 1"),
        (_may_be(params.seed, 0, 2**64 - 1), "seed", "an integer from 0 to 2**64 - 1, or null"),
        (is_whole(params.max_tokens, 1), "max_tokens", "an integer from 1 to 2**63 - 1"),
        *((_may_be(getattr(params, name), 0, 100), name, "an integer from 0 to 100, or null")
          for name in ("logprobs", "prompt_logprobs")),
        (is_whole(params.n, 1, MOST_SAMPLES), "n", f"an integer from 1 to {MOST_SAMPLES}"),
        (_may_be(params.best_of, least_best, MOST_SAMPLES), "best_of",
         f"an integer from n to {MOST_SAMPLES}, or null"),
        (is_whole(params.beam_width, 1, MOST_SAMPLES), "beam_width",
         f"an integer from 1 to {MOST_SAMPLES}"),
        (_within(params.length_penalty, -10, 10), "length_penalty", "a number from -10 to 10"),
        (params.early_stopping in (True, False, "never") and not is_whole(params.early_stopping),
         "early_stopping", "true, false or never"),
        (_are_ids(params.stop_token_ids, vocab_size), "stop_token_ids", ids),
        (_are_stops(params.stop), "stop",
         f"up to {MOST_STOPS} texts of 1 to {MOST_STOP_LENGTH} characters"),
        *((isinstance(getattr(params, name), bool), name, "true or false")
          for name in ("ignore_eos", "include_stop", "detokenize", "echo")),
        (_within(params.repetition_penalty, 0.01, 100),
         "repetition_penalty", "a number from 0.01 to 100 (1: off)"),
        (_within(params.presence_penalty, -2, 2), "presence_penalty", "a number from -2 to 2"),
        (_within(params.frequency_penalty, -2, 2), "frequency_penalty", "a number from -2 to 2"),
        (is_whole(params.min_tokens, 0, most),
         "min_tokens", f"an integer from 0 to max_tokens={shown(params.max_tokens)}"),
        (params.logit_bias is None or _is_bias(params.logit_bias, vocab_size),
         "logit_bias", f"biases from -100 to 100 of different {ids}"),
        (allowed is None or _are_ids(allowed, vocab_size), "allowed_token_ids", ids),
        (_are_ids(params.banned_token_ids, vocab_size), "banned_token_ids", ids),
        *((text is None or (isinstance(text, str) and text.strip()), kind, "a text, or null")
          for kind, text in ((kind, getattr(params, kind)) for kind in GRAMMARS)),
    ]  # fmt: skip
    wrong = [(name, what) for ok, name, what in checks if not ok]
    found = [f"{name}={shown(getattr(params, name))} is not {what}" for name, what in wrong]
    kinds = [kind for kind in GRAMMARS if getattr(params, kind) is not None]
    if len(kinds) > 1:
        found.append(f"{' and '.join(kinds)} cannot both hold; ask for one of them")
    if not found:
        found = _about_beams(params)
    return found or _nothing_left(params, vocab_size)


def _about_beams(params: SamplingParams) -> list[str]:
    """What a beam search, which ranks raw laws, cannot follow; what means nothing without."""
    if params.beam_width == 1:
        own = params.length_penalty != 1, params.early_stopping is not False
        return [
            f"{name}={shown(getattr(params, name))} is of a beam search; set beam_width above 1"
            for name, given in zip(("length_penalty", "early_stopping"), own, strict=True)
            if given
        ]
    followed = {f.name: f.default for f in fields(params) if f.name in _NOT_WITH_BEAMS}
    found = [
        f"{name}={shown(getattr(params, name))} cannot be followed by a beam search "
        f"(beam_width={params.beam_width}); leave one of them out"
        for name, default in followed.items()
        if getattr(params, name) != default
    ]
    if params.n > params.beam_width:
        found.append(f"n={params.n} is not an integer from 1 to beam_width={params.beam_width}")
    return found


def _nothing_left(params: SamplingParams, vocab_size: int | None) -> list[str]:
    allowed, banned = params.allowed_token_ids, set(params.banned_token_ids)
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


def _are_stops(value: Any) -> bool:
    listed = isinstance(value, tuple) and len(value) <= MOST_STOPS
    return listed and all(isinstance(s, str) and 1 <= len(s) <= MOST_STOP_LENGTH for s in value)


def is_whole(value: Any, least: int = 0, most: int = MOST_WHOLE) -> bool:
    """Whether this is an integer (true and false are none) from `least` to `most`."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
