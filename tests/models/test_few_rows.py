"""Compiled products and layers of few rows: the formula in fp64, and the layers they stand for."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from interlock.core.model import Taps
from interlock.core.testing.tiny import dense_attend
from interlock.plugins.attention.gqa import NativeGqaAttention
from interlock.plugins.models.decoder import CausalDecoder
from interlock.plugins.models.native.few_rows import most_few_rows, reads_packed
from interlock.plugins.models.products import PackedProduct
from tests.models.loading import load
from tests.models.oracle import random_model_of, saved
from tests.models.paged_run import PagedRun, ragged

ROUNDING = 2**-8
"""Of a result to bf16; sums are in fp32 over at most a few hundred terms."""
SIZES = {
    "hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 3, "vocab_size": 320,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "max_position_embeddings": 512,
}  # fmt: skip
ERROR_RATIO = 1.1
"""How much larger the error of fused layers may be; they round less often, so it is smaller."""


@pytest.fixture(autouse=True)
def compiled():
    if not most_few_rows():
        pytest.skip("no C++ compiler on this machine, or no AVX512_BF16")


def drawn(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def close(found, expected):
    assert found.dtype == torch.bfloat16
    error = (found.double() - expected).abs().max()
    assert error <= ROUNDING * max(1.0, float(expected.abs().max()))


@settings(max_examples=60, deadline=None)
@given(
    rows=st.one_of(st.integers(1, 40), st.sampled_from([63, 100, 255, 256])),
    outputs=st.integers(1, 5).map(lambda n: 64 * n),
    inputs=st.sampled_from([32, 96, 384, 416]),
    biased=st.booleans(),
    threads=st.integers(1, 3),
    seed=st.integers(0, 9),
)
def test_a_product_of_few_rows_is_the_formula(rows, outputs, inputs, biased, threads, seed):
    weight, bias = drawn(seed, outputs, inputs), drawn(seed + 1, outputs) if biased else None
    wide = drawn(seed + 2, rows, inputs + 6)
    x = wide[:, 3 : inputs + 3]
    expected = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    few = PackedProduct(weight, bias).few
    assert few is not None
    assert few.takes(x)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.inference_mode():
            close(few(x), expected)
    finally:
        torch.set_num_threads(before)


def test_an_unusable_row_disturbs_no_other():
    weight, x = drawn(0, 128, 64), drawn(1, 9, 64)
    few = PackedProduct(weight, None).few
    assert few is not None
    clean = few(x)
    x[4, 7] = torch.nan
    found = few(x)
    assert found[4].isnan().all()
    others = [row for row in range(9) if row != 4]
    assert torch.equal(found[others], clean[others])


@pytest.mark.parametrize(
    ("outputs", "inputs", "dtype"),
    [(100, 64, torch.bfloat16), (64, 40, torch.bfloat16), (64, 64, torch.float32)],
)
def test_other_sizes_and_dtypes_stay_with_onednn(outputs, inputs, dtype):
    product = PackedProduct(torch.ones(outputs, inputs, dtype=dtype), None)
    assert product.few is None
    with torch.inference_mode():
        assert product(torch.ones(3, inputs, dtype=dtype)).double().eq(inputs).all()


def test_more_rows_than_a_call_takes_and_rows_of_another_size_go_to_onednn():
    few = PackedProduct(drawn(0, 64, 32), None).few
    assert few is not None
    assert few.takes(drawn(1, few.most_rows, 32))
    assert not few.takes(drawn(1, few.most_rows + 1, 32))
    assert not few.takes(drawn(1, 0, 32))
    assert not few.takes(drawn(1, 3, 31))
    assert not few.takes(drawn(1, 3, 32).float())


@settings(max_examples=20, deadline=None)
@given(row=st.integers(0, 191), column=st.integers(0, 95), bit=st.integers(0, 15))
def test_packed_bytes_that_differ_from_the_weight_in_one_bit_are_refused(row, column, bit):
    weight = drawn(0, 192, 96)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight)
    assert reads_packed(packed, weight)
    assert reads_packed(packed, weight.T.contiguous().T)
    weight.view(torch.int16)[row, column] ^= -(1 << 15) if bit == 15 else 1 << bit
    assert not reads_packed(packed, weight)


class Called(TorchDispatchMode):
    """Names of torch's operators that ran."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func.name())
        return func(*args, **(kwargs or {}))


