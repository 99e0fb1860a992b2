"""What this engine refuses of a request; one capacity rule shared with the scheduler.

Values that no engine takes are judged by `conf/check_request.py`.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from interlock.core.adapters import AdapterSet
from interlock.core.capabilities import EditsLogits, Feature, FollowsGrammars, MakesText
from interlock.core.errors import RequestError, shown
from interlock.core.kv_cache import KVCache
from interlock.core.logit_edits import LogitEdits
from interlock.core.request import HashedPrompt, Request, RequestId, refuse
from interlock.core.request_features import asked
from interlock.core.samples import SampleGroup
from interlock.core.sampling_params import GRAMMARS, MOST, MOST_WHOLE, SamplingParams
from interlock.core.search import SearchOf
from interlock.core.stop_text import OutputText
from interlock.core.structured import Matcher, StructuredOutput
from interlock.core.text import TextCodec

_EDITING = (EditsLogits(), FollowsGrammars())


@dataclass(frozen=True)
class Intake:
    """The limits of this engine for requests."""

    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    salt: bytes
    share_tenants: bool
    adapters: AdapterSet
    unsupported: Mapping[Feature, str]
    """What this composition cannot do for a request, with the reason."""
    problems: Callable[[Request, int], list[str]]
    """What is malformed in a request, whatever the engine; tokens are below the given number."""
    codec: TextCodec | None = None
    structured: StructuredOutput | None = None
    searches: Sequence[SearchOf] = ()
    limited_by: str = ""
    """Why the model takes no longer requests, where that is a special reason."""

    def check(self, request: Request, cache: KVCache) -> int:
        """The most tokens (prompt and output) the request may reach.

        Raises:
            RequestError: what is wrong, with the value and what is allowed.
        """
        prompt = request.num_prompt_tokens
        if prompt <= 0:
            raise refuse(request, "the prompt is empty; at least one token is needed")
        if problems := self.problems(request, self.vocab_size):
            raise refuse(request, "; ".join(problems))
        try:
            self.adapter(request)
        except RequestError as error:
            raise refuse(request, str(error)) from None
        for token in request.prompt_token_ids:
            if not (is_int(token) and 0 <= token < self.vocab_size):
                last = self.vocab_size - 1
                raise refuse(
                    request, f"token id {shown(token)} is outside the vocabulary 0 .. {last}"
                )
        if prompt >= self.max_model_len:
            limit = f"max_model_len {self.max_model_len}"
            raise refuse(
                request,
                f"the prompt has {prompt} tokens; with room for one more the model takes "
                f"{self.max_model_len - 1} ({'; '.join(filter(None, (limit, self.limited_by)))})",
            )
        for what, feature in asked(request):
            if feature in self.unsupported:
                raise refuse(request, f"{what} cannot be served: {self.unsupported[feature]}")
        self._require_a_way_on(request)
        length = min(prompt + request.sampling.max_tokens, self.max_model_len)
        shortage = cache.shortage(length - 1)
        if shortage:
            raise refuse(request, f"prompt {prompt} + max_tokens {length - prompt}: {shortage}")
        return length

    def _require_a_way_on(self, request: Request) -> None:
        if not request.sampling.min_tokens:
            return
        allowed, stop_ids = request.sampling.allowed_token_ids, self.stop_ids(request)
        going_on = set(range(self.vocab_size) if allowed is None else allowed) - stop_ids
        if not going_on.difference(request.sampling.banned_token_ids):
            raise refuse(
                request,
                f"min_tokens={request.sampling.min_tokens} cannot be reached: the tokens that "
                "allowed_token_ids and banned_token_ids leave all end the output",
            )

    def salt_of(self, request: Request) -> bytes:
        """What keeps this request's pages apart from other models', adapters' and tenants'."""
        tenant = "" if self.share_tenants else request.tenant
        name = tenant.encode(errors="surrogatepass")
        number = self.adapter(request)
        content = b"\0adapter:" + self.adapters.digests[number] if number >= 0 else b""
        key = self.salt + content + b"\0tenant:" + name
        return hashlib.blake2b(key, digest_size=16).digest()

    def adapter(self, request: Request) -> int:
        """The number of the request's adapter, -1 for none. RequestError for an unknown name."""
        return -1 if request.adapter is None else self.adapters.number(request.adapter)

    def stop_ids(self, request: Request) -> frozenset[int]:
        """Ids that end the request: its own, and the model's unless ignore_eos."""
        own = frozenset(request.sampling.stop_token_ids)
        return own if request.sampling.ignore_eos else own | frozenset(self.eos_token_ids)

    def output_text(self, request: Request) -> OutputText | None:
        """What makes the text of a request that asks for any; None where there can be none."""
        wanted, codec = request.sampling, self.codec
        if codec is None or MakesText() in self.unsupported:
            return None
        if not (wanted.stop or wanted.detokenize or wanted.echo):
            return None
        opening = request.prompt_text if wanted.echo else ""
        if opening is None:
            opening = codec.decode(request.prompt_token_ids)
        stream = codec.detokenizer(request.prompt_token_ids)
        return OutputText(stream, wanted.stop, wanted.include_stop, opening, wanted.min_tokens)

    def group(self, id: RequestId, request: Request, max_length: int) -> SampleGroup:
        """The samples of a request, none of them made yet; those of a search where it asks for one.

        Raises:
            RequestError: nobody searches so, or the vocabulary has too few tokens for it.
        """
        params, ends = request.sampling, self.stop_ids(request)
        tokens = max_length - request.num_prompt_tokens
        found = (search(id, params, ends, tokens) for search in self.searches)
        group = next((group for group in found if group is not None), None)
        if group is None and params.beam_width > 1:
            raise refuse(request, f"no plugin searches with beam_width={params.beam_width}")
        if group is not None and group.looked_at > self.vocab_size:
            raise refuse(
                request,
                f"beam_width={params.beam_width} ranks {group.looked_at} tokens after a beam "
                f"({len(ends)} may end the output); the vocabulary has {self.vocab_size}",
            )
        return group or SampleGroup(id, params)

    def edits(self, request: Request) -> LogitEdits | None:
        """What changes the request's logits; None if nothing does. RequestError: it cannot."""
        features = {feature for _, feature in asked(request)}
        if request.sampling.beam_width > 1 or features.isdisjoint(_EDITING):
            return None  # a beam search leaves out tokens itself
        prompt, ends = np.array(request.prompt_token_ids, dtype=np.int64), self.stop_ids(request)
        matcher = self._matcher(request, ends)
        return LogitEdits(request.sampling, self.vocab_size, ends, prompt, matcher)

    def _matcher(self, request: Request, ends: frozenset[int]) -> Matcher | None:
        for kind in GRAMMARS:
            text = getattr(request.sampling, kind)
            if text is None:
                continue
            if not ends:
                why = "its output could not end: ignore_eos without stop_token_ids"
                raise refuse(request, f"{kind} cannot be followed: {why}")
            assert self.structured is not None
            try:
                return self.structured.matcher(kind, text, ends)
            except ValueError as error:
                raise refuse(
                    request, f"{kind}={shown(text)} cannot be followed: {error}"
                ) from error
        return None


