"""A hash table from 64-bit words to pages that takes and forgets many pages at once."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from interlock.core.batch import Pages

Words = NDArray[np.uint64]
Places = NDArray[np.intp]

_EMPTY, _GONE = -1, -2
_FEWEST = 64
_MIX = 0x9E3779B97F4A7C15


class KeyTable:
    """Open addressing with linear probing (Knuth, The Art of Computer Programming, 6.4).

    A slot has a page, is empty, or was left by a page; a probe goes on past those, and a new page
    may take them. Adding and removing are a few array operations whatever the number of pages;
    looking a word up is plain Python. Several pages may have one word. Memory follows the pages:
    the table is built anew when it gets too full or too empty, O(1) a page in the long run.
    """

    def __init__(self, num_pages: int = 0) -> None:
        """Page ids below `num_pages` need no growth of the columns; larger ones are allowed."""
        self._words = np.zeros(num_pages, dtype=np.uint64)
        self._slot = np.zeros(num_pages, dtype=np.intp)
        self._size = 0
        self._clear(_FEWEST)

    def __len__(self) -> int:
        return self._size

    def pages(self, word: int) -> Iterator[int]:
        """Every page of a word, first one first."""
        place = (word * _MIX & (1 << 64) - 1) >> self._shift
        while (page := self._pages.item(place)) != _EMPTY:
            if page >= 0 and self._words.item(page) == word:
                yield page
            place = (place + 1) % len(self._pages)

    def add(self, words: Words, pages: Pages) -> None:
        """Enter pages, none of which is here."""
        places = pages.astype(np.intp)
        if len(pages) and (last := int(places.max())) >= len(self._words):
            more = max(last + 1, 2 * len(self._words)) - len(self._words)
            self._words = np.pad(self._words, (0, more))
            self._slot = np.pad(self._slot, (0, more))
        self._words[places] = words
        self._size += len(pages)
        if 2 * (self._used + len(pages)) > len(self._pages):
            self._rebuild(places)
        else:
            self._enter(places)

    def remove(self, pages: Pages) -> None:
        """Forget pages that are here."""
        self._pages[self._slot[pages]] = _GONE
        self._size -= len(pages)
        if 32 * self._size < len(self._pages) > _FEWEST:
            self._rebuild(np.empty(0, dtype=np.intp))

    def _rebuild(self, more: Places) -> None:
        """Without the slots that pages left, and with room for four times the pages."""
        known = self._pages[self._pages >= 0].astype(np.intp)
        self._clear(max(_FEWEST, 4 * self._size))
        self._enter(np.concatenate([known, more]))

    def _clear(self, room: int) -> None:
        bits = (room - 1).bit_length()
        self._shift = 64 - bits
        self._pages = np.full(1 << bits, _EMPTY, dtype=np.int32)
        self._used = 0
        """Slots that are not empty."""

    def _enter(self, pages: Places) -> None:
        """Every page goes to the first free slot; of those that meet in one, the last gets it."""
        slots = (self._words[pages] * np.uint64(_MIX) >> np.uint64(self._shift)).astype(np.intp)
        while len(pages):
            before = self._pages[slots]
            free = before < 0
            self._pages[slots[free]] = pages[free]
            placed = self._pages[slots] == pages
            self._slot[pages[placed]] = slots[placed]
            self._used += int(np.count_nonzero(before[placed] == _EMPTY))
            pages, slots = pages[~placed], slots[~placed] + 1
            slots[slots == len(self._pages)] = 0
