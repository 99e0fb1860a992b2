"""What configs say about experts, checked: their numbers, groups and layers."""

from typing import TYPE_CHECKING

from interlock.plugins.models.fields import Fields

if TYPE_CHECKING:
    from interlock.plugins.models.decoder import MakeMLP
    from interlock.plugins.models.moe import MoeSpec
    from interlock.plugins.models.router import RouterSpec


def expert_counts(fields: Fields, key: str, also: str | None = None) -> tuple[int, int]:
    """How many experts there are and how many a token passes."""
    before = len(fields.problems)
    experts, chosen = fields.integer(key, also=also), fields.integer("num_experts_per_tok")
    fields.require(
        chosen <= experts or len(fields.problems) > before,
        f"num_experts_per_tok={chosen} is more than {key}={experts}",
    )
    return experts, chosen


def expert_groups(fields: Fields, experts: int, chosen: int) -> tuple[int, int]:
    """`n_group` equal groups of experts, and from how many of them a token's experts come."""
    groups, kept = fields.integer("n_group", 1), fields.integer("topk_group", 1)
    if chosen > experts or experts == 1:
        return 1, 1  # a problem that was noted, or nothing to divide
    divided = experts % groups == 0 and kept <= groups
    fields.require(
        divided, f"n_group={groups}, topk_group={kept} do not divide n_routed_experts={experts}"
    )
    reachable = experts // groups * kept
    fields.require(
        not divided or chosen <= reachable,
        f"num_experts_per_tok={chosen} is more than the {reachable} experts in topk_group={kept} "
        f"of n_group={groups} groups of n_routed_experts={experts}",
    )
    return groups, kept


def expert_layers(fields: Fields) -> frozenset[int]:
    """Layers with experts: from `first_k_dense_replace` on, every `moe_layer_freq`-th."""
    first = fields.integer("first_k_dense_replace", 0, least=0)
    every, layers = fields.integer("moe_layer_freq", 1), fields.integer("num_hidden_layers")
    return frozenset(n for n in range(first, layers) if n % every == 0)


def corrected_sigmoids(fields: Fields) -> "RouterSpec":
    """DeepSeek-V3's router (arXiv 2412.19437, section 2.1.2)."""
    from interlock.plugins.models.router import RouterSpec

    experts, chosen = expert_counts(fields, "n_routed_experts", "num_local_experts")
    groups, kept = expert_groups(fields, experts, chosen)
    return RouterSpec(
        experts,
        chosen,
        "sigmoid",
        corrected=True,
        groups=groups,
        chosen_groups=kept,
        group_best=2,
        normalised=fields.flag("norm_topk_prob", True),
        scaling=fields.number("routed_scaling_factor", 1.0),
    )


def mixed_mlp(
    spec: "MoeSpec", sparse: frozenset[int], hidden: int, dense: int, biased: bool = False
) -> "MakeMLP":
    """Experts in the `sparse` layers, gated MLPs with `dense` inner entries in the others."""
    from interlock.plugins.models.layers import GatedMLP, Loader
    from interlock.plugins.models.moe import MoeMLP

    def mlp(load: Loader, prefix: str, layer: int) -> MoeMLP | GatedMLP:
        if layer in sparse:
            return MoeMLP(load, prefix, hidden, spec)
        return load.gated_mlp(f"{prefix}.mlp", hidden, load.share(dense), biased)

    return mlp
