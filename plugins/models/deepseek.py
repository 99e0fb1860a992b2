"""DeepSeek-V2 and V3: multi-head latent attention, dense or mixture-of-experts MLPs."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from interlock.core.model import AttentionSpec, Decoder, ModelDescription, ModelFamily
from interlock.core.parallel import Placement
from interlock.plugins.models.experts import (
    corrected_sigmoids,
    expert_counts,
    expert_groups,
    expert_layers,
    mixed_mlp,
)
from interlock.plugins.models.fields import Fields
from interlock.plugins.models.heads import check_flags, dense_mlp, mtp_tensors
from interlock.plugins.models.rope_scaling import exact_positions, read_rope

if TYPE_CHECKING:
    from interlock.core.operations import Operations
    from interlock.core.weights import WeightSource
    from interlock.plugins.models.decoder import MakeMLP
    from interlock.plugins.models.router import RouterSpec


EXPERTS = ("n_routed_experts", "num_local_experts")
"""Names of their number."""


class DeepseekFamily(ModelFamily):
    """Decoders with a latent cache; versions differ in routing and in the rotary layout."""

    @abstractmethod
    def check_routing(self, fields: Fields) -> None:
        """Checks the fields of the router that are this version's."""

    @abstractmethod
    def router(self, fields: Fields) -> "RouterSpec":
        """How experts are chosen and weighed."""

    @abstractmethod
    def interleaved(self, fields: Fields) -> bool:
        """Whether rotated pairs are stored side by side."""

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
        nope, rope_dim = fields.integer("qk_nope_head_dim"), fields.integer("qk_rope_head_dim")
        fields.require(rope_dim % 2 == 0, f"qk_rope_head_dim={rope_dim} is odd and cannot rotate")
        rank, v_head_dim = fields.integer("kv_lora_rank"), fields.integer("v_head_dim")
        fields.integer("q_lora_rank", 1)
        fields.number("rms_norm_eps", 1e-6)
        fields.choice("hidden_act", "silu", ("silu", "swish"))
        check_flags(fields)
        vocab, stated = fields.integer("vocab_size"), _positions(fields)
        splits = self._splits(fields)
        fields.check()
        rope = read_rope(config, stated, capped=True)
        rope.check(rope_dim)
        positions, limited_by = exact_positions(stated, (rope,))
        spec = AttentionSpec(
            "latent", heads, 1, nope + rope_dim, v_head_dim,
            (nope + rope_dim) ** -0.5 * rope.softmax_factor,
            latent_rank=rank, nope_dim=nope, rope_dim=rope_dim,
        )  # fmt: skip
        return ModelDescription(
            name, self.name, vocab, hidden, layers, positions, (spec,) * layers, "float32", config,
            splits=splits, limited_by=limited_by,
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

        fields = Fields(description.config)
        biased = fields.flag("attention_bias", False)
        architecture = Architecture(
            norm_eps=fields.number("rms_norm_eps", 1e-6),
            ropes=(read_rope(fields.config, _positions(fields), capped=True),),
            tied=fields.flag("tie_word_embeddings", False),
            mlp=self._mlp(fields, description.hidden_size),
            mixer=MixerOptions(
                biased,
                biased,
                query_rank=fields.config.get("q_lora_rank"),
                interleaved=self.interleaved(fields),
            ),
            unused=mtp_tensors(fields, description.num_layers),
        )
        fields.check()
        return CausalDecoder(description, architecture, weights, placement)

    def operations(self, placement: Placement) -> "Operations":
        """Compiled and packed ones, as in its layers."""
        from interlock.plugins.models.operations import LayerOperations

        return LayerOperations(placement)

    def _splits(self, fields: Fields) -> dict[str, int]:
        splits = {"intermediate_size": fields.integer("intermediate_size")}
        if _has_experts(fields):
            self.check_routing(fields)
            expert_layers(fields)
            splits["n_routed_experts"] = expert_counts(fields, *EXPERTS)[0]
            if shared := _shared(fields):
                splits["moe_intermediate_size * n_shared_experts"] = shared
        return splits

    def _mlp(self, fields: Fields, hidden: int) -> "MakeMLP":
        from interlock.plugins.models.moe import MoeSpec

        biased = fields.flag("mlp_bias", False)
        if not _has_experts(fields):
            return dense_mlp(fields, hidden, biased)
        spec = MoeSpec(
            self.router(fields), fields.integer("moe_intermediate_size"), _shared(fields)
        )
        dense = fields.integer("intermediate_size")
        return mixed_mlp(spec, expert_layers(fields), hidden, dense, biased)


class DeepseekV2Family(DeepseekFamily):
    """Softmax scores; groups are ranked by their best expert (arXiv 2405.04434)."""

    name = "deepseek_v2"
    architectures = ("DeepseekV2ForCausalLM",)

    def check_routing(self, fields: Fields) -> None:
        """With or without groups."""
        fields.choice("topk_method", "greedy", ("greedy", "group_limited_greedy"))
        fields.choice("scoring_func", "softmax", ("softmax",))
        if self._grouped(fields):
            expert_groups(fields, *expert_counts(fields, *EXPERTS))

    def router(self, fields: Fields) -> "RouterSpec":
        """Several weights are either normalised or scaled."""
        from interlock.plugins.models.router import RouterSpec

        experts, chosen = expert_counts(fields, *EXPERTS)
        groups, kept = (1, 1)
        if self._grouped(fields):
            groups, kept = expert_groups(fields, experts, chosen)
        normalised = fields.flag("norm_topk_prob", False) and chosen > 1
        return RouterSpec(
            experts,
            chosen,
            groups=groups,
            chosen_groups=kept,
            normalised=normalised,
            scaling=1.0 if normalised else fields.number("routed_scaling_factor", 1.0),
        )

    def interleaved(self, fields: Fields) -> bool:
        """Always."""
        return True

    def _grouped(self, fields: Fields) -> bool:
        return bool(fields.config.get("topk_method") == "group_limited_greedy")


class DeepseekV3Family(DeepseekFamily):
    """Corrected sigmoid scores; groups are ranked by their two best experts (arXiv 2412.19437).

    Kimi-K2 (arXiv 2507.20534) is this architecture with other sizes.
    """

    name = "deepseek_v3"
    architectures = ("DeepseekV3ForCausalLM",)

    def check_routing(self, fields: Fields) -> None:
        """There is one way."""
        fields.choice("topk_method", "noaux_tc", ("noaux_tc",))
        fields.choice("scoring_func", "sigmoid", ("sigmoid",))
        expert_groups(fields, *expert_counts(fields, *EXPERTS))

    def router(self, fields: Fields) -> "RouterSpec":
        """Weights are normalised and scaled."""
        return corrected_sigmoids(fields)

    def interleaved(self, fields: Fields) -> bool:
        """As `rope_interleave` says."""
        return fields.flag("rope_interleave", True)


def _has_experts(fields: Fields) -> bool:
    return fields.config.get("n_routed_experts") is not None


def _positions(fields: Fields) -> int:
    return fields.integer("max_position_embeddings", 2048)


def _shared(fields: Fields) -> int:
    """Inner size of the shared experts, which are one MLP."""
    shared = fields.integer("n_shared_experts", 0, least=0)
    return fields.integer("moe_intermediate_size") * shared
