"""Tiny random checkpoints written by transformers, and what transformers computes on them.

Every parameter is redrawn, so that no default of 0 or 1 hides a tensor that was loaded wrongly.
"""

import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

VOCAB_SIZE = 128
BASE = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
    "beta_fast": 32,
    "beta_slow": 1,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "original_max_position_embeddings": 128,
    "short_factor": [1.0, 1.1, 1.3, 1.5, 2.0, 2.5, 3.0, 4.0],
    "long_factor": [1.0, 2.0, 4.0, 8.0, 12.0, 16.0, 16.0, 16.0],
}
MLA = {
    **BASE,
    "num_key_value_heads": 4,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
}
V2 = {
    **MLA,
    "n_shared_experts": 2,
    "topk_method": "group_limited_greedy",
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 1.5,
}
V3 = {
    **MLA,
    "n_shared_experts": 1,
    "n_group": 2,
    "topk_group": 1,
    "routed_scaling_factor": 2.5,
    "norm_topk_prob": True,
    "num_mtp_layers": 0,
}
GPT_OSS_YARN = {**YARN, "rope_theta": 150000.0, "truncate": False}
LOCAL = {**BASE, "num_hidden_layers": 4, "head_dim": 32, "sliding_window": 8}
GEMMA = {**LOCAL, "tie_word_embeddings": True, "query_pre_attn_scalar": 24}
EXPERTS = {"num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 32}
LOCAL_GLOBAL: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma2": (
        "Gemma2",
        {**GEMMA, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 10.0},
    ),
    "gemma2_uncapped": (
        "Gemma2",
        {
            **GEMMA,
            "tie_word_embeddings": False,
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
            "layer_types": ["full_attention", "sliding_attention"] * 2,
        },
    ),
    "gemma3": (
        "Gemma3",
        {
            **GEMMA,
            "num_hidden_layers": 6,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            },
        },
    ),
    "gemma3_biased": (
        "Gemma3",
        {
            **GEMMA,
            "num_hidden_layers": 3,
            "layer_types": ["sliding_attention"] * 3,
            "attention_bias": True,
            "rms_norm_eps": 1e-2,
            "final_logit_softcapping": 10.0,
        },
    ),
    "gpt_oss": ("GptOss", {**LOCAL, **EXPERTS, "rope_parameters": GPT_OSS_YARN}),
    "gpt_oss_clamped": (
        "GptOss",
        {
            **LOCAL,
            **EXPERTS,
            "num_hidden_layers": 2,
            "num_key_value_heads": 1,
            "attention_bias": False,
            "swiglu_limit": 0.7,
            "swiglu_alpha": 1.2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
            "layer_types": ["full_attention", "sliding_attention"],
        },
    ),
}
MOE = {**BASE, "moe_intermediate_size": 32, "num_experts_per_tok": 2}
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama_mha": ("Llama", {**BASE, "num_key_value_heads": 4}),
    "llama_gqa": ("Llama", {**BASE, "rope_parameters": LLAMA3}),
    "llama_mqa_tied": ("Llama", {**BASE, "num_key_value_heads": 1, "tie_word_embeddings": True}),
    "llama_yarn": ("Llama", {**BASE, "rope_parameters": {**YARN, "truncate": False}}),
    "llama_linear": ("Llama", {**BASE, "rope_parameters": {"rope_type": "linear", "factor": 2.0}}),
    "llama_dynamic": (
        "Llama",
        {
            **BASE,
            "rope_parameters": {"rope_type": "dynamic", "factor": 4.0},
            "max_position_embeddings": 256,
        },
    ),
    "llama_longrope": ("Llama", {**BASE, "rope_parameters": LONGROPE}),
    "llama_biased": ("Llama", {**BASE, "attention_bias": True, "mlp_bias": True}),
    "llama_head_dim": ("Llama", {**BASE, "head_dim": 32}),
    "mistral_window": ("Mistral", {**BASE, "sliding_window": 8, "head_dim": 16}),
    "ministral_hybrid": (
        "Ministral",
        {
            **BASE,
            "sliding_window": 8,
            "head_dim": 16,
            "layer_types": ["full_attention", "sliding_attention"],
        },
    ),
    "qwen2": ("Qwen2", BASE),
    "qwen2_window": (
        "Qwen2",
        {**BASE, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", {**BASE, "head_dim": 32}),
    "qwen3_biased": (
        "Qwen3",
        {
            **BASE,
            "head_dim": 16,
            "attention_bias": True,
            "tie_word_embeddings": True,
            "use_sliding_window": True,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "qwen2_moe": (
        "Qwen2Moe",
        {
            **MOE,
            "shared_expert_intermediate_size": 48,
            "num_experts": 8,
            "num_hidden_layers": 3,
            "mlp_only_layers": [1],
            "use_sliding_window": True,
            "sliding_window": 8,
            "max_window_layers": 1,
        },
    ),
    "qwen3_moe": (
        "Qwen3Moe",
        {
            **MOE,
            "head_dim": 32,
            "num_experts": 8,
            "norm_topk_prob": True,
            "decoder_sparse_step": 2,
            "num_hidden_layers": 2,
        },
    ),
    "mixtral": ("Mixtral", {**BASE, "num_local_experts": 8, "num_experts_per_tok": 2}),
    "glm4_moe": (
        "Glm4Moe",
        {
            **MOE,
            "head_dim": 32,
            "n_routed_experts": 8,
            "n_shared_experts": 2,
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 1.5,
            "use_qk_norm": True,
            "num_mtp_layers": 0,
        },
    ),
    "glm4_moe_air": (
        "Glm4Moe",
        {
            **MOE,
            "head_dim": 24,
            "n_routed_experts": 8,
            "attention_bias": True,
            "norm_topk_prob": False,
            "partial_rotary_factor": 0.25,
            "num_mtp_layers": 0,
        },
    ),
    "olmo3": (
        "Olmo3",
        {
            **BASE,
            "num_hidden_layers": 4,
            "sliding_window": 8,
            "rope_parameters": {
                "full_attention": YARN,
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        },
    ),
    "minimax_m2": (
        "MiniMaxM2",
        {
            **BASE,
            "head_dim": 16,
            "rotary_dim": 8,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
        },
    ),
    "kimi_k2": (
        "DeepseekV3",
        {
            **MLA,
            "n_shared_experts": 1,
            "n_group": 1,
            "topk_group": 1,
            "norm_topk_prob": True,
            "routed_scaling_factor": 2.827,
            "num_mtp_layers": 0,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 50000.0,
                "factor": 32.0,
                "original_max_position_embeddings": 64,
                "beta_fast": 1.0,
                "beta_slow": 1.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
            },
        },
    ),
    "deepseek_v2": ("DeepseekV2", V2),
    "deepseek_v2_lite": (
        "DeepseekV2",
        {**V2, "q_lora_rank": None, "topk_method": "greedy", "attention_bias": True},
    ),
    "deepseek_v3": ("DeepseekV3", V3),
    "deepseek_v3_yarn": (
        "DeepseekV3",
        {**V3, "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.7}},
    ),
    "deepseek_v3_halves": (
        "DeepseekV3",
        {**V3, "rope_interleave": False, "attention_bias": True, "rms_norm_eps": 1e-2},
    ),
}


SHAPES |= LOCAL_GLOBAL

ONE_A_FAMILY = (
    "llama_gqa", "ministral_hybrid", "mistral_window", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe",
    "mixtral", "glm4_moe", "olmo3", "minimax_m2", "kimi_k2", "deepseek_v2", "deepseek_v2_lite",
    "deepseek_v3", "gemma2", "gemma3", "gpt_oss",
)  # fmt: skip
"""Shapes for what would take too long with every one."""


@dataclass
class Oracle:
    """A checkpoint on disk, the transformers model it came from, and its greedy output."""

    directory: Path
    model: Any
    prompt: list[int]
    greedy: list[int]

    def logits(self, ids: list[int]) -> Tensor:
        """[T, vocabulary] of one whole sequence, without a cache."""
        with torch.inference_mode():
            return self.model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]


def random_model(name: str, seed: int = 0) -> Any:
    """A transformers model of this shape in fp32 with every parameter redrawn."""
    return random_model_of(*SHAPES[name], seed=seed)


def random_model_of(kind: str, fields: dict[str, Any], seed: int = 0) -> Any:
    """The same for a class of transformers (its name's beginning) and fields of its config."""
    model_class = getattr(transformers, f"{kind}ForCausalLM")
    config = model_class.config_class(**fields)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = model_class._from_config(config, attn_implementation="eager", dtype=torch.float32)
    redraw(model, seed)
    model.generation_config.eos_token_id = None
    return model.eval()


def redraw(model: Any, seed: int) -> None:
    """Give every parameter, and every buffer that is saved, a value of its own."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {**dict(model.named_parameters()), **model.state_dict(keep_vars=True)}
    drawn: set[int] = set()
    # Gemma stores norms - 1, and scales embeddings by sqrt(hidden): where they are tied, large
    # ones, or layers that add little to them, would make a model that only repeats its input.
    gemma = model.config.model_type.startswith("gemma")
    embedding = "lm_head" if gemma and model.config.tie_word_embeddings else "embed"
    deviation = model.config.hidden_size**-0.5 if gemma else 1.0
    for name, tensor in sorted(tensors.items()):
        if tensor.data_ptr() in drawn:
            continue  # tied to one that was drawn
        drawn.add(tensor.data_ptr())
        values = torch.randn(tensor.shape, generator=generator)
        if "norm" in name:
            values = (0 if gemma and "post_" not in name else 1) + 0.1 * values
        elif tensor.ndim == 1:
            values = 0.1 * values
        elif embedding in name:  # a tied one comes first under the head's name
            values = values * deviation
        else:
            values = values * 1.4 / math.sqrt(tensor.shape[-1])
        tensor.data.copy_(values)


def write_oracle(
    directory: Path, name: str, shard_size: str = "1GB", new_tokens: int = 32, **fields: Any
) -> Oracle:
    """Save the model of this shape, and continue a random prompt of 33 tokens greedily.

    `fields` change the shape's config.
    """
    kind, own = SHAPES[name]
    model, prompt = random_model_of(kind, {**own, **fields}), random_prompt()
    saved(model, directory, shard_size)
    ids = torch.tensor([prompt])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=new_tokens, do_sample=False,
            pad_token_id=0, eos_token_id=None,
        )  # fmt: skip
    return Oracle(directory, model, prompt, out[0, len(prompt) :].tolist())


def random_prompt() -> list[int]:
    """33 tokens."""
    draw = torch.Generator().manual_seed(1)
    return list(torch.randint(2, VOCAB_SIZE, (33,), generator=draw).tolist())


def saved(model: Any, directory: Path, shard_size: str = "1GB") -> None:
    """Write the model as transformers writes it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save_pretrained(directory, max_shard_size=shard_size)
