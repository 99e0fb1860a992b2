"""The target's law at each row of logits, and the token drawn from it.

The order of a law's parts is written at TargetRows (core/verifier.py). Tokens are ranked by their
logit, and between equal logits the lower id is the more likely one: exactly top_k tokens stay, and
top_p keeps the shortest leading part of the ranking whose mass (within what top_k left) reaches p.
min_p keeps what has at least that share of the most likely token's probability. Temperature 0 is
argmax, lowest id on ties. Log-probabilities are those of the raw logits.

Legend: N rows, V vocabulary, K ranked tokens.
"""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from interlock.core.logit_edits import NodeEdits
from interlock.core.request import SamplingParams, TokenLogprobs
from interlock.core.streams import Purpose, Uniforms, Words, uniforms
from interlock.core.verifier import TargetRows
from interlock.plugins.executor.edited_logits import edited_rows

_LARGEST_BLOCK, _SMALLEST_BLOCK = 512, 16
"""Entries of a block whose largest is looked for first."""
_LEADING = 1024
"""Most likely tokens that usually hold the mass that top_p asks for."""


class SampledRows(TargetRows):
    """The laws of a step's rows of logits [N, V], drawn from by inverse transform.

    Row i follows params[i]; its token will stand at positions[i] of a request with seed seeds[i]
    and is drawn with the uniform number of that key (core/streams.py): the first id whose
    cumulative probability exceeds it. Arithmetic is in fp32, or the logits' dtype if that is
    wider; sums run in fp64. A bad row (see `bad_rows`) gives token 0 and disturbs no other row.
    Nothing is computed before it is asked for; the logits must not change meanwhile.
    edits[i] change the logits of the rows from i on (core/logit_edits.py). `purpose` is the stream
    that `sample` reads.
    """

    def __init__(
        self,
        logits_NV: Tensor,
        params: Sequence[SamplingParams],
        seeds: Sequence[int] | Words,
        positions: Sequence[int] | Words,
        edits: Mapping[int, NodeEdits] | None = None,
        purpose: Purpose = Purpose.TARGET,
    ) -> None:
        assert len(params) == len(seeds) == len(positions) == len(logits_NV)
        self._logits_NV = logits_NV
        self._params = params
        self._seeds = seeds
        self._positions = positions
        self._edits = edits or {}
        self._purpose = purpose
        self._drawn_rows = [row for row, p in enumerate(params) if p.temperature > 0]

    def bad_rows(self) -> dict[int, str]:
        """Rows that are no law, with the reason: a NaN, +inf, or nothing that could come."""
        return dict(self._faults)

    def sample(self) -> list[int]:
        """See TargetRows. Rows of temperature 0 cost one argmax."""
        tokens_N = self._peak.indices
        if self._drawn_rows:
            tokens_N = tokens_N.clone()
            tokens_N[self._drawn_rows] = self._draw()
        tokens: list[int] = tokens_N.tolist()
        for row in self._faults:
            tokens[row] = 0
        return tokens

    def uniforms(self, purpose: Purpose, sample: int = 0) -> Uniforms:
        """See TargetRows."""
        return uniforms(self._seeds, self._positions, purpose, sample)

    def laws(self) -> Tensor:
        """See TargetRows: [N, V] in fp32 or the logits' wider dtype. A bad row is one-hot at 0."""
        laws_NV = torch.zeros(
            self._logits_NV.shape, dtype=self._dtype, device=self._logits_NV.device
        )
        laws_NV.scatter_(1, self._peak.indices[:, None], 1)
        if self._drawn_rows:
            total_N1 = self._cumulated[:, -1:].to(self._dtype)
            laws_NV[self._drawn_rows] = self._masses / total_N1
        bad = list(self._faults)
        laws_NV[bad] = 0
        laws_NV[bad, 0] = 1
        return laws_NV

    def token_logprobs(
        self, rows: Sequence[int], tokens: Sequence[int], top_n: int
    ) -> tuple[TokenLogprobs, ...]:
        """Log-softmax of the raw logits of `rows` at `tokens`, and the `top_n` most likely tokens.

        Neither temperature nor filters apply. Rows must not be bad.
        """
        logits_NV = self._logits_NV[list(rows)].to(self._dtype)
        logprobs_NV = logits_NV.log_softmax(-1)
        chosen = logprobs_NV[range(len(tokens)), list(tokens)].tolist()
        top_n = min(top_n, logits_NV.shape[-1])
        if top_n == 0:
            return tuple(TokenLogprobs(value, ()) for value in chosen)
        ids_NK = _ranking(logits_NV, top_n)
        tops = zip(ids_NK.tolist(), logprobs_NV.gather(1, ids_NK).tolist(), strict=True)
        return tuple(
            TokenLogprobs(value, tuple(zip(ids, values, strict=True)))
            for value, (ids, values) in zip(chosen, tops, strict=True)
        )

    @property
    def _dtype(self) -> torch.dtype:
        return torch.promote_types(self._logits_NV.dtype, torch.float32)

    @cached_property
    def _edited(self) -> "_Edited":
        """The rows whose logits were edited."""
        rows, logits_MV = edited_rows(self._logits_NV, self._params, self._edits)
        return _Edited(rows, logits_MV, _peak_of(logits_MV))

    @cached_property
    def _peak(self) -> "_Peak":
        """Each row's largest logit (NaN if there is one) and the lowest id that has it."""
        peak = _peak_of(self._logits_NV)
        if self._edits:
            peak.indices[self._edited.rows] = self._edited.peak.indices
        return peak

    @cached_property
    def _faults(self) -> dict[int, str]:
        peaks = enumerate(self._peak.values.tolist())
        faults = {row: _fault(peak) for row, peak in peaks if not math.isfinite(peak)}
        if self._edits:
            edited = zip(self._edited.rows, self._edited.peak.values.tolist(), strict=True)
            faults = {row: NOTHING_LEFT for row, peak in edited if peak == -math.inf} | faults
        return faults

    @cached_property
    def _masses(self) -> Tensor:
        """What each drawn row gives each token, 1 for the most likely one, 0 where filtered out."""
        rows = self._drawn_rows
        everything = len(rows) == len(self._params)
        logits_NV = self._logits_NV if everything else self._logits_NV[rows]
        params = self._params if everything else [self._params[row] for row in rows]
        place = {row: n for n, row in enumerate(rows)} if self._edits else {}
        edited = enumerate(self._edited.rows) if self._edits else ()
        if pairs := [(place[row], m) for m, row in edited if row in place]:
            edited_MV = self._edited.logits_MV[[m for _, m in pairs]]
            if len(pairs) == len(rows):
                logits_NV = edited_MV
            else:
                logits_NV = logits_NV.to(self._dtype, copy=True)
                logits_NV[[n for n, _ in pairs]] = edited_MV
        if self._faults:
            bad = [row in self._faults for row in rows]
            is_bad_N = torch.tensor(bad, device=logits_NV.device)
            logits_NV = logits_NV.masked_fill(is_bad_N[:, None], 0)
        return _mass(logits_NV.to(self._dtype), params)

    @cached_property
    def _cumulated(self) -> Tensor:
        """Running sums of `_masses` by id, in fp64; the last one is the row's total."""
        return self._masses.to(torch.float64, copy=True).cumsum_(-1)

    def _draw(self) -> Tensor:
        """The token of each drawn row."""
        cumulated_NV = self._cumulated
        total_N1 = cumulated_NV[:, -1:].contiguous()
        numbers_N = uniforms(
            [self._seeds[row] for row in self._drawn_rows],
            [self._positions[row] for row in self._drawn_rows],
            self._purpose,
        )
        wanted_N1 = torch.from_numpy(numbers_N).to(cumulated_NV.device)[:, None] * total_N1
        tokens_N1 = torch.searchsorted(cumulated_NV, wanted_N1, right=True)
        last_N1 = torch.searchsorted(cumulated_NV, total_N1)  # the last id that has any mass
        return torch.minimum(tokens_N1, last_N1).squeeze(1)


