"""The noise that candidates are drawn with: new in every round, whoever else is in the batch."""

import torch

from interlock.core.drafter import DraftRows
from interlock.core.request import SamplingParams
from interlock.core.streams import Purpose, uniforms
from interlock.plugins.executor.drafting import draft_keys


def rows_of(*spans):
    """Rows of requests that committed entries start .. end - 1."""
    lengths = [end - start for start, end in spans]
    return DraftRows(
        features_NE=torch.zeros(sum(lengths), 1),
        tokens_N=torch.zeros(sum(lengths), dtype=torch.long),
        next_tokens_N=torch.zeros(sum(lengths), dtype=torch.long),
        row_offsets=tuple(sum(lengths[:i]) for i in range(len(lengths) + 1)),
        starts=tuple(start for start, _ in spans),
        limits=(3,) * len(spans),
        params=(SamplingParams(),) * len(spans),
        seeds=torch.zeros(len(spans), dtype=torch.long).numpy(),
    )


def test_a_position_has_other_noise_in_each_round_and_for_each_sibling():
    keys = [
        key
        for anchor in (7, 8, 9)
        for nth in range(3)
        for key in draft_keys(rows_of((0, anchor)), [0, 0], [10, 11], nth)
    ]
    assert len(set(keys)) == len(keys) == 18
    numbers = uniforms([5] * len(keys), keys, Purpose.DRAFT)
    assert len(set(numbers.tolist())) == len(keys)


def test_a_key_follows_from_the_anchor_whatever_was_committed_with_it():
    chunks = [rows_of((0, 9)), rows_of((8, 9)), rows_of((3, 4), (5, 9))]
    found = [draft_keys(rows, [len(rows.starts) - 1], [12]) for rows in chunks]
    assert found[0] == found[1] == found[2]
    assert 0 <= found[0][0] < 2**64
