"""Penalties, biases and masks of a request: its history, and what a step's rows get of it.

A request keeps the counts of its history, so that a step costs it its new tokens and a copy of the
counts. Row 0 of its rows in a step is the anchor's, row 1 + i belongs to candidate i, whose
history includes the candidates on the way to it.

Legend: N rows of a request, E different tokens of a request, W words of 32 tokens.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from interlock.core.batch import Draft, Ints, Words
from interlock.core.errors import ContractError
from interlock.core.request import SamplingParams
from interlock.core.structured import Matcher


class NodeEdits(NamedTuple):
    """The edits of one request's rows in one step, as host values that nobody changes."""

    tokens_E: Ints
    """Each token once, those that nothing happens to included."""
    in_prompt_E: NDArray[np.bool_]
    """Whether a repetition penalty finds it in the prompt."""
    bias_E: NDArray[np.float64]
    counts_NE: NDArray[np.int32]
    """How often each is in the output up to each row."""
    masks_NW: Words | None


class LogitEdits:
    """What changes one request's logits, and the history that it depends on."""

    def __init__(
        self,
        params: SamplingParams,
        vocab_size: int,
        stop_ids: Collection[int],
        prompt: Ints,
        matcher: Matcher | None = None,
    ) -> None:
        """`stop_ids` end this request: none of them can come before min_tokens.

        `matcher` stands at the start of the output; it is this object's from now on.
        """
        self._stop_ids, self._matcher = stop_ids, matcher
        self._min_tokens, self._emitted = params.min_tokens, 0
        everything_W = mask_of(range(vocab_size), vocab_size)
        self._going_on_W = everything_W & ~mask_of(stop_ids, vocab_size)
        self._mask_W = everything_W & ~mask_of(params.banned_token_ids, vocab_size)
        if params.allowed_token_ids is not None:
            self._mask_W &= mask_of(params.allowed_token_ids, vocab_size)
        self._masks = matcher is not None or bool((self._mask_W != everything_W).any())
        repeats = params.repetition_penalty != 1
        self._counts = repeats or bool(params.presence_penalty or params.frequency_penalty)
        self._places: dict[int, int] = {}
        self._tokens_E = np.zeros(64, dtype=np.int64)
        self._in_prompt_E = np.zeros(64, dtype=np.bool_)
        self._bias_E = np.zeros(64, dtype=np.float64)
        self._counts_E = np.zeros(64, dtype=np.int32)
        for token, bias in params.logit_bias or ():
            place = self._place(token)
            self._bias_E[place] = bias
        for token in np.unique(prompt).tolist() if repeats else ():
            place = self._place(token)
            self._in_prompt_E[place] = True

    def _place(self, token: int) -> int:
        """Where the token is in the arrays, which may be new ones now. Places never change."""
        place = self._places.setdefault(token, len(self._places))
        if place == len(self._tokens_E):
            for name in ("_tokens_E", "_in_prompt_E", "_bias_E", "_counts_E"):
                old_E = getattr(self, name)
                setattr(self, name, np.concatenate([old_E, np.zeros_like(old_E)]))
        self._tokens_E[place] = token
        return place

    def commit(self, tokens: Sequence[int]) -> None:
        """Take in tokens that were given out. Amortised O(len(tokens))."""
        self._emitted += len(tokens)
        for token in tokens if self._counts else ():
            place = self._place(token)
            self._counts_E[place] += 1
        if self._matcher is None:
            return
        for token in tokens:
            if token not in self._stop_ids and not self._matcher.accept(token):
                name = type(self._matcher).__name__
                raise ContractError(f"token {token} came, which {name} does not allow")

    def at(self, draft: Draft) -> NodeEdits | None:
        """The edits after the newest token and after each candidate; None if there are none."""
        masks_NW = self._masks_at(draft)
        candidates = [self._place(token) for token in draft.tokens] if self._counts else ()
        known = len(self._places)
        if masks_NW is None and not known:
            return None
        counts_NE = np.tile(self._counts_E[:known], (1 + len(draft.tokens), 1))
        for node, place in enumerate(candidates):
            parent = draft.parents[node] if draft.parents else node - 1
            counts_NE[node + 1] = counts_NE[parent + 1]
            counts_NE[node + 1, place] += 1
        return NodeEdits(
            self._tokens_E[:known], self._in_prompt_E[:known], self._bias_E[:known], counts_NE,
            masks_NW,
        )  # fmt: skip

    def _masks_at(self, draft: Draft) -> Words | None:
        if not self._masks and self._emitted >= self._min_tokens:
            return None
        emitted_N = self._emitted + np.array([0, *draft.depths()])
        masks_NW = np.tile(self._mask_W, (len(emitted_N), 1))
        masks_NW[emitted_N < self._min_tokens] &= self._going_on_W
        if self._matcher is not None:
            self._follow(draft, self._matcher, masks_NW)
        return masks_NW

    def _follow(self, draft: Draft, matcher: Matcher, masks_NW: Words) -> None:
        """Narrow each row's mask to what its path allows; rows behind a dead end are left alone.

        One walk down the tree: a candidate is accepted, its children follow, it is taken back.
        """
        children: list[list[int]] = [[] for _ in masks_NW]
        for node in reversed(range(len(draft.tokens))):
            children[(draft.parents[node] if draft.parents else node - 1) + 1].append(node)
        masks_NW[0] &= matcher.allowed()
        leave = -1
        stack = children[0]
        while stack:
            node = stack.pop()
            if node == leave:
                matcher.rollback(1)
            elif draft.tokens[node] not in self._stop_ids and matcher.accept(draft.tokens[node]):
                masks_NW[node + 1] &= matcher.allowed()
                stack += [leave, *children[node + 1]]


def mask_of(tokens: Collection[int], vocab_size: int) -> Words:
    """The mask that allows these tokens alone. [W]"""
    bits = np.zeros(-(-vocab_size // 32) * 32, dtype=np.bool_)
    bits[list(tokens)] = True
    return np.packbits(bits, bitorder="little").view("<i4")
