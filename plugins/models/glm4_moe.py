"""GLM-4.5 and GLM-4.6 (arXiv 2508.06471): half-rotated heads, DeepSeek-V3's experts."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from interlock.plugins.models.experts import (
    corrected_sigmoids,
    expert_counts,
    expert_groups,
    expert_layers,
    mixed_mlp,
)
from interlock.plugins.models.fields import Fields
from interlock.plugins.models.heads import HeadsFamily
from interlock.plugins.models.rope_scaling import rotary_fraction

if TYPE_CHECKING:
    from interlock.plugins.models.decoder import MakeMLP
    from interlock.plugins.models.mixers import MixerOptions


class Glm4MoeFamily(HeadsFamily):
    """The first layers are dense, the others have routed experts and a shared one."""

    name = "glm4_moe"
    architectures = ("Glm4MoeForCausalLM",)
    norm_eps = 1e-5
    partial_rotary = True

    def rotated(self, fields: Fields, head_dim: int) -> int:
        """A half unless the config says otherwise."""
        fraction = rotary_fraction(fields.config)
        return int(head_dim * (0.5 if fraction is None else fraction))

    def splits(self, fields: Fields) -> Mapping[str, int]:
        """Experts, the shared one's size, and the dense MLP's."""
        experts, chosen = expert_counts(fields, "n_routed_experts", "num_local_experts")
        expert_groups(fields, experts, chosen)
        expert_layers(fields)
        fields.fixed("scoring_func", "sigmoid")
        fields.fixed("topk_method", "noaux_tc")
        return {
            "intermediate_size": fields.integer("intermediate_size"),
            "n_routed_experts": experts,
            "moe_intermediate_size * n_shared_experts": _shared(fields),
        }

    def mlp(self, fields: Fields, hidden: int) -> "MakeMLP":
        """Chosen by corrected sigmoids within the best groups."""
        from interlock.plugins.models.moe import MoeSpec

        inner = fields.integer("moe_intermediate_size")
        spec = MoeSpec(corrected_sigmoids(fields), inner, _shared(fields))
        dense = fields.integer("intermediate_size")
        return mixed_mlp(spec, expert_layers(fields), hidden, dense)

    def mixer(self, fields: Fields) -> "MixerOptions":
        """`attention_bias` leaves the output projection out; q/k norms are optional."""
        from interlock.plugins.models.mixers import MixerOptions

        return MixerOptions(
            biased=fields.flag("attention_bias", False),
            qk_norm="head" if fields.flag("use_qk_norm", False) else "none",
            norm_eps=self.eps(fields),
        )


def _shared(fields: Fields) -> int:
    """Inner size of the shared experts, which are one MLP."""
    return fields.integer("moe_intermediate_size") * fields.integer("n_shared_experts", 1)
