"""A row's result in tiles has the same bits whatever rows stand beside it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from interlock.core.checkpoint import describe_model, load_decoder
from interlock.core.errors import ConfigError
from interlock.core.parallel import Placement
from interlock.core.testing.tiny import write_tiny_checkpoint
from interlock.plugins.models import model_families
from interlock.plugins.models.hugging_face import HuggingFaceDirectory
from interlock.plugins.models.llama import LlamaFamily
from interlock.plugins.models.row_tiles import FAST, TILE, TILED

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
FAMILIES = model_families()
rows = st.integers(1, 3 * TILE + 1)
sizes = st.sampled_from([1, 3, 16, 33, 50, 64, 200, 2100])


def drawn(seed, *shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def norm(x):
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return functional.rms_norm(wide, wide.shape[-1:], None, 1e-6).to(x.dtype)


@settings(max_examples=60, deadline=None)
@given(rows, sizes, sizes, st.sampled_from(DTYPES), st.integers(0, 2**20))
def test_a_product_in_tiles_has_each_rows_own_bits(count, inputs, outputs, dtype, seed):
    x_TE, weight_FE = (
        drawn(seed, count, inputs, dtype=dtype),
        drawn(1, outputs, inputs, dtype=dtype),
    )
    bias_F = drawn(2, outputs, dtype=dtype)
    together = TILED.linear(x_TE, weight_FE, bias_F)
    for at in {0, count // 2, count - 1}:
        assert torch.equal(TILED.linear(x_TE[at : at + 1], weight_FE, bias_F)[0], together[at])
    tolerance = 1e-9 if dtype == torch.float64 else 0.01 * (inputs + 1) ** 0.5
    expected = x_TE.double() @ weight_FE.double().T + bias_F.double()
    rounding = torch.finfo(dtype).eps * expected.abs().max()
    assert (together.double() - expected).abs().max() <= tolerance + rounding


@settings(max_examples=60, deadline=None)
@given(rows, sizes, st.sampled_from(DTYPES), st.integers(0, 2**20))
@pytest.mark.parametrize("function", [
    norm, functional.silu, torch.sigmoid, torch.tanh, lambda x: x.softmax(-1),
    lambda x: functional.gelu(x, approximate="tanh"),
], ids=["norm", "silu", "sigmoid", "tanh", "softmax", "gelu"])  # fmt: skip
def test_a_function_in_tiles_has_each_rows_own_bits(function, count, size, dtype, seed):
    x_TE = drawn(seed, count, size, dtype=dtype)
    together = TILED.apply(function, x_TE)
    for at in {0, count // 2, count - 1}:
        assert torch.equal(TILED.apply(function, x_TE[at : at + 1])[0], together[at])
    assert torch.allclose(together, function(x_TE), rtol=2e-2 if dtype.itemsize == 2 else 1e-5)


def test_leading_axes_and_several_inputs_and_results_are_kept():
    x_THD, y_THD = drawn(0, 5, 3, 7), drawn(1, 5, 3, 7)
    total, product = TILED.apply(lambda a, b: (a + b, a * b), x_THD, y_THD)
    assert torch.equal(total, x_THD + y_THD)
    assert torch.equal(product, x_THD * y_THD)
    assert TILED.linear(x_THD, drawn(2, 4, 7)).shape == (5, 3, 4)


def test_no_rows_give_no_rows():
    none_TE = drawn(0, 0, 24)
    assert TILED.linear(none_TE, drawn(1, 7, 24)).shape == (0, 7)
    assert TILED.norm(none_TE, drawn(2, 24), 1e-6).shape == (0, 24)
    assert TILED.swiglu(drawn(3, 0, 2, 24)).shape == (0, 2, 12)


def test_a_product_that_depends_on_the_place_is_refused(monkeypatch):
    def placed(x_TE, weight_FE, bias_F=None):
        return x_TE @ weight_FE.T + torch.arange(len(x_TE))[:, None] * 1e-3

    monkeypatch.setattr(functional, "linear", placed)
    with pytest.raises(ConfigError, match="depends on its place"):
        TILED.linear(drawn(0, 3, 80), drawn(1, 112, 80))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["gqa", "mla_moe", "caps", "sinks"])
def test_a_decoders_rows_have_their_own_bits(kind, dtype, tmp_path):
    """Attention is left out: each query gives the first entries of itself."""
    description = describe_model(
        HuggingFaceDirectory(write_tiny_checkpoint(tmp_path, kind, FAMILIES)), FAMILIES
    )
    placement = Placement(dtype, torch.device("cpu"), numerics="batch_invariant")
    decoder = load_decoder(description, FAMILIES, placement)

    def attend(_layer, spec, inputs):
        query = inputs.q_THD if spec.form == "heads" else inputs.q_nope_THN
        return query[..., : spec.v_head_dim].contiguous()

    def logits(ids, positions):
        return decoder.logits(decoder.forward(ids, positions, attend))

    with torch.inference_mode():
        for seed in range(12):
            draw = torch.Generator().manual_seed(seed)
            count = int(torch.randint(1, 70, (1,), generator=draw))
            ids = torch.randint(64, (count,), generator=draw)
            positions = torch.randint(200, (count,), generator=draw)
            together = logits(ids, positions)
            for at in (0, count // 2, count - 1):
                alone = logits(ids[at : at + 1], positions[at : at + 1])
                assert torch.equal(alone[0], together[at])


def test_a_decoder_that_cannot_is_refused(tmp_path):
    class Quick(LlamaFamily):
        def build(self, description, weights, placement):
            decoder = super().build(description, weights, placement)
            decoder.rows = FAST
            return decoder

    description = describe_model(
        HuggingFaceDirectory(write_tiny_checkpoint(tmp_path, "gqa", FAMILIES)), FAMILIES
    )
    placement = Placement(torch.float32, torch.device("cpu"), numerics="batch_invariant")
    with pytest.raises(ConfigError, match="numerics=batch_invariant"):
        load_decoder(description, [Quick()], placement)
