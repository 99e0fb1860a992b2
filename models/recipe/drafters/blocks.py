"""The network of block drafters as it is trained: many blocks of one sequence in one pass.

A block starts at an anchor, the last committed token, and goes on with mask tokens; every layer
lets it read all committed positions before the anchor (through the target's layer outputs) and the
whole block in both directions (DFlash, arXiv 2602.06036). Training draws many anchors of a window
and runs their blocks side by side: block a sees context rows j < anchor_a and its own rows only.

Shapes: B sequences, T positions, X tapped layers, A anchors, J slots of a block, K drafts of a
block, H heads, D head size, E hidden size, V vocabulary.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from interlock.models.recipe.drafters.fusion import TapFusion
from interlock.models.recipe.network import RMSNorm, Shape, SwiGLU, rope_table, rotate_halves


@dataclass(frozen=True)
class BlockShape:
    """Sizes of a block drafter: a Qwen3-style decoder whose layers also read the target's."""

    vocab_size: int
    hidden: int
    taps: int
    slots: int
    layers: int = 2
    intermediate: int = 384
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    max_positions: int = 1024

    def config(self) -> dict[str, Any]:
        """The fields of a Qwen3 config.json."""
        return {
            "model_type": "qwen3",
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "attention_bias": False,
            "rms_norm_eps": self.norm_eps,
            "rope_theta": self.rope_theta,
            "max_position_embeddings": self.max_positions,
            "torch_dtype": "bfloat16",
        }


class BlockAttention(nn.Module):
    """Grouped-query attention of block rows over context rows and their own block."""

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        self.shape = shape
        width, kv_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.hidden, width, bias=False)
        self.k_proj = nn.Linear(shape.hidden, kv_width, bias=False)
        self.v_proj = nn.Linear(shape.hidden, kv_width, bias=False)
        self.o_proj = nn.Linear(width, shape.hidden, bias=False)
        self.q_norm = RMSNorm(shape.head_dim, shape.norm_eps)
        self.k_norm = RMSNorm(shape.head_dim, shape.norm_eps)
        length = shape.max_positions + shape.slots
        cos, sin = rope_table(shape.head_dim, length, shape.rope_theta)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, x_BAJE: Tensor, context_BTE: Tensor, anchors_BA: Tensor) -> Tensor:
        """[B, A, J, E]: rows attend to context rows before their anchor and to their block."""
        batch, blocks, slots, _ = x_BAJE.shape
        tokens, group = context_BTE.shape[1], self.shape.heads // self.shape.kv_heads
        places = (anchors_BA[:, :, None] + torch.arange(slots)).flatten(1)
        own = x_BAJE.flatten(1, 2)
        queries = self._turn(self.q_norm(self._split(self.q_proj(own))), places)
        keys = self._turn(self.k_norm(self._split(self.k_proj(own))), places)
        context = torch.arange(tokens).expand(batch, -1)
        past_keys = self._turn(self.k_norm(self._split(self.k_proj(context_BTE))), context)
        values, past_values = (
            self._split(self.v_proj(rows)).repeat_interleave(group, 1)
            for rows in (own, context_BTE)
        )
        keys = keys.to(values.dtype).repeat_interleave(group, 1)
        past_keys = past_keys.to(values.dtype).repeat_interleave(group, 1)
        queries = queries.to(values.dtype) * self.shape.head_dim**-0.5

        by_block = lambda rows: rows.unflatten(2, (blocks, slots))  # noqa: E731
        past_scores = by_block(queries @ past_keys.transpose(2, 3)).float()
        unseen = torch.arange(tokens) >= anchors_BA[:, None, :, None, None]
        past_scores = past_scores.masked_fill(unseen, -torch.inf)
        own_scores = (by_block(queries) @ by_block(keys).transpose(3, 4)).float()
        weights = torch.cat([past_scores, own_scores], -1).softmax(-1).to(values.dtype)
        out = by_block(weights[..., :tokens].flatten(2, 3) @ past_values)
        out = out + weights[..., tokens:] @ by_block(values)
        return self.o_proj(out.permute(0, 2, 3, 1, 4).flatten(3))

    def _split(self, rows: Tensor) -> Tensor:
        """[B, rows, heads * D] -> [B, heads, rows, D]."""
        return rows.unflatten(2, (-1, self.shape.head_dim)).transpose(1, 2)

    def _turn(self, rows: Tensor, places: Tensor) -> Tensor:
        """Rotate [B, heads, rows, D] to the positions [B, rows]."""
        return rotate_halves(rows, self.cos[places][:, None], self.sin[places][:, None])


