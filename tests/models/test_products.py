"""A layer's products: packed ones against the formula in fp64, and where they must not be used."""

import pytest
import torch

from interlock.plugins.models.products import PlainProduct, can_pack, make_product
from interlock.plugins.models.row_tiles import TILED

PACKED = [dtype for dtype in (torch.float32, torch.bfloat16, torch.float16) if can_pack(dtype)]
ROUNDINGS = 8  # of sums over 100 terms of size 1 in fp32, and of the result in its dtype


def normal(*shape, dtype):
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))).to(dtype)


@pytest.mark.parametrize("dtype", PACKED, ids=str)
@pytest.mark.parametrize("tokens", [1, 2, 15, 16, 17, 63, 100])
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 7), (48, 32), (100, 63), (257, 96)])
@pytest.mark.parametrize("biased", [False, True])
def test_a_packed_product_is_the_formula_in_fp64(dtype, tokens, outputs, inputs, biased):
    weight, x = normal(outputs, inputs, dtype=dtype), normal(tokens, inputs, dtype=dtype)
    bias = normal(outputs, dtype=dtype) if biased else None
    wanted = x.double() @ weight.double().T + (bias.double() if biased else 0)
    product = make_product(weight, bias)
    weight.fill_(torch.nan)  # nothing reads the plain rows any more
    with torch.inference_mode():
        result = product(x)
    assert result.dtype == dtype
    assert (result.double() - wanted).abs().max() <= ROUNDINGS * torch.finfo(dtype).eps * (
        1 + wanted.abs().max()
    )


@pytest.mark.parametrize("dtype", PACKED, ids=str)
def test_a_packed_product_reads_rows_of_a_wider_tensor(dtype):
    weight, wide = normal(40, 24, dtype=dtype), normal(9, 64, dtype=dtype)
    product = make_product(weight)
    with torch.inference_mode():
        assert torch.equal(product(wide[:, 8:32]), product(wide[:, 8:32].contiguous()))


def test_no_rows_give_no_rows():
    with torch.inference_mode():
        result = make_product(torch.ones(5, 3))(torch.ones(0, 3))
    assert result.shape == (0, 5)


def test_fp64_and_matrices_without_rows_stay_plain():
    """fp64 is what every other dtype is compared with, so it stays with torch's own product."""
    for weight in (torch.ones(4, 3, dtype=torch.float64), torch.ones(0, 3)):
        assert isinstance(make_product(weight), PlainProduct)


def test_batch_invariant_rows_are_never_packed():
    assert isinstance(make_product(torch.ones(16, 16), rows=TILED), PlainProduct)


def test_packing_is_used_where_torch_has_it():
    """fp32 needs no special instructions: without this, every figure of the CPU would be slow."""
    assert can_pack(torch.float32) == torch.backends.mkldnn.is_available()