def due_s(request: Request) -> float:
    """When a request becomes visible: at its arrival, or at once if that is no time."""
    arrival_s = request.arrival_s
    sound = isinstance(arrival_s, int | float | np.number) and abs(arrival_s) <= MOST
    return arrival_s if sound else 0.0


def require_request(request: Any) -> None:
    """Raise TypeError for what is no request at all: no record could be kept of it."""
    prompt, hashed = request.prompt_token_ids, request.hashed_prompt
    checks = [
        ("index", "an integer >= 0", is_int(request.index) and request.index >= 0),
        ("sampling", "a SamplingParams", isinstance(request.sampling, SamplingParams)),
        ("prompt_token_ids", "a tuple of token ids", isinstance(prompt, tuple | list)),
        ("hashed_prompt", "a HashedPrompt, or None", hashed is None or _is_hashed(hashed)),
    ]
    for name, what, ok in checks:
        if not ok:
            raise TypeError(f"{name}={shown(getattr(request, name))} is not {what}")


def _is_hashed(prompt: Any) -> bool:
    sound = isinstance(prompt, HashedPrompt) and isinstance(prompt.block_ids, tuple | list)
    return sound and is_int(prompt.num_tokens)


def is_int(value: Any) -> bool:
    """Whether this is an integer that fits in any array and file."""
    return isinstance(value, int | np.integer) and bool(-MOST_WHOLE <= value <= MOST_WHOLE)
