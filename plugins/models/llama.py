"""Llama: grouped-query attention with rotary embedding and gated MLPs (arXiv 2407.21783)."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from interlock.plugins.models.fields import Fields
from interlock.plugins.models.heads import HeadsFamily, dense_mlp

if TYPE_CHECKING:
    from interlock.plugins.models.decoder import MakeMLP
    from interlock.plugins.models.mixers import MixerOptions


class LlamaFamily(HeadsFamily):
    """One gated MLP a layer; every projection may have a bias."""

    name = "llama"
    architectures: tuple[str, ...] = ("LlamaForCausalLM",)
    positions: int | None = 2048

    def splits(self, fields: Fields) -> Mapping[str, int]:
        """The MLP's inner size."""
        return {"intermediate_size": fields.integer("intermediate_size")}

    def mlp(self, fields: Fields, hidden: int) -> "MakeMLP":
        """Biased if the config says so."""
        return dense_mlp(fields, hidden, fields.flag("mlp_bias", False))

    def mixer(self, fields: Fields) -> "MixerOptions":
        """`attention_bias` is about all four projections."""
        from interlock.plugins.models.mixers import MixerOptions

        biased = fields.flag("attention_bias", False)
        return MixerOptions(biased, biased)
