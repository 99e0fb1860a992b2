"""The paged write stores exactly the new rows, and quantises as torch rounds."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.core.planes import make_attention_batch
from interlock.plugins.attention.fp8 import quantised
from interlock.plugins.attention.kernels import INTERPRETED
from interlock.plugins.attention.kernels.ragged import RaggedPlan
from interlock.plugins.attention.kernels.write import write_heads


def scene(lengths, starts, page, seed=0):
    """A plan over scattered pages, and the slot of every new token."""
    random = np.random.default_rng(seed)
    ends = [start + new for start, new in zip(starts, lengths, strict=True)]
    needed = [-(-end // page) for end in ends]
    pages = 1 + random.permutation(sum(needed) + 2)[: sum(needed)]
    table = np.zeros((len(starts), max(needed)), dtype=np.int64)
    slots, at = [], 0
    for row, count in enumerate(needed):
        table[row, :count] = pages[at : at + count]
        at += count
        entries = range(starts[row], ends[row])
        slots += [int(table[row, e // page]) * page + e % page for e in entries]
    plan = RaggedPlan(
        make_attention_batch(
            row_offsets=np.cumsum([0, *lengths]).tolist(),
            starts=starts,
            positions=[e for s, n in zip(starts, lengths, strict=True) for e in range(s, s + n)],
            page_tables=(torch.from_numpy(table),),
            page_size=page,
            tree_masks={},
            device=torch.device("cpu"),
        )
    )
    return plan, slots, sum(needed) + 3


ROWS = st.lists(st.tuples(st.sampled_from([1, 2, 15, 16, 17, 63]), st.integers(0, 100)), min_size=1,
                max_size=3)  # fmt: skip


@settings(max_examples=12, deadline=None, derandomize=True, database=None)
@given(
    rows=ROWS,
    page=st.sampled_from([1, 16, 64]),
    sizes=st.sampled_from([(8, 8), (80, 80), (12, 5), (96, 128)]),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16, torch.float64]),
    apart=st.booleans(),
)
def test_new_rows_are_in_their_slots_and_nothing_else_is_written(rows, page, sizes, dtype, apart):
    assert INTERPRETED
    lengths, starts = [new for new, _ in rows], [start for _, start in rows]
    plan, slots, pages = scene(lengths, starts, page)
    tokens, heads = sum(lengths), 2
    torch.manual_seed(0)
    new = [torch.randn(tokens, heads + 1, size).to(dtype) for size in sizes]
    new = [x[:, :heads] if apart else x[:, :heads].contiguous() for x in new]
    planes = [torch.full((pages, page, heads, size), float("nan"), dtype=dtype) for size in sizes]
    wanted = [plane.clone() for plane in planes]
    for x, plane in zip(new, wanted, strict=True):
        plane.flatten(0, 1)[slots] = x
    write_heads(plan, 0, *new, *planes, None, None)
    for plane, want in zip(planes, wanted, strict=True):
        torch.testing.assert_close(plane, want, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_quantised_rows_have_the_codes_and_scales_of_the_torch_path(dtype):
    plan, slots, pages = scene([16, 7], [5, 0], 4)
    torch.manual_seed(1)
    spread = torch.logspace(-6, 3, 23)[:, None, None]
    k, v = ((torch.randn(23, 2, size) * spread).to(dtype) for size in (24, 16))
    k[3, 1] = 0.0
    k[4, 0] *= 1e-3
    k[4, 0, 0] = 1.0  # the others are below the smallest normal number
    k[5, 0, 3], k[6, 1, 5], v[7, 0, 1] = float("nan"), float("inf"), -float("inf")
    k[8, 0, 0] = 65000.0  # fp16 has no number for the code that is next
    planes = [torch.full((pages, 4, 2, size), 0x7F, dtype=torch.uint8) for size in (24, 16)]
    scales = [torch.full((pages, 4, 2), -1.0) for _ in range(2)]
    write_heads(plan, 0, k, v, *planes, *scales)
    for x, plane, scale in zip((k, v), planes, scales, strict=True):
        want_codes, want_scale = quantised(x)
        stored, stored_scale = plane.flatten(0, 1)[slots], scale.flatten(0, 1)[slots]
        torch.testing.assert_close(stored_scale, want_scale, rtol=0, atol=0, equal_nan=True)
        finite = want_scale.isfinite()
        assert torch.equal(stored[finite], want_codes.view(torch.uint8)[finite])
        values = stored.view(torch.float8_e4m3fn).float() * stored_scale[..., None]
        assert values[~finite].isnan().all()
        others = sorted(set(range(pages * 4)) - set(slots))
        assert (scale.flatten(0, 1)[others] == -1).all()
        assert (plane.flatten(0, 1)[others] == 0x7F).all()
