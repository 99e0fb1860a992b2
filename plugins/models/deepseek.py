"""DeepSeek-V2 and V3: multi-head latent attention, dense or mixture-of-experts MLPs."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from interlock.core.model import AttentionSpec, Decoder, ModelDescription, ModelFamily
from interlock.core.parallel import Placement
from interlock.plugins.models.fields import Fields
from interlock.plugins.models.rope_scaling import read_rope

if TYPE_CHECKING:
    from interlock.core.weights import WeightSource
    from interlock.plugins.models.layers import GatedMLP, Loader
    from interlock.plugins.models.moe import MoeSpec


class DeepseekFamily(ModelFamily):
    """Decoders with a latent cache."""

    name = "deepseek"
    architectures = ("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM")

    def describe(self, config: Mapping[str, Any], name: str) -> ModelDescription:
        """Raises CheckpointError with every field that is missing, wrong or not supported."""
        fields = Fields(config)
        hidden, layers = fields.integer("hidden_size"), fields.integer("num_hidden_layers")
        heads = fields.integer("num_attention_heads")
        kv_heads = fields.integer("num_key_value_heads", heads)
        fields.require(
            kv_heads == heads,
            f"num_key_value_heads={kv_heads} must equal num_attention_heads={heads}: a latent "
            "serves all heads",
        )
        nope, rope = fields.integer("qk_nope_head_dim"), fields.integer("qk_rope_head_dim")
        fields.require(rope % 2 == 0, f"qk_rope_head_dim={rope} is odd and cannot be rotated")
        rank, v_head_dim = fields.integer("kv_lora_rank"), fields.integer("v_head_dim")
        fields.integer("q_lora_rank", 1)
        inner = fields.integer("intermediate_size")
        fields.number("rms_norm_eps", 1e-6)
        fields.choice("hidden_act", "silu", ("silu", "swish"))
        vocab = fields.integer("vocab_size")
        positions = fields.integer("max_position_embeddings", 2048)
        splits = {"intermediate_size": inner}
        if moe_layers(config, fields):
            _check_moe(config, fields)
            shared = fields.integer("n_shared_experts", 0, least=0)
            splits["n_routed_experts"] = fields.integer("n_routed_experts")
            splits["moe_intermediate_size * n_shared_experts"] = (
                fields.integer("moe_intermediate_size") * shared
            )
        fields.check()
        scale = (nope + rope) ** -0.5 * read_rope(config, positions).softmax_factor
        spec = AttentionSpec(
            "latent", heads, 1, nope + rope, v_head_dim, scale,
            latent_rank=rank, nope_dim=nope, rope_dim=rope,
        )  # fmt: skip
        return ModelDescription(
            name, self.name, vocab, hidden, layers, positions, (spec,) * layers, "float32", config,
            splits=splits,
        )  # fmt: skip

    def build(
        self,
        description: ModelDescription,
        weights: "WeightSource",
        placement: Placement,
    ) -> Decoder:
        """The decoder; CheckpointError lists tensors that do not match.

        Layers for multi-token prediction that the config states are left out.
        """
        from interlock.plugins.models.decoder import Architecture, CausalDecoder
        from interlock.plugins.models.mixers import MixerOptions
        from interlock.plugins.models.moe import MoeMLP

        config, layers, hidden = description.config, description.num_layers, description.hidden_size
        fields = Fields(config)
        extra = fields.integer("num_nextn_predict_layers", 0, least=0)
        expert_layers = moe_layers(config, fields)
        moe = moe_spec(config, fields) if expert_layers else None
        inner, mlp_biased = fields.integer("intermediate_size"), fields.flag("mlp_bias", False)
        biased = fields.flag("attention_bias", False)

        def mlp(load: "Loader", prefix: str, layer: int) -> "MoeMLP | GatedMLP":
            if moe is not None and layer in expert_layers:
                return MoeMLP(load, prefix, hidden, moe)
            return load.gated_mlp(f"{prefix}.mlp", hidden, load.share(inner), mlp_biased)

        architecture = Architecture(
            norm_eps=fields.number("rms_norm_eps", 1e-6),
            ropes=(read_rope(config, description.max_positions),),
            tied=fields.flag("tie_word_embeddings", False),
            mlp=mlp,
            mixer=MixerOptions(
                biased,
                biased,
                query_rank=config.get("q_lora_rank"),
                interleaved=not is_v3(config) or fields.flag("rope_interleave", True),
            ),
            unused=tuple(f"model.layers.{layers + index}.*" for index in range(extra)),
        )
        fields.check()
        return CausalDecoder(description, architecture, weights, placement)


def is_v3(config: Mapping[str, Any]) -> bool:
    """True for V3, whose routing and rotary layout differ from V2's."""
    return "DeepseekV3ForCausalLM" in (config.get("architectures") or ())


def moe_layers(config: Mapping[str, Any], fields: Fields) -> frozenset[int]:
    """Layers whose MLP is a mixture of experts."""
    if config.get("n_routed_experts") is None:
        return frozenset()
    first = fields.integer("first_k_dense_replace", 0, least=0)
    every = fields.integer("moe_layer_freq", 1)
    layers = fields.integer("num_hidden_layers")
    return frozenset(layer for layer in range(first, layers) if layer % every == 0)


def moe_spec(config: Mapping[str, Any], fields: Fields) -> "MoeSpec":
    """The expert layers of a config that has some.

    V2 normalises more than one weight or scales them, V3 does both.
    """
    from interlock.plugins.models.moe import MoeSpec
    from interlock.plugins.models.router import RouterSpec

    v3 = is_v3(config)
    chosen, inner = fields.integer("num_experts_per_tok"), fields.integer("moe_intermediate_size")
    normalised = fields.flag("norm_topk_prob", v3) and (v3 or chosen > 1)
    grouped = v3 or config.get("topk_method") == "group_limited_greedy"
    return MoeSpec(
        RouterSpec(
            experts=fields.integer("n_routed_experts"),
            chosen=chosen,
            scoring="sigmoid" if v3 else "softmax",
            corrected=v3,
            groups=fields.integer("n_group", 1) if grouped else 1,
            chosen_groups=fields.integer("topk_group", 1) if grouped else 1,
            group_best=2 if v3 else 1,
            normalised=normalised,
            scaling=1.0 if normalised and not v3 else fields.number("routed_scaling_factor", 1.0),
        ),
        inner=inner,
        shared=inner * fields.integer("n_shared_experts", 0, least=0),
    )


def _check_moe(config: Mapping[str, Any], fields: Fields) -> None:
    v3 = is_v3(config)
    methods = ("noaux_tc",) if v3 else ("greedy", "group_limited_greedy")
    fields.choice("topk_method", methods[0], methods)
    scoring = "sigmoid" if v3 else "softmax"
    fields.choice("scoring_func", scoring, (scoring,))
    fields.integer("moe_intermediate_size")
    experts, chosen = fields.integer("n_routed_experts"), fields.integer("num_experts_per_tok")
    groups, kept = fields.integer("n_group", 1), fields.integer("topk_group", 1)
    if config.get("topk_method") == "greedy" or fields.problems:
        groups = kept = 1
    fields.require(
        experts % groups == 0 and kept <= groups,
        f"n_group={groups}, topk_group={kept} do not divide n_routed_experts={experts}",
    )
    reachable = experts // groups * kept
    fields.require(
        chosen <= reachable,
        f"num_experts_per_tok={chosen} is more than the {reachable} experts in topk_group={kept} "
        f"of n_group={groups} groups of n_routed_experts={experts}",
    )
