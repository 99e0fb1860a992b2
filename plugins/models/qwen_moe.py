"""Qwen2-MoE (arXiv 2407.10671, section 2.2.2) and Qwen3-MoE (arXiv 2505.09388, section 2)."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from interlock.plugins.models.experts import expert_counts, mixed_mlp
from interlock.plugins.models.fields import Fields
from interlock.plugins.models.heads import Windows
from interlock.plugins.models.qwen2 import Qwen2Family
from interlock.plugins.models.qwen3 import Qwen3Family
from interlock.plugins.models.windows import FULL, SLIDING, switched_windows

if TYPE_CHECKING:
    from interlock.plugins.models.decoder import MakeMLP
    from interlock.plugins.models.mixers import MixerOptions


class Qwen2MoeFamily(Qwen2Family):
    """Routed experts and a gated shared one, in every `decoder_sparse_step`-th layer."""

    name = "qwen2_moe"
    architectures = ("Qwen2MoeForCausalLM",)

    def windows(self, fields: Fields, layers: int) -> Windows:
        """By layer type, or in every other of the first `max_window_layers` layers."""
        last = fields.integer("max_window_layers", 28, least=0)
        kinds = [SLIDING if n % 2 == 0 and n < last else FULL for n in range(layers)]
        return switched_windows(fields, kinds)

    def mixer(self, fields: Fields) -> "MixerOptions":
        """Queries, keys and values are biased unless `qkv_bias` is false."""
        from interlock.plugins.models.mixers import MixerOptions

        return MixerOptions(biased=fields.flag("qkv_bias", True))

    def splits(self, fields: Fields) -> Mapping[str, int]:
        """Experts, the shared one's size, and the dense MLP's where there are some."""
        shared = fields.integer("shared_expert_intermediate_size")
        return {"shared_expert_intermediate_size": shared, **moe_splits(fields)}

    def mlp(self, fields: Fields, hidden: int) -> "MakeMLP":
        """The shared expert's output is weighed by a sigmoid."""
        return moe_mlp(fields, hidden, fields.integer("shared_expert_intermediate_size"))


class Qwen3MoeFamily(Qwen3Family):
    """Routed experts without a shared one."""

    name = "qwen3_moe"
    architectures = ("Qwen3MoeForCausalLM",)
    head_dim = None

    def windows(self, fields: Fields, layers: int) -> Windows:
        """One window for all layers, if `use_sliding_window`."""
        return switched_windows(fields, [SLIDING] * layers)

    def splits(self, fields: Fields) -> Mapping[str, int]:
        """Experts, and the dense MLP's size where there are some."""
        return moe_splits(fields)

    def mlp(self, fields: Fields, hidden: int) -> "MakeMLP":
        """Experts alone."""
        return moe_mlp(fields, hidden, shared=0)


def sparse_layers(fields: Fields) -> frozenset[int]:
    """Layers with experts."""
    layers = fields.integer("num_hidden_layers")
    step = fields.integer("decoder_sparse_step", 1)
    dense = fields.layer_list("mlp_only_layers", layers)
    return frozenset(n for n in range(layers) if n not in dense and (n + 1) % step == 0)


def moe_splits(fields: Fields) -> dict[str, int]:
    """Checks the fields of experts and of the layers without them."""
    fields.integer("moe_intermediate_size")
    fields.integer("intermediate_size", 1)
    sparse, layers = sparse_layers(fields), fields.integer("num_hidden_layers")
    splits = {"num_experts": _counts(fields)[0]} if sparse else {}
    if len(sparse) < layers:
        splits["intermediate_size"] = fields.integer("intermediate_size")
    return splits


def moe_mlp(fields: Fields, hidden: int, shared: int) -> "MakeMLP":
    """Experts where the config has them, else a dense MLP."""
    from interlock.plugins.models.moe import MoeNames, MoeSpec
    from interlock.plugins.models.router import RouterSpec

    dense = fields.integer("intermediate_size", 1)
    experts, chosen = _counts(fields)
    spec = MoeSpec(
        RouterSpec(experts, chosen, normalised=fields.flag("norm_topk_prob", False)),
        inner=fields.integer("moe_intermediate_size"),
        shared=shared,
        shared_gated=shared > 0,
        names=MoeNames(shared="mlp.shared_expert"),
    )
    return mixed_mlp(spec, sparse_layers(fields), hidden, dense)


def _counts(fields: Fields) -> tuple[int, int]:
    return expert_counts(fields, "num_experts", "num_local_experts")
