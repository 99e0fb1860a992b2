"""Triton kernels on a GPU: what the interpreter cannot show, bf16 and graphs among it.

python -m pytest -m gpu tests/kernels
"""

import pytest
import torch

from interlock.core.testing.attention_contract import AttentionContract

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


class TestTritonGqaOnGpu(AttentionContract):
    serves_softcaps = True
    serves_sinks = True
    device = "cuda"

    def make(self):
        from interlock.plugins.attention.triton_gqa import TritonGqaAttention, architecture_of

        return TritonGqaAttention(architecture=architecture_of(torch.device("cuda")))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    def test_narrow_dtypes_stay_within_their_rounding(self, dtype):
        super().test_narrow_dtypes_stay_within_their_rounding(dtype)


class TestTritonMlaOnGpu(AttentionContract):
    forms = ("latent",)
    device = "cuda"

    def make(self):
        from interlock.plugins.attention.triton_mla import TritonMlaAttention

        return TritonMlaAttention()

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    def test_narrow_dtypes_stay_within_their_rounding(self, dtype):
        super().test_narrow_dtypes_stay_within_their_rounding(dtype)
