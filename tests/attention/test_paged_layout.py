import pytest
import torch

from interlock.core.attention import AttentionBatch
from interlock.core.planes import make_attention_batch
from interlock.plugins.attention.paged import PagedPlan, Row, split_alike


def decode_batch(lengths: list[int], page_size: int = 16) -> AttentionBatch:
    pages = -(-(max(lengths) + 1) // page_size)
    return make_attention_batch(
        row_offsets=range(len(lengths) + 1),
        starts=lengths,
        positions=lengths,
        page_tables=(torch.arange(len(lengths) * pages).view(-1, pages),),
        page_size=page_size,
        tree_masks={},
        device=torch.device("cpu"),
    )


def test_decode_rows_of_like_length_are_one_batch_without_a_loop_over_rows() -> None:
    groups = PagedPlan(decode_batch([80 + r for r in range(32)])).groups(0, None)
    assert [tuple(group.slots_RS.shape) for group in groups] == [(32, 112)]


def test_a_window_layer_gathers_only_entries_inside_the_window() -> None:
    (group,) = PagedPlan(decode_batch([1000, 900])).groups(0, 8)
    assert group.slots_RS.shape == (2, 8)


def test_layers_of_one_kind_share_one_layout() -> None:
    plan = PagedPlan(decode_batch([40, 41]))
    assert plan.groups(0, None) is plan.groups(0, None)


@pytest.mark.parametrize("spans", [[1, 5, 64, 65, 2000, 2400, 9000], [100] * 5, [1000] * 9])
def test_padding_adds_little(spans: list[int]) -> None:
    rows = [Row(i, i, 1, span - 1, 0, False) for i, span in enumerate(spans)]
    lists = split_alike(rows, most_entries=4096)
    assert sorted(row.index for part in lists for row in part) == list(range(len(spans)))
    for part in lists:
        longest, shortest = max(r.span for r in part), min(r.span for r in part)
        assert longest <= max(shortest + 64, 1.25 * shortest)
        assert len(part) == 1 or len(part) * longest <= 4096


def test_a_step_without_tokens_has_nothing_to_attend() -> None:
    batch = make_attention_batch(
        [0], [], [], (torch.zeros(0, 1).long(),), 4, {}, torch.device("cpu")
    )
    plan = PagedPlan(batch)
    assert plan.groups(0, None) == []
    assert plan.write_slots[0].shape == (0,)