class _Peak(NamedTuple):
    values: Tensor
    indices: Tensor


class _Edited(NamedTuple):
    rows: list[int]
    logits_MV: Tensor
    peak: _Peak


def _peak_of(logits_NV: Tensor) -> _Peak:
    indices_N = first_largest(logits_NV)
    return _Peak(logits_NV.gather(1, indices_N[:, None]).squeeze(1), indices_N)


def first_largest(x_NV: Tensor) -> Tensor:
    """`x_NV.argmax(-1)`: of equal entries the first, and the first NaN before anything else.

    torch's argmax on a CPU walks entry by entry where amax takes a vector at a time (13.8 against
    0.36 ms for 32 rows of 49,152 in bf16), so the block is found first, then the place in it.
    """
    block = math.gcd(x_NV.shape[-1], _LARGEST_BLOCK)
    if not x_NV.is_cpu or block < _SMALLEST_BLOCK or not len(x_NV):
        return x_NV.argmax(-1)
    x_NBS = x_NV.reshape(len(x_NV), -1, block)
    best_N = x_NBS.amax(-1).argmax(-1)
    x_NS = x_NBS[torch.arange(len(x_NV)), best_N]
    return best_N * block + x_NS.argmax(-1)


NOTHING_LEFT = (
    "no token could come: allowed_token_ids, banned_token_ids, min_tokens and the grammar forbid "
    "every one that the model gives a finite logit"
)


