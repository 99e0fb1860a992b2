"""OLMo 3: norms after attention and MLP instead of before, q/k norms over all heads, windows."""

from dataclasses import replace
from typing import TYPE_CHECKING

from interlock.core.model import ModelDescription
from interlock.plugins.models.fields import Fields
from interlock.plugins.models.heads import Windows, dense_mlp
from interlock.plugins.models.llama import LlamaFamily
from interlock.plugins.models.rope_scaling import RopeScaling, read_rope, read_ropes
from interlock.plugins.models.windows import FULL, SLIDING, layer_kinds, windows_of

if TYPE_CHECKING:
    from interlock.plugins.models.decoder import Architecture, MakeMLP
    from interlock.plugins.models.mixers import MixerOptions


class Olmo3Family(LlamaFamily):
    """Full and sliding layers have rotary scalings of their own."""

    name = "olmo3"
    architectures = ("Olmo3ForCausalLM",)
    norm_eps = 1e-5
    theta = 5e5

    def windows(self, fields: Fields, layers: int) -> Windows:
        """By layer type, or in three of four layers."""
        return windows_of(fields, layer_kinds(fields, layers, every=4), default=4096)

    def ropes(self, fields: Fields, positions: int, layers: int) -> tuple[RopeScaling, ...]:
        """By layer type; a single `rope_scaling` is that of the full layers."""
        config = fields.config
        theta = fields.number("rope_theta", self.theta)
        fields.check()
        by_kind = read_ropes(config, positions, {FULL: theta, SLIDING: theta})
        if by_kind is None:
            full = read_rope(config, positions, self.theta, capped=True)
            by_kind = {FULL: full, SLIDING: RopeScaling(full.theta)}
        return tuple(by_kind[kind] for kind in layer_kinds(fields, layers, every=4))

    def mlp(self, fields: Fields, hidden: int) -> "MakeMLP":
        """Never biased."""
        return dense_mlp(fields, hidden)

    def mixer(self, fields: Fields) -> "MixerOptions":
        """One norm for all query heads, one for all key heads."""
        return replace(super().mixer(fields), qk_norm="width", norm_eps=self.eps(fields))

    def architecture(self, fields: Fields, description: ModelDescription) -> "Architecture":
        """The stream itself is not normalised, what is added to it is."""
        from interlock.plugins.models.decoder import BlockNorms

        norms = BlockNorms(
            before_attention=None,
            after_attention="post_attention_layernorm",
            before_mlp=None,
            after_mlp="post_feedforward_layernorm",
        )
        return replace(super().architecture(fields, description), norms=norms)
