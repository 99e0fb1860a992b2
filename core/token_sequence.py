"""A request's tokens so far, and the key rows by which the prefix index knows its pages."""

import hashlib
from collections.abc import Sequence

import numpy as np

from interlock.core.batch import Ints
from interlock.core.prefix_index import Units
from interlock.core.request import Request


class TokenSequence:
    """Prompt and output tokens, addressed by entry (position) number.

    The output is a list that belongs to the request's record and grows there; its tokens are copied
    into the array when an entry of them is first asked for.
    """

    def __init__(
        self, request: Request, page_size: int, lookback_tokens: int,
        output: list[int] | None = None,
    ) -> None:  # fmt: skip
        self.num_prompt = request.num_prompt_tokens
        self.output = [] if output is None else output
        self.rewritten = 0
        self._page_size = page_size
        self._lookback = lookback_tokens
        self._tokens = np.zeros(self.num_prompt + 64, dtype=np.int64)
        self._known = self.num_prompt
        self._hashed, self._words = request.hashed_prompt, list[int]()
        if self._hashed is None:
            self._tokens[: self.num_prompt] = request.prompt_token_ids

    @property
    def length(self) -> int:
        """Tokens so far."""
        return self.num_prompt + len(self.output)

    def slice(self, start: int, end: int) -> Ints:
        """Tokens of entries start .. end - 1 (zeros inside a hashed prompt), not to be written.

        Amortised O(new tokens).
        """
        if end > self._known:
            self._take_in()
        tokens = self._tokens[start:end]
        tokens.flags.writeable = False
        return tokens

    def _take_in(self) -> None:
        length = self.length
        if length > len(self._tokens):
            grown = np.zeros(max(length, 2 * len(self._tokens)), dtype=np.int64)
            grown[: self._known] = self._tokens[: self._known]
            self._tokens = grown
        self._tokens[self._known : length] = self.output[self._known - self.num_prompt :]
        self._known = length

    def rewrite(self, output: Sequence[int]) -> None:
        """Another output from now on, whose last token is new."""
        self.rewritten += 1
        self._words.clear()
        self.output[:] = output
        self._known = self.num_prompt

    def last(self) -> int:
        """The newest token."""
        return int(self.slice(self.length - 1, self.length)[0])

    @property
    def shared_entries(self) -> int:
        """Leading entries whose rows are the same for every sample of the prompt.

        The prompt's last token is left out: it is computed to draw the next one.
        """
        return max(0, self.num_prompt - max(1, self._lookback))

    def full_pages(self, entries: int) -> int:
        """How many leading pages of `entries` computed entries have everything their key needs."""
        known = min(entries, self.length - self._lookback)
        return max(0, known) // self._page_size

    def units(self, first_page: int, end_page: int) -> Units:
        """Key rows of pages first_page .. end_page - 1 (see PrefixKey)."""
        if self._hashed is not None:
            self._words += map(self._hashed_word, range(len(self._words), end_page))
            return np.array(self._words[first_page:end_page], dtype=np.int64).reshape(-1, 1)
        size, width = self._page_size, self._page_size + self._lookback
        if end_page <= first_page:
            return np.empty((0, width), dtype=np.int64)
        covered = self.slice(first_page * size, (end_page - 1) * size + width)
        if self._lookback == 0:
            return covered.reshape(-1, size)
        return np.lib.stride_tricks.sliding_window_view(covered, width)[::size]

    def row_start(self, page: int) -> Units:
        """The units that are known of a page's key row; none of a hashed prompt's."""
        first = page * self._page_size
        end = min(self.length, first + self._page_size + self._lookback)
        return self.slice(first, first if self._hashed is not None else max(first, end))

    def entries_of(self, units: int) -> int:
        """Leading entries of a page whose rows depend on no more than so many units of its key."""
        return max(0, min(units - self._lookback, self._page_size))

    def _hashed_word(self, page: int) -> int:
        """One word that stands for every token that a page of a hashed prompt depends on.

        Within one block: which of all blocks' tokens comes first. What spans blocks or reaches
        into the output is hashed (negative, so the two kinds never meet).
        """
        assert self._hashed is not None
        size, ids = self._hashed.block_tokens, self._hashed.block_ids
        first, end = page * self._page_size, (page + 1) * self._page_size + self._lookback
        block, offset = divmod(first, size)
        if end <= min(self.num_prompt, (block + 1) * size):
            return ids[block] * size + offset
        digest = hashlib.blake2b(digest_size=8)
        while first < min(end, self.num_prompt):
            block, offset = divmod(first, size)
            count = min(end, self.num_prompt, (block + 1) * size) - first
            digest.update(f"{ids[block]}/{offset}/{count};".encode())
            first += count
        digest.update(self.slice(first, end).tobytes())
        return -1 - (int.from_bytes(digest.digest(), "big") >> 1)
