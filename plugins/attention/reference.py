"""The naive oracle: every query alone, straight from the formula, sharing no code with the others.

Legend: T tokens, H query heads, K key/value heads, D head size, V value head size, G = H / K,
E entries that a query sees, N and R the parts of an MLA query without and with rotary embedding,
C latent rank.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from interlock.core.attention import AttentionBackend, AttentionBatch
from interlock.core.cache_spec import CacheGroup
from interlock.core.component import BuildContext
from interlock.core.model import (
    AttentionInput,
    AttentionSpec,
    HeadsInput,
    LatentInput,
)
from interlock.plugins.attention.stored import stored_groups


class ReferenceAttention(AttentionBackend):
    """softmax(scale q k^T) v for one query after the other, in fp32 or the inputs' wider dtype.

    Serves both forms, windows, soft caps and sinks as `AttentionSpec` defines them; MLA is expanded
    to heads (DeepSeek-V2, arXiv 2405.04434, equations 9 to 19).
    """

    def __init__(self, cache_dtype: str = "auto") -> None:
        self._cache_dtype = cache_dtype
        self._squares: dict[str, tuple[float, float]] = {}

    def cache_groups(
        self, specs: tuple[AttentionSpec, ...], first_layer: int
    ) -> tuple[CacheGroup, ...]:
        """K and V a head, or the latent with its rotated key; in fp8 with their scales."""
        return stored_groups(specs, first_layer, self._cache_dtype)

    def plan(self, batch: AttentionBatch) -> AttentionBatch:
        """The batch itself: nothing is prepared."""
        return batch

    def attend(
        self,
        spec: AttentionSpec,
        inputs: AttentionInput,
        plan: Any,
        table: int,
        planes: Mapping[str, Tensor],
    ) -> Tensor:
        """[T, H, V]; all new rows are written before the first query is answered."""
        batch: AttentionBatch = plan
        rows = [Row(batch, table, row) for row in range(batch.num_rows)]
        stored = _rows_to_store(inputs, planes)
        for row in rows:
            for token in row.tokens:
                page, offset = row.place(row.start + token - row.first)
                for name, new in stored.items():
                    _store(planes, name, new[token], page, offset)
                    self._measure(name, new[token], _read(planes, name, [page], [offset])[0])
        queries, sinks_H = _queries(inputs), _sinks(spec, inputs)
        outputs = queries.new_empty(len(queries), spec.num_heads, spec.v_head_dim)
        for row in rows:
            for token in row.tokens:
                places = [row.place(entry) for entry in row.visible_entries(token, spec.window)]
                keys, values = _keys_and_values(inputs, planes, places)
                outputs[token] = _one_query(spec, queries[token], keys, values, sinks_H)
        return outputs

    def losses(self) -> Mapping[str, float]:
        """Relative root mean square error of all rows that were finite, where they are in fp8."""
        if self._cache_dtype == "auto":
            return {}
        return {n: (wrong / given) ** 0.5 for n, (wrong, given) in self._squares.items() if given}

    def _measure(self, name: str, given: Tensor, stored: Tensor) -> None:
        wrong, size = ((stored - given).double() ** 2).sum(), (given.double() ** 2).sum()
        if self._cache_dtype == "fp8" and bool(wrong.isfinite()):
            before = self._squares.get(name, (0.0, 0.0))
            self._squares[name] = before[0] + float(wrong), before[1] + float(size)


class Row:
    """One request of the step: where its entries are and which of them a token sees."""

    def __init__(self, batch: AttentionBatch, table: int, row: int) -> None:
        self.first, self.start = batch.row_offsets[row], batch.starts[row]
        self.tokens = range(self.first, batch.row_offsets[row + 1])
        self._positions = batch.positions
        self._mask = batch.tree_masks.get(row)
        self._page_size = batch.page_size
        self._pages: list[int] = batch.page_tables[table][row].tolist()

    def place(self, entry: int) -> tuple[int, int]:
        """(page, offset) of an entry."""
        return self._pages[entry // self._page_size], entry % self._page_size

    def visible_entries(self, token: int, window: int | None) -> list[int]:
        """Committed entries, then the token and its ancestors, those inside the window."""
        oldest = 0 if window is None else self._positions[token] - window + 1
        seen = list(range(max(0, oldest), self.start))
        for other in self.tokens:
            if self._is_ancestor(other, token) and self._positions[other] >= oldest:
                seen.append(self.start + other - self.first)
        return seen

    def _is_ancestor(self, other: int, token: int) -> bool:
        if self._mask is None:
            return other <= token
        return bool(self._mask[token - self.first, other - self.first])


def _rows_to_store(inputs: AttentionInput, planes: Mapping[str, Tensor]) -> dict[str, Tensor]:
    if isinstance(inputs, HeadsInput):
        return {"k": inputs.k_TKD, "v": inputs.v_TKV}
    if "rope" in planes:
        return {"latent": inputs.latent_TC, "rope": inputs.k_rope_TR}
    return {"latent": torch.cat((inputs.latent_TC, inputs.k_rope_TR), dim=-1)}


def _queries(inputs: AttentionInput) -> Tensor:
    if isinstance(inputs, HeadsInput):
        return inputs.q_THD
    return torch.cat((inputs.q_nope_THN, inputs.q_rope_THR), dim=-1)


def _sinks(spec: AttentionSpec, inputs: AttentionInput) -> Tensor:
    """[H], -inf where the layer has none."""
    if isinstance(inputs, HeadsInput) and inputs.sinks_H is not None:
        return inputs.sinks_H
    assert not spec.sinks, "the decoder gave no sinks"
    return torch.full((spec.num_heads,), -torch.inf, device=_queries(inputs).device)


def _keys_and_values(
    inputs: AttentionInput, planes: Mapping[str, Tensor], places: list[tuple[int, int]]
) -> tuple[Tensor, Tensor]:
    """[E, K, D] and [E, K, V] of the entries at these places, at least fp32."""
    pages, offsets = [page for page, _ in places], [offset for _, offset in places]
    dtype = _wide(_queries(inputs)).dtype
    names = _rows_to_store(inputs, planes)
    rows = {name: _read(planes, name, pages, offsets).to(dtype) for name in names}
    if isinstance(inputs, LatentInput):
        return _expand(inputs, torch.cat(list(rows.values()), dim=-1))
    return rows["k"], rows["v"]


def _store(planes: Mapping[str, Tensor], name: str, row: Tensor, page: int, offset: int) -> None:
    """The row as it is, or a part of it and its scale after the other where the plane has scales.

    A scale is the least power of two with max |x| <= 448 scale (see `fp8`).
    """
    scales = planes.get(f"{name}_scale")
    if scales is None:
        planes[name][page, offset] = row
        return
    parts = row.float().reshape(scales.shape[-1], -1)
    if row.dtype == torch.float16:
        parts = torch.where(parts.isfinite(), parts.clamp(-61440, 61440), parts)
    scale = [_scale(float(part.abs().max())) for part in parts]
    scales[page, offset] = torch.tensor(scale)
    codes = torch.stack([part / by for part, by in zip(parts, scale, strict=True)])
    planes[name][page, offset] = codes.reshape(row.shape).to(planes[name].dtype)


def _scale(most: float) -> float:
    if not most <= 448 * 2.0**119:
        return math.nan
    fraction, exponent = math.frexp(most / 448)  # in [0.5, 1) times 2^exponent
    return 2.0 ** max(exponent - (fraction == 0.5), -126) if most else 2.0**-126


def _read(planes: Mapping[str, Tensor], name: str, pages: list[int], offsets: list[int]) -> Tensor:
    rows, scales = planes[name][pages, offsets], planes.get(f"{name}_scale")
    if scales is None:
        return rows
    parts = rows.float().reshape(len(pages), scales.shape[-1], -1)
    return (parts * scales[pages, offsets][..., None]).reshape(rows.shape)


def _expand(inputs: LatentInput, rows: Tensor) -> tuple[Tensor, Tensor]:
    rank = inputs.latent_TC.shape[-1]
    latent_EC, rope_ER = _wide(rows[:, :rank]), _wide(rows[:, rank:])
    nope_EHN = torch.einsum("ec,hnc->ehn", latent_EC, _wide(inputs.up_k_HNC))
    rope_EHR = rope_ER[:, None].expand(-1, nope_EHN.shape[1], -1)
    values_EHV = torch.einsum("ec,hvc->ehv", latent_EC, _wide(inputs.up_v_HVC))
    return torch.cat((nope_EHN, rope_EHR), dim=-1), values_EHV


def _one_query(
    spec: AttentionSpec, query_HD: Tensor, keys_EKD: Tensor, values_EKV: Tensor, sinks_H: Tensor
) -> Tensor:
    """[H, V]: query heads h G .. h G + G - 1 read key head h.

    exp(s) / (sum exp(s) + exp(sink)) = softmax(s) sigmoid(logsumexp(s) - sink).
    """
    query_KGD = _wide(query_HD).reshape(keys_EKD.shape[1], -1, query_HD.shape[-1])
    scores_KGE = torch.einsum("kgd,ekd->kge", query_KGD, keys_EKD) * spec.scale
    if spec.softcap is not None:
        scores_KGE = torch.tanh(scores_KGE / spec.softcap) * spec.softcap
    out_KGV = torch.einsum("kge,ekv->kgv", torch.softmax(scores_KGE, dim=-1), values_EKV)
    above_H = torch.logsumexp(scores_KGE, dim=-1).flatten() - sinks_H
    return out_KGV.flatten(0, 1) * torch.sigmoid(above_H)[:, None]


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def build(_config: Any, context: BuildContext) -> ReferenceAttention:
    """The component's instance."""
    return ReferenceAttention(context.cache_dtype)
