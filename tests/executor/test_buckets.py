"""Steps padded to fixed shapes: nothing of the step changes, and padding points at scratch."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.core.batch import Batch
from interlock.plugins.executor.buckets import Buckets, empty, padded, row_counts, table_widths

SCRATCH = (900, 901)


@st.composite
def steps(draw):
    """Rows of 1 to 5 tokens with contexts of up to 700 entries."""
    size = draw(st.sampled_from((1, 16)))
    lengths = draw(st.lists(st.integers(1, 5), min_size=1, max_size=20))
    starts = np.array([draw(st.integers(0, 700)) for _ in lengths])
    offsets = np.append(0, np.cumsum(lengths))
    random = np.random.default_rng(draw(st.integers(0, 9)))
    slots = random.permutation(len(lengths) + 3)[: len(lengths)]
    shape = (len(lengths) + 3, -(-800 // size))
    tables = tuple(random.integers(0, 900, shape).astype(np.int32) for _ in SCRATCH)
    tokens = random.integers(2, 60, offsets[-1])
    positions = np.concatenate([s + np.arange(n) for s, n in zip(starts, lengths, strict=True)])
    ids = tuple(range(len(lengths)))
    counts = np.ones(len(lengths), dtype=np.int64)
    return Batch(ids, tokens, positions, offsets, starts, counts, {}, slots, tables, size)


@given(steps())
@settings(max_examples=150, deadline=None, derandomize=True)
def test_the_step_comes_first_and_the_rest_points_at_the_scratch_pages(batch):
    buckets = Buckets(row_counts(20), 4, 800, batch.page_size)
    bucket = buckets.fit(batch)
    filled = padded(batch, bucket, SCRATCH)
    rows, tokens = batch.num_rows, batch.num_tokens
    assert np.array_equal(filled.tokens_T[:tokens], batch.tokens)
    assert np.array_equal(filled.positions_T[:tokens], batch.positions)
    assert np.array_equal(filled.row_offsets[: rows + 1], batch.row_offsets)
    assert np.array_equal(filled.starts_R[:rows], batch.starts)
    assert (
        len(filled.tokens_T) == len(filled.positions_T) == bucket.tokens == filled.row_offsets[-1]
    )
    assert len(filled.starts_R) == len(filled.row_offsets) - 1 == bucket.rows
    lengths = np.diff(filled.row_offsets)[rows:]
    assert bool((lengths >= 0).all())
    assert max(lengths, default=0) <= bucket.row_tokens
    assert not filled.starts_R[rows:].any()
    ends = filled.starts_R + np.diff(filled.row_offsets)
    assert bucket.pages * batch.page_size >= ends.max()
    for table, of_batch, scratch in zip(filled.tables_RP, batch.tables, SCRATCH, strict=True):
        assert table.shape == (bucket.rows, bucket.pages)
        assert bool((table[rows:] == scratch).all())
        for row in range(rows):
            used = -(-ends[row] // batch.page_size)
            assert np.array_equal(table[row, :used], of_batch[batch.slots[row], :used])


@given(steps())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_a_step_fits_one_of_few_shapes_that_are_known_before(batch):
    buckets = Buckets(row_counts(20), 4, 800, batch.page_size)
    everything = buckets.all()
    assert buckets.fit(batch) in everything
    assert len(everything) == len(set(everything)) == 2 * len(buckets.counts) * len(buckets.pages)


def test_steps_that_no_bucket_holds_say_why():
    def batch(lengths, adapters=()):
        offsets = np.append(0, np.cumsum(lengths))
        flat, ones = np.zeros(offsets[-1], dtype=np.int64), np.ones(len(lengths), dtype=np.int64)
        ids = tuple(range(len(lengths)))
        table = np.zeros((len(lengths), 4), dtype=np.int32)
        return Batch(
            ids, flat, flat, offsets, 0 * ones, ones, {}, ones * 0, (table,), 16, (), adapters
        )

    buckets = Buckets((1, 2, 4), num_drafts=2, max_tokens=64, page_size=16)
    assert buckets.fit(batch([1] * 5)) == "more than 4 rows"
    assert buckets.fit(batch([1, 4])) == "rows of more than 3 tokens"
    assert buckets.fit(batch([1, 1], adapters=(-1, 0))) == "rows with an adapter"
    assert buckets.fit(batch([3, 1, 1])).tokens == 6


def test_an_empty_step_is_all_padding():
    buckets = Buckets((1, 4), num_drafts=1, max_tokens=64, page_size=16)
    for bucket in buckets.all():
        filled = padded(empty(2, 16), bucket, SCRATCH)
        assert len(filled.tokens_T) == bucket.tokens
        assert [set(np.unique(table)) for table in filled.tables_RP] == [{900}, {901}]


@pytest.mark.parametrize(
    ("most", "counts"),
    [(1, (1,)), (3, (1, 2, 3)), (8, (1, 2, 4, 8)), (20, (1, 2, 4, 8, 16, 20))],
)
def test_usual_counts_end_with_the_most_requests_there_are(most, counts):
    assert row_counts(most) == counts


@pytest.mark.parametrize(
    ("tokens", "size", "widths"),
    [(10, 16, (1,)), (256, 16, (16,)), (700, 16, (16, 32, 44)), (700, 512, (1, 2)), (3, 1, (3,))],
)
def test_tables_double_up_to_a_request_of_full_length(tokens, size, widths):
    assert table_widths(tokens, size) == widths