class BlockLayer(nn.Module):
    """One pre-norm layer; the context is not normed again. Names are the checkpoint's."""

    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(shape.hidden, shape.norm_eps)
        self.self_attn = BlockAttention(shape)
        self.post_attention_layernorm = RMSNorm(shape.hidden, shape.norm_eps)
        self.mlp = SwiGLU(
            Shape(attention="gqa", hidden=shape.hidden, intermediate=shape.intermediate)
        )

    def forward(self, x_BAJE: Tensor, context_BTE: Tensor, anchors_BA: Tensor) -> Tensor:
        """Same shape as `x_BAJE`."""
        x = x_BAJE + self.self_attn(self.input_layernorm(x_BAJE), context_BTE, anchors_BA)
        return x + self.mlp(self.post_attention_layernorm(x))


class BlockNetwork(nn.Module):
    """fc and hidden_norm over the taps, then layers over blocks, then a final norm."""

    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        self.shape = shape
        self.fc = TapFusion(shape.taps, shape.hidden)
        self.hidden_norm = RMSNorm(shape.hidden, shape.norm_eps)
        self.layers = nn.ModuleList(BlockLayer(shape) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.hidden, shape.norm_eps)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                nn.init.normal_(weight, std=0.02)
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                nn.init.zeros_(weight)

    def forward(self, embedded_BAJE: Tensor, taps_BTXE: Tensor, anchors_BA: Tensor) -> Tensor:
        """Normed rows [B, A, J, E] of blocks that start at the anchors' positions."""
        context = self.hidden_norm(self.fc(taps_BTXE))
        x = embedded_BAJE
        for layer in self.layers:
            x = layer(x, context, anchors_BA)
        return self.norm(x)

    def tensors(self) -> dict[str, Tensor]:
        """The weights under their published names."""
        named = {n: w for n, w in self.state_dict().items() if not n.startswith("fc.")}
        return {"fc.weight": self.fc.weight, **named}

    def take(self, tensors: dict[str, Tensor]) -> None:
        """Load what `tensors` returned."""
        rest = dict(tensors)
        self.fc.set_weight(rest.pop("fc.weight"))
        self.load_state_dict(rest | {f"fc.{n}": t for n, t in self.fc.state_dict().items()})


def draw_anchors(mask_BT: Tensor, count: int) -> Tensor:
    """[B, count] sorted random positions after which the target's law counts in the loss.

    A row with fewer such positions is filled up with its last position, whose block has no weight.
    """
    valid = mask_BT[:, :-1].bool()
    keys = torch.rand(valid.shape).masked_fill(~valid, -1.0)
    best, places = keys.topk(min(count, valid.shape[1]), dim=1)
    return places.masked_fill(best < 0, mask_BT.shape[1] - 1).sort(dim=1).values


def block_ids(ids_BT: Tensor, anchors_BA: Tensor, slots: int, mask_token_id: int) -> Tensor:
    """[B, A, slots]: the anchor's token, then mask tokens."""
    ids = torch.full((*anchors_BA.shape, slots), mask_token_id, dtype=torch.long)
    ids[:, :, 0] = ids_BT.gather(1, anchors_BA)
    return ids


def block_rows(tokens: int, anchors_BA: Tensor, drafts: int) -> Tensor:
    """[B, A, drafts]: position whose law draft k imitates (anchor + k), kept inside the window."""
    return (anchors_BA[:, :, None] + torch.arange(drafts)).clamp(max=tokens - 1)


def block_weights(mask_BT: Tensor, anchors_BA: Tensor, drafts: int, decay: float) -> Tensor:
    """[B, A, drafts]: exp(-k / decay) while every row of the block up to draft k counts, else 0.

    The last position of a window never counts: its draft could not be told from a filled-up anchor.
    """
    rows = block_rows(mask_BT.shape[1], anchors_BA, drafts)
    inside = anchors_BA[:, :, None] + torch.arange(drafts) < mask_BT.shape[1] - 1
    counts = mask_BT.bool().gather(1, rows.flatten(1)).view(rows.shape) & inside
    return counts.cumprod(-1) * torch.exp(-torch.arange(drafts) / decay)


def at_rows(values_BTE: Tensor, rows_BAK: Tensor) -> Tensor:
    """[B, A, K, ...]: rows of each sequence."""
    return values_BTE[torch.arange(len(rows_BAK))[:, None, None], rows_BAK]


def weighted_mean(values: Tensor, weights: Tensor) -> Tensor:
    """Sum of values times weights over the sum of weights; 0 where nothing counts."""
    return (values * weights).sum() / weights.sum().clamp(min=1e-6)


def soft_entropies(logits: Tensor, law: Tensor) -> Tensor:
    """[...]: cross-entropy of softmax(logits) [..., V] to the target's law, row by row."""
    entropy = F.cross_entropy(logits.float().flatten(0, -2), law.flatten(0, -2), reduction="none")
    return entropy.view(logits.shape[:-1])


def unused_token(counts_V: Tensor) -> int:
    """The last id that the training windows never hold, to stand for a mask; 0 counts only.

    Raises:
        ValueError: every id occurs.
    """
    unused = (counts_V == 0).nonzero()
    if not len(unused):
        raise ValueError("every token id occurs in the text, so none can stand for a mask")
    return int(unused[-1])
