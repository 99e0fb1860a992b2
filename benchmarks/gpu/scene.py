"""Steps of attention over scattered, poisoned pages, and their formula in fp64.

Legend: T tokens, S entries of a request, H query heads, K key/value heads, D head size, V value
head size, C latent rank, N and R the parts of an MLA head without and with rotary embedding,
P pages, B tokens in a page.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from interlock.core.attention import AttentionBackend
from interlock.core.model import AttentionInput, AttentionSpec, HeadsInput, LatentInput
from interlock.core.planes import make_attention_batch


@dataclass(frozen=True)
class Row:
    """A request in a step: entries before it, new tokens, and a draft tree's parents if it is one.

    The first new token is committed; node n's parent is parents[n - 1], -1 for the first token.
    """

    context: int
    new: int
    parents: tuple[int, ...] | None = None

    def mask(self) -> Tensor:
        """bool [new, new]: which new tokens each new token sees."""
        seen = torch.ones(self.new, self.new, dtype=torch.bool).tril()
        for node, parent in enumerate(self.parents or ()):
            seen[node + 1] = seen[parent + 1]
            seen[node + 1, node + 1] = True
        return seen

    def positions(self) -> list[int]:
        """Of the new tokens: their depth in the tree, after the context."""
        return [self.context + int(row.sum()) - 1 for row in self.mask()]


class Scene:
    """One layer of one backend, with rows that have pages of their own at random places."""

    def __init__(
        self,
        backend: AttentionBackend,
        spec: AttentionSpec,
        rows: Sequence[Row],
        page: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.backend, self.spec, self.rows, self.page = backend, spec, list(rows), page
        self.dtype, self.device = dtype, device
        self.draw = torch.Generator(device).manual_seed(0)
        counts = [-(-(row.context + row.new) // page) for row in rows]
        order = torch.randperm(sum(counts) + 2, generator=torch.Generator().manual_seed(1)) + 1
        self.table = torch.zeros(len(counts), max(counts), dtype=torch.long)
        for row, (count, pages) in enumerate(
            zip(counts, order[: sum(counts)].split(counts), strict=True)
        ):
            self.table[row, :count] = pages
        self.planes = {
            plane.name: torch.full(
                (len(order) + 1, page, *plane.shape), torch.nan, device=device,
            ).to(getattr(torch, plane.dtype) if plane.dtype else dtype)
            for plane in backend.cache_groups((spec,), 0)[0].planes
        }  # fmt: skip
        self.up = self._ups()

    def _randn(self, *size: int) -> Tensor:
        return torch.randn(*size, generator=self.draw, device=self.device).to(self.dtype)

    def _ups(self) -> tuple[Tensor, Tensor] | None:
        spec = self.spec
        if spec.form != "latent":
            return None
        shrink = spec.latent_rank**-0.5
        up_k = self._randn(spec.num_heads, spec.nope_dim, spec.latent_rank) * shrink
        return up_k, self._randn(spec.num_heads, spec.v_head_dim, spec.latent_rank) * shrink

    def inputs(self, tokens: int) -> AttentionInput:
        """Random ones of so many new tokens."""
        spec = self.spec
        if self.up is not None:
            return LatentInput(
                self._randn(tokens, spec.num_heads, spec.nope_dim),
                self._randn(tokens, spec.num_heads, spec.rope_dim),
                self._randn(tokens, spec.latent_rank), self._randn(tokens, spec.rope_dim),
                *self.up,
            )  # fmt: skip
        sinks = self._randn(spec.num_heads).float() if spec.sinks else None
        return HeadsInput(
            self._randn(tokens, spec.num_heads, spec.head_dim),
            self._randn(tokens, spec.num_kv_heads, spec.head_dim),
            self._randn(tokens, spec.num_kv_heads, spec.v_head_dim), sinks,
        )  # fmt: skip

    def plan(self, rows: Sequence[Row]) -> Any:
        """The backend's plan of a step of these rows."""
        offsets = [0]
        for row in rows:
            offsets.append(offsets[-1] + row.new)
        batch = make_attention_batch(
            offsets, [row.context for row in rows], [p for row in rows for p in row.positions()],
            (self.table.to(self.device),), self.page,
            {n: r.mask().to(self.device) for n, r in enumerate(rows) if r.parents},
            self.device,
        )  # fmt: skip
        return self.backend.plan(batch)

    def attend(self, inputs: AttentionInput, plan: Any) -> Tensor:
        """[T, H, V]: writes the new rows and attends."""
        return self.backend.attend(self.spec, inputs, plan, 0, self.planes)

    def fill(self) -> None:
        """Compute the contexts, as prompts."""
        prompts = [Row(0, row.context) for row in self.rows]
        if any(row.new for row in prompts):
            self.attend(self.inputs(sum(row.new for row in prompts)), self.plan(prompts))

    def stored(self, name: str, row: int, entries: int) -> Tensor:
        """fp64 [S, ...]: what the planes hold of a request, with its scales where it has some."""
        at = torch.arange(entries)
        slots = (self.table[row, at // self.page] * self.page + at % self.page).to(self.device)
        values = self.planes[name].flatten(0, 1)
        if values.dtype.itemsize == 1:  # torch takes numbers of 8 bits by index only as integers
            found = values.view(torch.uint8)[slots].view(values.dtype).float().double()
        else:
            found = values[slots].double()
        scale = self.planes.get(f"{name}_scale")
        if scale is not None:
            scale_G = scale.flatten(0, 1)[slots].double()
            grouped = found.view(*scale_G.shape, -1)
            found = (grouped * scale_G[..., None]).view(found.shape)
        return found

    def errors(self) -> tuple[float, float]:
        """One step of all rows: the largest error of outputs, and of what was written.

        Relative to the largest wanted number; what was written is not compared with itself.
        """
        self.fill()
        inputs = self.inputs(sum(row.new for row in self.rows))
        out_THV = self.attend(inputs, self.plan(self.rows)).double()
        first, attended, written = 0, 0.0, 0.0
        for index, row in enumerate(self.rows):
            tokens = slice(first, first + row.new)
            keys_SKD, values_SKV = self._keys_values(inputs, index, row)
            want_THV = self._formula(inputs, tokens, row, keys_SKD, values_SKV)
            attended = max(attended, _relative(out_THV[tokens], want_THV))
            for name, rows_T in self._given(inputs).items():
                new = self.stored(name, index, row.context + row.new)[row.context :]
                written = max(written, _relative(new, rows_T[tokens].double()))
            first += row.new
        return attended, written

    def _given(self, inputs: AttentionInput) -> dict[str, Tensor]:
        if isinstance(inputs, HeadsInput):
            return {"k": inputs.k_TKD, "v": inputs.v_TKV}
        if "rope" in self.planes:
            return {"latent": inputs.latent_TC, "rope": inputs.k_rope_TR}
        return {"latent": torch.cat((inputs.latent_TC, inputs.k_rope_TR), -1)}

    def _keys_values(self, inputs: AttentionInput, index: int, row: Row) -> tuple[Tensor, Tensor]:
        """[S, K, D] and [S, K, V] in fp64, of what is stored; a latent is expanded to all heads."""
        entries = row.context + row.new
        if isinstance(inputs, HeadsInput):
            return self.stored("k", index, entries), self.stored("v", index, entries)
        rows_SL = self.stored("latent", index, entries)
        if "rope" in self.planes:
            rows_SL = torch.cat((rows_SL, self.stored("rope", index, entries)), -1)
        latent_SC, rope_SR = rows_SL.split((self.spec.latent_rank, self.spec.rope_dim), -1)
        nope_SHN = torch.einsum("hnc,sc->shn", inputs.up_k_HNC.double(), latent_SC)
        rope_SHR = rope_SR[:, None].expand(-1, self.spec.num_heads, -1)
        values_SHV = torch.einsum("hvc,sc->shv", inputs.up_v_HVC.double(), latent_SC)
        return torch.cat((nope_SHN, rope_SHR), -1), values_SHV

    def _formula(
        self, inputs: AttentionInput, tokens: slice, row: Row, k_SKD: Tensor, v_SKV: Tensor
    ) -> Tensor:
        """[new, H, V]: softmax(q k) v over what each token may see."""
        spec = self.spec
        if isinstance(inputs, HeadsInput):
            q_THD = inputs.q_THD[tokens].double()
        else:
            q_THD = torch.cat((inputs.q_nope_THN[tokens], inputs.q_rope_THR[tokens]), -1).double()
        group = spec.num_heads // k_SKD.shape[1]
        k_SHD, v_SHV = k_SKD.repeat_interleave(group, 1), v_SKV.repeat_interleave(group, 1)
        scores_HTS = torch.einsum("thd,shd->hts", q_THD, k_SHD) * spec.scale
        if spec.softcap:
            scores_HTS = spec.softcap * torch.tanh(scores_HTS / spec.softcap)
        positions_T = torch.tensor(row.positions(), device=self.device)
        positions_S = torch.cat((torch.arange(row.context, device=self.device), positions_T))
        before = torch.ones(row.new, row.context, dtype=torch.bool)
        seen_TS = torch.cat((before, row.mask()), 1).to(self.device)
        if spec.window:
            seen_TS &= positions_S[None] > positions_T[:, None] - spec.window
        scores_HTS = scores_HTS.masked_fill(~seen_TS, -math.inf)
        if isinstance(inputs, HeadsInput) and inputs.sinks_H is not None:
            sink_HT1 = inputs.sinks_H.double()[:, None, None].expand(-1, row.new, 1)
            weights_HTS = torch.softmax(torch.cat((scores_HTS, sink_HT1), -1), -1)[..., :-1]
        else:
            weights_HTS = torch.softmax(scores_HTS, -1)
        return torch.einsum("hts,shv->thv", weights_HTS, v_SHV)


def _relative(found: Tensor, want: Tensor) -> float:
    error = ((found - want).abs().max() / want.abs().max().clamp(min=1e-6)).item()
    return math.inf if math.isnan(error) else error
