"""The greedy token: the same as torch's argmax, found in two steps."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from interlock.plugins.executor.sampling import first_largest

VALUES = (0.0, -0.0, 1.0, 1.0, -3.0, float("inf"), float("-inf"), float("nan"))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_ties_infinities_and_nans_give_the_token_of_argmax(data: st.DataObject) -> None:
    vocab = data.draw(st.sampled_from((1, 15, 16, 17, 48, 512, 1000, 1024, 1536)))
    rows = data.draw(st.integers(0, 4))
    dtype = data.draw(st.sampled_from((torch.bfloat16, torch.float32, torch.float64)))
    base = data.draw(st.sampled_from(VALUES))
    x_NV = torch.full((rows, vocab), base, dtype=dtype)
    for _ in range(data.draw(st.integers(0, 6)) if rows else 0):
        row, place = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, vocab - 1))
        x_NV[row, place] = data.draw(st.sampled_from(VALUES))
    assert first_largest(x_NV).tolist() == x_NV.argmax(-1).tolist()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_random_rows_give_the_token_of_argmax(dtype: torch.dtype) -> None:
    x_NV = torch.randn(16, 49152, generator=torch.Generator().manual_seed(0)).to(dtype)
    assert torch.equal(first_largest(x_NV), x_NV.argmax(-1))
    strided_NV = x_NV[:, ::2]
    assert torch.equal(first_largest(strided_NV), strided_NV.argmax(-1))
