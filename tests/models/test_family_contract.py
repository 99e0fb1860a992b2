"""Every built-in family is run through the contract of families; a missing one fails here."""

import warnings
from typing import Any

import transformers

from interlock.core.model import ModelFamily
from interlock.core.testing.family_contract import FamilyContract
from tests.models.loading import FAMILIES
from tests.models.oracle import SHAPES

SHAPE_OF = {
    "deepseek_v2": "deepseek_v2",
    "deepseek_v3": "deepseek_v3_yarn",
    "gemma2": "gemma2",
    "gemma3": "gemma3",
    "glm4_moe": "glm4_moe",
    "gpt_oss": "gpt_oss",
    "llama": "llama_yarn",
    "minimax_m2": "minimax_m2",
    "ministral": "ministral_hybrid",
    "mistral": "mistral_window",
    "mixtral": "mixtral",
    "olmo3": "olmo3",
    "qwen2": "qwen2_window",
    "qwen2_moe": "qwen2_moe",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3_moe",
}
DENSE = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
EXPERTS = {
    "gpt_oss": ("num_local_experts", "intermediate_size"),
    "minimax_m2": ("num_local_experts", "intermediate_size"),
    "mixtral": ("num_local_experts", "intermediate_size"),
    "qwen2_moe": ("num_experts", "moe_intermediate_size", "shared_expert_intermediate_size"),
    "qwen3_moe": ("num_local_experts", "moe_intermediate_size"),
    "glm4_moe": ("n_routed_experts", "moe_intermediate_size", "num_experts_per_tok"),
    "deepseek_v2": ("kv_lora_rank", "qk_rope_head_dim", "v_head_dim", "moe_intermediate_size"),
    "deepseek_v3": ("kv_lora_rank", "qk_nope_head_dim", "v_head_dim", "num_experts_per_tok"),
}


def config_of(shape: str) -> dict[str, Any]:
    """The shape's config.json as transformers writes it."""
    kind, fields = SHAPES[shape]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model_class = getattr(transformers, f"{kind}ForCausalLM")
        config = model_class.config_class(**fields, architectures=[model_class.__name__])
        return dict(config.to_diff_dict() | {"architectures": [model_class.__name__]})


def contract(family: ModelFamily) -> type[FamilyContract]:
    """The contract class of one family."""

    class Contract(FamilyContract):
        required = (*DENSE, *EXPERTS.get(family.name, ("intermediate_size",)))

        def make(self) -> ModelFamily:
            return family

        def config(self) -> dict[str, Any]:
            return config_of(SHAPE_OF[family.name])

    return Contract


globals().update({f"Test_{family.name}": contract(family) for family in FAMILIES})


def test_every_built_in_family_has_a_shape() -> None:
    assert SHAPE_OF.keys() == {family.name for family in FAMILIES}