def test_a_weight_is_compared_with_its_packed_bytes_in_place():
    weight = drawn(0, 64, 32)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight)
    with Called() as called:
        assert reads_packed(packed, weight)
    assert called.names <= {"mkldnn::data_ptr", "mkldnn::_nbytes"}  # which make no tensor


def test_rows_that_are_given_to_a_decoder_stay_as_they_were(tmp_path):
    saved(random_model_of("Llama", SIZES).bfloat16(), tmp_path)
    decoder = load(tmp_path, torch.bfloat16)
    assert isinstance(decoder, CausalDecoder)
    assert decoder.fused is not None
    tokens = torch.arange(9)
    given = decoder.embed(tokens)
    before = given.clone()
    attend = dense_attend(decoder.description)
    with torch.inference_mode():
        features = decoder.forward(tokens, tokens, attend, inputs_TE=given)
        again = decoder.forward(tokens, tokens, attend)
    assert torch.equal(given, before)
    assert torch.equal(features, again)


def test_fused_layers_refuse_what_attention_gives_in_another_dtype(tmp_path):
    saved(random_model_of("Llama", SIZES).bfloat16(), tmp_path)
    decoder = load(tmp_path, torch.bfloat16)
    attend = dense_attend(decoder.description)
    tokens = torch.arange(5)

    def wide(layer, spec, inputs):
        return attend(layer, spec, inputs).float()

    with torch.inference_mode(), pytest.raises(AssertionError):
        decoder.forward(tokens, tokens, wide)


def test_taps_give_what_the_layers_gave(tmp_path):
    saved(random_model_of("Llama", SIZES).bfloat16(), tmp_path)
    decoder = load(tmp_path, torch.bfloat16)
    assert isinstance(decoder, CausalDecoder)
    assert decoder.fused is not None
    tokens = torch.arange(9)

    def tapped():
        taps = Taps((2, 0))
        attend = dense_attend(decoder.description)
        with torch.inference_mode():
            features = decoder.forward(tokens, tokens, attend, taps)
        return (*taps.outputs(), decoder.norm(taps.outputs()[0]), features)

    fused = tapped()
    assert torch.equal(fused[2], fused[3])  # the last layer's, which the norm of the head took
    decoder.fused = None
    for found, wanted in zip(fused, tapped(), strict=True):
        assert rms(found.double() - wanted.double()) <= 4 * ROUNDING * rms(wanted.double())


def rms(x):
    return float(x.square().mean().sqrt())


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("Llama", {"tie_word_embeddings": True}),
        ("Qwen2", {"use_sliding_window": False}),
        ("Mistral", {"sliding_window": 24}),
    ],
    ids=["llama", "biases", "window"],
)
def test_fused_layers_are_as_near_to_fp64_as_the_layers_they_stand_for(kind, more, tmp_path):
    saved(random_model_of(kind, {**SIZES, **more}).bfloat16(), tmp_path)
    decoder, exact = load(tmp_path, torch.bfloat16), load(tmp_path, torch.float64)
    assert isinstance(decoder, CausalDecoder)
    assert isinstance(exact, CausalDecoder)
    assert decoder.fused is not None
    assert exact.fused is None
    fused_calls = []
    between = decoder.fused
    generator = torch.Generator().manual_seed(3)
    sequences = [
        torch.randint(0, 320, (length,), generator=generator).tolist() for length in (1, 60, 97)
    ]

    def logits(of):
        run = PagedRun(of, NativeGqaAttention(), 16, len(sequences), 100)
        return torch.cat(ragged(run, sequences, seed=1)).double()

    class Counted:
        takes = staticmethod(between.takes)

        def __call__(self, *inputs):
            fused_calls.append(len(inputs[0]))
            return between(*inputs)

    decoder.fused = Counted()  # type: ignore[assignment]  # the same, counted
    found = logits(decoder)
    decoder.fused = None
    layered, expected = logits(decoder), logits(exact)
    assert max(fused_calls) > 32
    assert rms(found - expected) <= ERROR_RATIO * rms(layered - expected)


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("Qwen3", {}),
        ("Gemma2", {"query_pre_attn_scalar": 32}),
        ("Llama", {"intermediate_size": 200}),
    ],
    ids=["norms of heads", "norms behind layers", "odd sizes"],
)
def test_layers_that_do_more_are_not_fused(kind, more, tmp_path):
    saved(random_model_of(kind, {**SIZES, **more}).bfloat16(), tmp_path)
    decoder = load(tmp_path, torch.bfloat16)
    assert isinstance(decoder, CausalDecoder)
    assert decoder.fused is None
