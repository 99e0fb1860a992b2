"""Fixed shapes of decode and verification steps, and steps padded to them: host integers only.

Rows that pad a step are ordinary ones whose pages are all the scratch page, which no request has:
whatever they write, they cannot reach a real page. They come after the real rows, so the features
of real tokens are the first ones. Rows that are then still missing have no tokens.

Legend: R rows and T tokens of the bucket, P pages of its tables.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from interlock.core.batch import Batch, Ints, Pages

LEAST_ENTRIES = 256
"""Entries that the narrowest page tables hold; each wider bucket holds twice as many."""


class Bucket(NamedTuple):
    """A shape: `tokens` in `rows` rows of at most `row_tokens`, tables `pages` wide."""

    tokens: int
    rows: int
    row_tokens: int
    pages: int

    def __str__(self) -> str:
        return f"{self.tokens} tokens in {self.rows} rows, {self.pages} pages"


class Padded(NamedTuple):
    """A step that fills its bucket: what `make_attention_batch` takes, on the host."""

    tokens_T: Ints
    positions_T: Ints
    row_offsets: Ints
    starts_R: Ints
    tables_RP: tuple[Pages, ...]


class Buckets:
    """The shapes of one engine.

    `counts` are the numbers of requests, rising. A step in which every row has one token is padded
    to such a number of rows; one with drafts to such a number times the tokens that a row has with
    all of its `num_drafts` candidates.
    """

    def __init__(
        self, counts: Sequence[int], num_drafts: int, max_tokens: int, page_size: int
    ) -> None:
        self.counts = tuple(counts)
        self.row_tokens = sorted({1, min(1 + num_drafts, max_tokens)})
        self.pages = table_widths(max_tokens, page_size)

    def fit(self, batch: Batch) -> Bucket | str:
        """The smallest bucket that holds the step, or why none does."""
        lengths = np.diff(batch.row_offsets)
        longest, ends = int(lengths.max()), batch.starts + lengths
        if batch.num_rows > self.counts[-1]:
            return f"more than {self.counts[-1]} rows"
        if longest > self.row_tokens[-1]:
            return f"rows of more than {self.row_tokens[-1]} tokens"
        if batch.adapters:
            return "rows with an adapter"
        pages = self.pages[bisect_left(self.pages, -(-int(ends.max()) // batch.page_size))]
        return self.bucket(batch.num_tokens, self.row_tokens[longest > 1], pages)

    def bucket(self, tokens: int, row_tokens: int, pages: int) -> Bucket:
        """The smallest for so many tokens, in rows of at most `row_tokens`."""
        sizes = [count * row_tokens for count in self.counts]
        padded = sizes[bisect_left(sizes, tokens)]
        # Every request may bring a single token; the rest is padded with rows that are full.
        rows = min(padded, self.counts[-1] + padded // row_tokens)
        return Bucket(padded, rows, row_tokens, pages)

    def all(self) -> list[Bucket]:
        """Every bucket, the largest first."""
        return [
            self.bucket(count * row_tokens, row_tokens, pages)
            for row_tokens in reversed(self.row_tokens)
            for count in reversed(self.counts)
            for pages in reversed(self.pages)
        ]


def row_counts(max_requests: int) -> tuple[int, ...]:
    """The usual numbers of requests: 1, 2, 4, then every multiple of 8, and the largest."""
    counts = {n for n in (1, 2, 4, *range(8, max_requests, 8)) if n < max_requests}
    return (*sorted(counts), max_requests)


def table_widths(max_tokens: int, page_size: int) -> tuple[int, ...]:
    """Pages of the tables: for 256 entries, 512 and so on, and for a request of full length."""
    longest = -(-max_tokens // page_size)
    widths = []
    width = -(-LEAST_ENTRIES // page_size)
    while width < longest:
        widths.append(width)
        width *= 2
    return (*widths, longest)


def padded(batch: Batch, bucket: Bucket, scratch: Sequence[int]) -> Padded:
    """The step in its bucket; `scratch` is the scratch page of each table."""
    spare, rows = bucket.tokens - batch.num_tokens, batch.num_rows
    full, rest = divmod(spare, bucket.row_tokens)
    lengths = np.zeros(bucket.rows - rows, dtype=np.int64)
    lengths[:full] = bucket.row_tokens
    lengths[full : full + 1] = rest
    tables = [np.full((bucket.rows, bucket.pages), page, dtype=np.int32) for page in scratch]
    for table, of_batch in zip(tables, batch.tables, strict=True):
        width = min(bucket.pages, of_batch.shape[1])
        table[:rows, :width] = of_batch[batch.slots, :width]
    return Padded(
        tokens_T=np.append(batch.tokens, np.zeros(spare, dtype=np.int64)),
        positions_T=np.append(batch.positions, np.arange(spare) % bucket.row_tokens),
        row_offsets=np.append(batch.row_offsets, batch.num_tokens + np.cumsum(lengths)),
        starts_R=np.append(batch.starts, np.zeros(len(lengths), dtype=np.int64)),
        tables_RP=tuple(tables),
    )


def empty(num_tables: int, page_size: int) -> Batch:
    """A step without rows."""
    none = np.zeros(0, dtype=np.int64)
    tables = tuple(np.zeros((1, 1), dtype=np.int32) for _ in range(num_tables))
    return Batch(
        (), none, none, np.zeros(1, dtype=np.int64), none, none, {}, none, tables, page_size
    )
