"""Qwen3 (arXiv 2505.09388): Qwen2 with normalised query and key heads instead of biases."""

from typing import TYPE_CHECKING

from interlock.plugins.models.fields import Fields
from interlock.plugins.models.qwen2 import Qwen2Family

if TYPE_CHECKING:
    from interlock.plugins.models.mixers import MixerOptions


class Qwen3Family(Qwen2Family):
    """Each query and key head is normalised before its rotation."""

    name = "qwen3"
    architectures: tuple[str, ...] = ("Qwen3ForCausalLM",)
    head_dim: int | None = 128

    def mixer(self, fields: Fields) -> "MixerOptions":
        """`attention_bias` is about all four projections."""
        from interlock.plugins.models.mixers import MixerOptions

        biased = fields.flag("attention_bias", False)
        return MixerOptions(biased, biased, qk_norm="head", norm_eps=self.eps(fields))
