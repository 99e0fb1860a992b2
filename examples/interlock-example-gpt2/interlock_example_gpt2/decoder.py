"""GPT-2: learned positions, norms before attention and MLP, gelu (Radford et al., 2019).

Legend: T tokens, E hidden size, H heads, D head size, V vocabulary.
"""

import torch
from torch import Tensor
from torch.nn import functional

from interlock.core.errors import CheckpointError
from interlock.core.model import Attend, HeadsInput, ModelDescription, Taps
from interlock.core.parallel import Placement
from interlock.core.weights import WeightSource
from interlock_example_gpt2.family import inner_size

HEAD = "lm_head.weight"
MASKS = ("*h.*.attn.bias", "*h.*.attn.masked_bias")
"""Constant causal masks that old files hold."""


class Loader:
    """Takes parameters by name; norms in at least fp32, so that bf16 loses nothing there."""

    def __init__(self, weights: WeightSource, placement: Placement) -> None:
        self.weights = weights
        self.dtype, self.device = placement.dtype, placement.device
        self.wide = torch.promote_types(placement.dtype, torch.float32)
        self.prefix = "transformer." if weights.has("transformer.wte.weight") else ""

    def table(self, name: str, rows: int, columns: int) -> Tensor:
        """[rows, columns] in the model's dtype."""
        name = f"{self.prefix}{name}.weight"
        return self.weights.take(name, (rows, columns), self.dtype, self.device)

    def norm(self, name: str, size: int, eps: float) -> "Norm":
        """Weight and bias of a layer norm."""
        weight, bias = (
            self.weights.take(f"{self.prefix}{name}.{part}", (size,), self.wide, self.device)
            for part in ("weight", "bias")
        )
        return Norm(weight, bias, eps)

    def linear(self, name: str, inputs: int, outputs: int) -> "Linear":
        """GPT-2 stores [inputs, outputs]."""
        bias = self.weights.take(f"{self.prefix}{name}.bias", (outputs,), self.dtype, self.device)
        return Linear(self.table(name, inputs, outputs).T.contiguous(), bias)


class Norm:
    """Layer norm, computed in the dtype of its weight."""

    def __init__(self, weight: Tensor, bias: Tensor, eps: float) -> None:
        self.weight, self.bias, self.eps = weight, bias, eps

    def __call__(self, x_TE: Tensor) -> Tensor:
        """[T, E] -> [T, E]."""
        wide_TE = x_TE.to(self.weight.dtype)
        normed_TE = functional.layer_norm(
            wide_TE, self.weight.shape, self.weight, self.bias, self.eps
        )
        return normed_TE.to(x_TE.dtype)


class Linear:
    """x @ weight.T + bias."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self.weight, self.bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        """[T, inputs] -> [T, outputs]."""
        return functional.linear(x, self.weight, self.bias)


class Block:
    """One layer: attention and MLP, each added to the residual stream."""

    def __init__(self, load: Loader, layer: int, description: ModelDescription) -> None:
        hidden, inner = description.hidden_size, inner_size(description.config)
        eps = description.config.get("layer_norm_epsilon", 1e-5)
        name = f"h.{layer}"
        self.layer, self.spec = layer, description.attention[layer]
        self.before_attention = load.norm(f"{name}.ln_1", hidden, eps)
        self.qkv = load.linear(f"{name}.attn.c_attn", hidden, 3 * hidden)
        self.out = load.linear(f"{name}.attn.c_proj", hidden, hidden)
        self.before_mlp = load.norm(f"{name}.ln_2", hidden, eps)
        self.up = load.linear(f"{name}.mlp.c_fc", hidden, inner)
        self.down = load.linear(f"{name}.mlp.c_proj", inner, hidden)

    def __call__(self, x_TE: Tensor, attend: Attend) -> Tensor:
        """The residual stream after this layer."""
        qkv_TE = self.qkv(self.before_attention(x_TE))
        shape = (len(x_TE), self.spec.num_heads, self.spec.head_dim)
        q_THD, k_THD, v_THD = (part_TE.reshape(shape) for part_TE in qkv_TE.chunk(3, dim=-1))
        mixed_THD = attend(self.layer, self.spec, HeadsInput(q_THD, k_THD, v_THD))
        x_TE = x_TE + self.out(mixed_THD.flatten(1))
        up_TE = functional.gelu(self.up(self.before_mlp(x_TE)), approximate="tanh")
        return x_TE + self.down(up_TE)


class GPT2Decoder:
    """Implements `interlock.core.model.Decoder`."""

    def __init__(
        self, description: ModelDescription, weights: WeightSource, placement: Placement
    ) -> None:
        self.description = description
        load = Loader(weights, placement)
        vocab, hidden = description.vocab_size, description.hidden_size
        self.tokens_VE = load.table("wte", vocab, hidden)
        self.positions_PE = load.table("wpe", description.max_positions, hidden)
        self.blocks = [Block(load, layer, description) for layer in range(description.num_layers)]
        eps = description.config.get("layer_norm_epsilon", 1e-5)
        self.norm = load.norm("ln_f", hidden, eps)
        self.head_VE = self._head(load)
        weights.finish(ignore=MASKS)

    def forward(
        self,
        tokens_T: Tensor,
        positions_T: Tensor,
        attend: Attend,
        taps: Taps | None = None,
        inputs_TE: Tensor | None = None,
    ) -> Tensor:
        """Final-norm features [T, E], calling `attend` once per layer in layer order."""
        embedded_TE = self.embed(tokens_T) if inputs_TE is None else inputs_TE
        x_TE = embedded_TE + self.positions_PE[positions_T]
        for layer, block in enumerate(self.blocks):
            x_TE = block(x_TE, attend)
            if taps is not None:
                taps.offer(layer, x_TE)
        return self.norm(x_TE)

    def logits(self, features_TE: Tensor) -> Tensor:
        """[T, V] in the model's dtype."""
        return functional.linear(features_TE, self.head_VE)

    def embed(self, tokens_T: Tensor) -> Tensor:
        """The tokens' rows of the embedding matrix [T, E]."""
        return functional.embedding(tokens_T, self.tokens_VE)

    def _head(self, load: Loader) -> Tensor:
        """The embedding, or a matrix of its own where the config says so."""
        tied = self.description.config.get("tie_word_embeddings", True)
        if tied and not load.weights.has(HEAD):
            return self.tokens_VE
        shape = tuple(self.tokens_VE.shape)
        head_VE = load.weights.take(HEAD, shape, load.dtype, load.device)
        if tied and not torch.equal(head_VE, self.tokens_VE):
            raise CheckpointError(f"tie_word_embeddings is true, but {HEAD} is not the embedding")
        return head_VE