def _fault(peak: float) -> str:
    """Why a row with this largest logit is no law."""
    if math.isnan(peak):
        why = "a logit is NaN"
    else:
        why = "a logit is +inf" if peak > 0 else "all logits are -inf"
    return f"the model's logits are unusable: {why}"


def _mass(logits_NV: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Unnormalised laws [N, V] of rows whose temperature is above 0."""
    device, vocab_size = logits_NV.device, logits_NV.shape[-1]
    ks = [min(p.top_k, vocab_size) or vocab_size for p in params]
    if min(ks) < vocab_size:
        keep_NV = _top_k_mask(logits_NV, torch.tensor(ks, device=device))
        logits_NV = logits_NV.masked_fill(~keep_NV, -torch.inf)
    # The largest logit is subtracted first: the quotient by a tiny temperature cannot overflow up.
    mass_NV = logits_NV - logits_NV.amax(-1, keepdim=True)
    limits = torch.finfo(logits_NV.dtype)  # beyond them -inf / inf would be NaN
    temperatures = [min(max(p.temperature, limits.tiny), limits.max) for p in params]
    scale_N1 = torch.tensor(temperatures, dtype=logits_NV.dtype, device=device)[:, None]
    mass_NV.div_(scale_N1).exp_()  # in place: fresh memory costs more than the arithmetic
    cut = [row for row, p in enumerate(params) if p.top_p < 1]
    if cut:
        shares = [params[row].top_p for row in cut]
        most = max(ks[row] for row in cut)
        mass_NV[cut] = _top_p_mass(mass_NV[cut], logits_NV[cut], shares, most)
    if any(p.min_p > 0 for p in params):
        floors = torch.tensor([p.min_p for p in params], dtype=torch.float64, device=device)
        mass_NV.masked_fill_(mass_NV < floors[:, None], 0)
    return mass_NV


def _top_k_mask(logits_NV: Tensor, k_N: Tensor) -> Tensor:
    """True for exactly k_N[i] tokens of row i, 1 <= k_N[i] <= V: the first of its ranking."""
    best_NK = logits_NV.topk(int(k_N.max()), dim=-1).values
    last_N1 = best_NK.gather(1, k_N[:, None] - 1)
    keep_NV = logits_NV >= last_N1
    if bool((keep_NV.sum(-1) == k_N).all()):
        return keep_NV
    above_NV = logits_NV > last_N1
    tied_NV = keep_NV & ~above_NV
    room_N1 = k_N[:, None] - above_NV.sum(-1, keepdim=True)
    return above_NV | (tied_NV & (tied_NV.cumsum(-1) <= room_N1))


def _ranking(logits_NV: Tensor, most: int) -> Tensor:
    """The first `most` ids of each row, by falling logit, then by rising id. [N, most]."""
    if most == logits_NV.shape[-1]:
        return logits_NV.sort(dim=-1, descending=True, stable=True).indices
    k_N = torch.full((len(logits_NV),), most, device=logits_NV.device)
    kept_NV = _top_k_mask(logits_NV, k_N)
    ids_NK = kept_NV.nonzero()[:, 1].view(-1, most)
    order_NK = logits_NV.gather(1, ids_NK).sort(dim=-1, descending=True, stable=True).indices
    return ids_NK.gather(1, order_NK)


def _top_p_mass(mass_NV: Tensor, logits_NV: Tensor, shares: Sequence[float], most: int) -> Tensor:
    """`mass_NV` of each row's leading tokens that together reach its share; the rest is 0.

    Only the first `most` tokens of a row's ranking have mass. Sorting is what costs, so the
    leading _LEADING tokens are tried first.
    """
    goal_N1 = mass_NV.to(torch.float64, copy=True).cumsum_(-1)[:, -1:]
    goal_N1 *= torch.tensor(shares, dtype=torch.float64, device=mass_NV.device)[:, None]
    for width in (min(_LEADING, most), most):
        ranking_NK = _ranking(logits_NV, width)
        ranked_NK = mass_NV.gather(1, ranking_NK)
        reached_NK = ranked_NK.to(torch.float64).cumsum(-1)
        if bool((reached_NK[:, -1:] >= goal_N1).all()):
            break
    before_NK = reached_NK.roll(1, -1)
    before_NK[:, 0] = -1  # the most likely token always stays
    kept_NK = ranked_NK.masked_fill(before_NK >= goal_N1, 0)
    return torch.zeros_like(mass_NV).scatter(1, ranking_NK, kept_NK)
