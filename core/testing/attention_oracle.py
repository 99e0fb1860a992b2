"""A small serving scene for attention tests and the answer to it, straight from the equations.

Everything here is dense float64 numpy, one query and one head at a time: no backend's code is used.
Legend: L entries of a request, E entries that a query sees, H query heads, K key/value heads.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interlock.core.model import AttentionInput, AttentionSpec, HeadsInput, LatentInput

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Work:
    """New tokens of one request: `lead` committed ones, then a draft tree (None: no draft).

    `parents[i]` is the node that node i follows, -1 for the last lead token. Or, then, a block of
    `block` tokens that see all of the new ones, later ones too.
    """

    row: int
    lead: int
    parents: tuple[int, ...] | None = None
    block: int = 0

    @property
    def new(self) -> int:
        """Tokens to run."""
        return self.lead + len(self.parents or ()) + self.block

    def depth(self, token: int) -> int:
        """Positions from the first new token to this one."""
        return token if self.block else len(self.path(token)) - 1

    def path(self, token: int) -> list[int]:
        """The new tokens that `token` sees: its ancestors and itself, or the whole block."""
        if token < self.lead:
            return list(range(token + 1))
        if self.block:
            return list(range(self.new))
        assert self.parents is not None
        parent = self.parents[token - self.lead]
        above = self.lead + parent if parent >= 0 else self.lead - 1
        return [*self.path(above), token]


def random_inputs(
    spec: AttentionSpec, entries: int, dtype: torch.dtype, random: np.random.Generator
) -> AttentionInput:
    """Unit-variance inputs for every entry of one request, in `dtype`."""

    def normal(*shape: int) -> Tensor:
        return torch.from_numpy(random.standard_normal(shape)).to(dtype)

    fixed = np.random.default_rng(7)  # a layer's parameters are the same for every request
    if spec.form == "heads":
        sinks_H = torch.from_numpy(fixed.standard_normal(spec.num_heads) * 2)
        return HeadsInput(
            normal(entries, spec.num_heads, spec.head_dim),
            normal(entries, spec.num_kv_heads, spec.head_dim),
            normal(entries, spec.num_kv_heads, spec.v_head_dim),
            sinks_H.to(torch.promote_types(dtype, torch.float32)) if spec.sinks else None,
        )
    scale = spec.latent_rank**-0.5
    up_k = fixed.standard_normal((spec.num_heads, spec.nope_dim, spec.latent_rank)) * scale
    up_v = fixed.standard_normal((spec.num_heads, spec.v_head_dim, spec.latent_rank)) * scale
    return LatentInput(
        normal(entries, spec.num_heads, spec.nope_dim),
        normal(entries, spec.num_heads, spec.rope_dim),
        normal(entries, spec.latent_rank),
        normal(entries, spec.rope_dim),
        torch.from_numpy(up_k).to(dtype),
        torch.from_numpy(up_v).to(dtype),
    )


def take(parts: list[tuple[AttentionInput, int, int]]) -> AttentionInput:
    """Entries first .. end of each request's inputs, joined in order."""

    def join(name: str) -> Tensor:
        return torch.cat([getattr(inputs, name)[first:end] for inputs, first, end in parts])

    whole = parts[0][0]
    if isinstance(whole, HeadsInput):
        return HeadsInput(join("q_THD"), join("k_TKD"), join("v_TKV"), whole.sinks_H)
    names = ("q_nope_THN", "q_rope_THR", "latent_TC", "k_rope_TR")
    return replace(whole, **{name: join(name) for name in names})


def answer(spec: AttentionSpec, inputs: AttentionInput, start: int, work: Work) -> Floats:
    """[new, H, V]: what the new tokens of one request must get, given all of its entries.

    out[h] = sum_e p[e] v[e], p[e] = exp(s[e]) / (sum_e exp(s[e]) + exp(sink[h])), over the entries
    e that the token sees: those below `start` and its path, inside the window by position.
    s[e] = c tanh(scale q[h] . k[e] / c); without a cap c s = scale q . k, without sinks exp is 0.
    """
    q, k, v = _per_head(inputs)
    positions = [start + work.depth(token) for token in range(work.new)]
    kv_heads = np.arange(spec.num_heads) * k.shape[1] // spec.num_heads
    sinks = np.full(spec.num_heads, -np.inf)
    if isinstance(inputs, HeadsInput) and inputs.sinks_H is not None:
        sinks = _exact(inputs.sinks_H)
    out = np.empty((work.new, spec.num_heads, spec.v_head_dim))
    for token in range(work.new):
        oldest = 0 if spec.window is None else positions[token] - spec.window + 1
        seen = [entry for entry in range(start) if entry >= oldest]
        seen += [start + other for other in work.path(token) if positions[other] >= oldest]
        for head, kv_head in enumerate(kv_heads.tolist()):
            scores_E = k[seen, kv_head] @ q[start + token, head] * spec.scale
            if spec.softcap is not None:
                scores_E = spec.softcap * np.tanh(scores_E / spec.softcap)
            most = max(scores_E.max(), sinks[head])
            weights_E = np.exp(scores_E - most)
            total = weights_E.sum() + np.exp(sinks[head] - most)
            out[token, head] = weights_E @ v[seen, kv_head] / total
    return out


def _per_head(inputs: AttentionInput) -> tuple[Floats, Floats, Floats]:
    """Queries [L, H, D], keys [L, K, D] and values [L, K, V]; MLA: k[h] = (up_k[h] c, rope)."""
    if isinstance(inputs, HeadsInput):
        return _exact(inputs.q_THD), _exact(inputs.k_TKD), _exact(inputs.v_TKV)
    q = np.concatenate((_exact(inputs.q_nope_THN), _exact(inputs.q_rope_THR)), axis=-1)
    latent, rope = _exact(inputs.latent_TC), _exact(inputs.k_rope_TR)
    heads = range(q.shape[1])
    up_k, up_v = _exact(inputs.up_k_HNC), _exact(inputs.up_v_HVC)
    keys = [np.concatenate((latent @ up_k[head].T, rope), axis=-1) for head in heads]
    return q, np.stack(keys, axis=1), np.stack([latent @ up_v[head].T for head in heads], axis=1)


def _exact(tensor: Tensor) -> Floats:
    values: Floats = tensor.cpu().to(torch.float64).numpy()
    return values
