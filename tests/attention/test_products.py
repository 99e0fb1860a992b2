"""Products are those of torch, and a machine whose bits depend on a batch is refused."""

import pytest
import torch

from interlock.core.errors import ConfigError
from interlock.plugins.attention import products
from interlock.plugins.attention.products import PRODUCT_ROWS, project

BMM = torch.bmm


@pytest.fixture
def unverified():
    yield
    products._verify_batches.cache_clear()
    products._verify_rows.cache_clear()


@pytest.mark.parametrize("tokens", [0, 1, 31, 32, 33, 70])
def test_a_projection_is_the_product_of_each_head(tokens):
    torch.manual_seed(0)
    x_THE, weight_HEF = torch.randn(tokens, 3, 10).double(), torch.randn(3, 10, 7).double()
    right = torch.einsum("the,hef->thf", x_THE, weight_HEF)
    torch.testing.assert_close(project(x_THE, weight_HEF), right, rtol=0, atol=1e-13)


def test_a_projections_rows_have_their_own_bits():
    torch.manual_seed(0)
    x_THE, weight_HEF = torch.randn(3 * PRODUCT_ROWS, 3, 24), torch.randn(3, 24, 40)
    whole_THF = project(x_THE, weight_HEF)
    for order in (torch.randperm(len(x_THE)), torch.randperm(len(x_THE))[:5]):
        assert torch.equal(project(x_THE[order], weight_HEF), whole_THF[order])


def test_bf16_is_projected_in_fp32():
    x_THE, weight_HEF = torch.randn(5, 2, 200).bfloat16(), torch.randn(2, 200, 3).bfloat16()
    right = torch.einsum("the,hef->thf", x_THE.double(), weight_HEF.double())
    torch.testing.assert_close(project(x_THE, weight_HEF).double(), right, rtol=0, atol=1e-4)


def test_a_product_on_devices_that_count_batches_always_has_the_same_number(monkeypatch):
    counts = []

    def counted(a, b):
        counts.append(len(a))
        return BMM(a, b)

    a, b = torch.randn(6, 2, 8, 16), torch.randn(6, 2, 16, 8)
    right = products.product(a, b)
    batched = products._batched
    monkeypatch.setattr(products.torch, "bmm", counted)
    # What a CPU does not need: the tensors claim to be elsewhere.
    monkeypatch.setattr(torch.Tensor, "is_cpu", property(lambda _: False))
    for blocks in (1, 6):
        found = batched(a[:blocks].flatten(0, 1), b[:blocks].flatten(0, 1), 64)
        assert torch.equal(found.view(blocks, 2, 8, 8), right[:blocks])
    assert counts == [64, 64]


def test_a_machine_whose_products_depend_on_the_batchs_size_is_refused(monkeypatch, unverified):
    monkeypatch.setattr(products.torch, "bmm", lambda a, b: BMM(a, b) * (1 + 1e-6 * len(a)))
    a, b = torch.randn(1, 1, 8, 96), torch.randn(1, 1, 96, 8)
    with pytest.raises(ConfigError, match=r"products \[8, 96\] x \[96, 8\] depend on what runs"):
        products.product(a, b)


def test_a_machine_whose_rows_depend_on_their_place_is_refused(monkeypatch, unverified):
    place = torch.arange(PRODUCT_ROWS)[None, :, None]
    monkeypatch.setattr(products.torch, "bmm", lambda a, b: BMM(a, b) * (1 + 1e-6 * place))
    with pytest.raises(ConfigError, match=r"rows of a product \[32, 96\] x \[96, 16\] depend"):
        project(torch.randn(5, 1, 96), torch.randn(1, 96, 8))
