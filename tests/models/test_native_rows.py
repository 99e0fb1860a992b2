"""Compiled norms, gates and rotations equal their formulas in fp64 on rows of any size."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.plugins.models.native.rows import DTYPES, NativeRows, native_rows
from interlock.plugins.models.row_tiles import FAST
from interlock.plugins.native import library

CPU = torch.device("cpu")
ERROR = {torch.float32: 3e-6, torch.bfloat16: 2**-8}
"""Relative, of the largest number: a few last bits in fp32; one rounding to bf16."""
cells = given(
    dtype=st.sampled_from(list(DTYPES)),
    rows=st.integers(1, 40),
    size=st.integers(1, 80).map(lambda n: 2 * n),
    seed=st.integers(0, 9),
)


@pytest.fixture(autouse=True)
def compiled():
    if not isinstance(native_rows(torch.float32, CPU), NativeRows):
        pytest.skip("no C++ compiler on this machine")


def drawn(seed, *shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).mul(4).to(dtype)


def close(found, expected, dtype):
    assert found.dtype == dtype
    error = (found.double() - expected).abs().max()
    assert error <= ERROR[dtype] * max(1.0, float(expected.abs().max()))


@settings(max_examples=60, deadline=None)
@cells
def test_norm_is_the_formula(dtype, rows, size, seed):
    wide = drawn(seed, rows, size + 3, dtype=dtype)[:, 1 : size + 1]
    weight = drawn(seed + 1, size)
    x = wide.double()
    expected = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * weight.double()
    close(native_rows(dtype, CPU).norm(wide, weight, 1e-5), expected, dtype)


@settings(max_examples=60, deadline=None)
@cells
def test_swiglu_is_the_formula(dtype, rows, size, seed):
    gate_up = drawn(seed, rows, size, dtype=dtype) * 12
    gate, up = gate_up.double().chunk(2, -1)
    close(native_rows(dtype, CPU).swiglu(gate_up), gate / (1 + torch.exp(-gate)) * up, dtype)


@settings(max_examples=60, deadline=None)
@cells
def test_rotation_turns_pairs_and_leaves_the_rest(dtype, rows, size, seed):
    x = drawn(seed, rows, 5, size + 4, dtype=dtype)[:, 1:4]
    angle = drawn(seed + 1, rows, 1, size // 2).double()
    cos, sin = angle.cos(), angle.sin()
    first, second, rest = x.double().split((size // 2, size // 2, 4), -1)
    turned = (first * cos - second * sin, second * cos + first * sin, rest)
    tables = torch.cat((cos, cos), -1).float(), torch.cat((-sin, sin), -1).float()
    close(native_rows(dtype, CPU).rotate(x, *tables), torch.cat(turned, -1), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_that_are_none_stay_in_their_row(dtype):
    rows = native_rows(dtype, CPU)
    x = drawn(0, 3, 32, dtype=dtype)
    x[1, 3], x[1, 20] = float("nan"), float("inf")
    weight, tables = torch.ones(32), (torch.ones(3, 1, 32), torch.zeros(3, 1, 32))
    results = rows.norm(x, weight, 1e-5), rows.swiglu(x), rows.rotate(x[:, None], *tables)[:, 0]
    for result in results:
        assert result[1].isnan().any()
        assert result[[0, 2]].isfinite().all()


def test_other_dtypes_and_machines_without_a_compiler_run_on_torch(monkeypatch):
    assert native_rows(torch.float64, CPU) is FAST
    assert native_rows(torch.float32, torch.device("meta")) is FAST
    library.tried.cache_clear()
    monkeypatch.setattr(library, "COMPILERS", ("no-such-compiler",))
    try:
        assert native_rows(torch.float32, CPU) is FAST
    finally:
        library.tried.cache_clear()
