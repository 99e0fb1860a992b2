"""Mixtral (arXiv 2401.04088): Mistral with experts in every layer."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from interlock.plugins.models.experts import expert_counts
from interlock.plugins.models.fields import Fields
from interlock.plugins.models.mistral import MistralFamily

if TYPE_CHECKING:
    from interlock.plugins.models.decoder import MakeMLP
    from interlock.plugins.models.moe import MoeNames


class MixtralFamily(MistralFamily):
    """The weights of the chosen experts are a softmax of their logits."""

    name = "mixtral"
    architectures = ("MixtralForCausalLM",)
    norm_eps = 1e-5
    theta = 1e6

    def splits(self, fields: Fields) -> Mapping[str, int]:
        """Experts."""
        fields.integer("intermediate_size")
        experts, _ = expert_counts(fields, "num_local_experts", "num_experts")
        return {"num_local_experts": experts}

    def mlp(self, fields: Fields, hidden: int) -> "MakeMLP":
        """Experts alone."""
        from interlock.plugins.models.moe import MoeMLP, MoeSpec
        from interlock.plugins.models.router import RouterSpec

        experts, chosen = expert_counts(fields, "num_local_experts", "num_experts")
        spec = MoeSpec(
            RouterSpec(experts, chosen, "softmax_of_chosen"),
            inner=fields.integer("intermediate_size"),
            names=mixtral_names(),
        )
        return lambda load, prefix, _: MoeMLP(load, prefix, hidden, spec)


def mixtral_names() -> "MoeNames":
    """Where Mixtral, and those who took over its layout, store an expert layer."""
    from interlock.plugins.models.moe import MoeNames

    block = "block_sparse_moe"
    return MoeNames(
        router=f"{block}.gate",
        correction=f"{block}.e_score_correction_bias",
        experts=f"{block}.experts",
        parts=("w1", "w3", "w2"),
    )
