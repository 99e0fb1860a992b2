"""Llama checkpoints of given shapes with random weights, in the format that every engine loads.

A benchmark needs a model's shape, not what it says: random weights cost the same time. A directory
holds config.json and model.safetensors as Hugging Face writes them and no tokenizer: prompts are
token ids. A directory that already holds the shape is used as it is.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
MAX_POSITIONS = 4096
SPREAD = 0.02  # standard deviation of the weights, as such models are initialised


@dataclass(frozen=True)
class Shape:
    """The sizes of a Llama: what its config.json says."""

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    tied: bool

    @property
    def weight_elements(self) -> int:
        """Weights that one token of decode reads: every matrix, the head once."""
        head = self.hidden // self.heads
        attention = self.hidden * head * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.ffn) + self.vocab * self.hidden

    def config(self, dtype: str) -> dict[str, Any]:
        """The content of config.json."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.hidden // self.heads,
            "intermediate_size": self.ffn,
            "vocab_size": self.vocab,
            "tie_word_embeddings": self.tied,
            "max_position_embeddings": MAX_POSITIONS,
            "rope_theta": 10_000.0,
            "rms_norm_eps": 1e-5,
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "torch_dtype": dtype,
        }


SMOLLM2 = Shape("smollm2-135m", 576, 30, 9, 3, 1536, 49_152, tied=True)
LLAMA = Shape("llama-1.1b", 2048, 22, 32, 4, 5632, 32_000, tied=False)
TINY = Shape("tiny", 128, 2, 2, 1, 320, 512, tied=True)  # for a quick look and for tests
SHAPES = {shape.name: shape for shape in (SMOLLM2, LLAMA, TINY)}


def weights(shape: Shape, dtype: torch.dtype, seed: int) -> dict[str, torch.Tensor]:
    """Every tensor by its Hugging Face name: matrices [out, in] drawn, norms 1."""
    draw = torch.Generator().manual_seed(seed)
    head = shape.hidden // shape.heads

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=draw).mul_(SPREAD).to(dtype)

    tensors = {
        "model.embed_tokens.weight": matrix(shape.vocab, shape.hidden),
        "model.norm.weight": torch.ones(shape.hidden, dtype=dtype),
    }
    if not shape.tied:
        tensors["lm_head.weight"] = matrix(shape.vocab, shape.hidden)
    for layer in range(shape.layers):
        at = f"model.layers.{layer}"
        tensors |= {
            f"{at}.input_layernorm.weight": torch.ones(shape.hidden, dtype=dtype),
            f"{at}.post_attention_layernorm.weight": torch.ones(shape.hidden, dtype=dtype),
            f"{at}.self_attn.q_proj.weight": matrix(shape.heads * head, shape.hidden),
            f"{at}.self_attn.k_proj.weight": matrix(shape.kv_heads * head, shape.hidden),
            f"{at}.self_attn.v_proj.weight": matrix(shape.kv_heads * head, shape.hidden),
            f"{at}.self_attn.o_proj.weight": matrix(shape.hidden, shape.heads * head),
            f"{at}.mlp.gate_proj.weight": matrix(shape.ffn, shape.hidden),
            f"{at}.mlp.up_proj.weight": matrix(shape.ffn, shape.hidden),
            f"{at}.mlp.down_proj.weight": matrix(shape.hidden, shape.ffn),
        }
    return tensors


def write(shape: Shape, folder: Path, dtype: str = "bfloat16", seed: int = 0) -> Path:
    """The directory `folder`/NAME-DTYPE with this checkpoint, written unless it is there."""
    directory = folder / f"{shape.name}-{dtype}"
    config = json.dumps(shape.config(dtype) | {"drawn_with_seed": seed}, indent=1) + "\n"
    said = directory / "config.json"
    if said.is_file() and said.read_text(encoding="utf-8") == config:
        return directory
    directory.mkdir(parents=True, exist_ok=True)
    tensors = weights(shape, DTYPES[dtype], seed)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    said.write_text(config, encoding="utf-8")  # last: it says that the weights are whole
    return directory
