"""MiniMax-M2: Mixtral's layout, partly rotated heads, q/k norms over all heads, sigmoid routing."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from interlock.plugins.models.experts import expert_counts
from interlock.plugins.models.fields import Fields
from interlock.plugins.models.heads import HeadsFamily
from interlock.plugins.models.mixtral import mixtral_names
from interlock.plugins.models.rope_scaling import rotary_fraction

if TYPE_CHECKING:
    from interlock.plugins.models.decoder import MakeMLP
    from interlock.plugins.models.mixers import MixerOptions


class MiniMaxM2Family(HeadsFamily):
    """`rotary_dim` entries of each head are rotated."""

    name = "minimax_m2"
    architectures = ("MiniMaxM2ForCausalLM",)
    head_dim = 128
    theta = 5e6
    partial_rotary = True

    def rotated(self, fields: Fields, head_dim: int) -> int:
        """`rotary_dim`, or a fraction of the head."""
        fraction = rotary_fraction(fields.config)
        by_fraction = head_dim if fraction is None else int(head_dim * fraction)
        rotated = fields.integer("rotary_dim", by_fraction)
        fields.require(
            rotated <= head_dim and (fraction is None or rotated == by_fraction),
            f"rotary_dim={rotated} is not partial_rotary_factor={fraction} of head_dim={head_dim}",
        )
        return rotated

    def splits(self, fields: Fields) -> Mapping[str, int]:
        """Experts. Fields of variants that were never released have to be at their default."""
        layers = fields.integer("num_hidden_layers")
        fields.fixed("attn_type_list", [1] * layers)
        fields.fixed("scoring_func", "sigmoid")
        fields.fixed("qk_norm_type", "per_layer")
        fields.fixed("use_qk_norm", True)
        fields.fixed("use_routing_bias", True)
        fields.fixed("shared_intermediate_size", 0)
        fields.fixed("sliding_window", None)
        for part in ("full_attention", "linear_attention", "mlp"):
            fields.fixed(f"layernorm_{part}_beta", 1.0)
        fields.integer("intermediate_size")
        return {"num_local_experts": expert_counts(fields, "num_local_experts", "num_experts")[0]}

    def mlp(self, fields: Fields, hidden: int) -> "MakeMLP":
        """Experts alone, chosen by corrected sigmoids."""
        from interlock.plugins.models.moe import MoeMLP, MoeSpec
        from interlock.plugins.models.router import RouterSpec

        experts, chosen = expert_counts(fields, "num_local_experts", "num_experts")
        spec = MoeSpec(
            RouterSpec(experts, chosen, "sigmoid", corrected=True, normalised=True),
            inner=fields.integer("intermediate_size"),
            names=mixtral_names(),
        )
        return lambda load, prefix, _: MoeMLP(load, prefix, hidden, spec)

    def mixer(self, fields: Fields) -> "MixerOptions":
        """No biases; one norm for all query heads, one for all key heads."""
        from interlock.plugins.models.mixers import MixerOptions

        return MixerOptions(qk_norm="width", norm_eps=self.eps(fields))
