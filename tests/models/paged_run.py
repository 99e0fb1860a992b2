"""Runs sequences of a decoder through pages of a cache, in chunks and ragged batches."""

from collections.abc import Sequence

import numpy as np
import torch

from interlock.core.attention import AttentionBackend
from interlock.core.batch import Batch
from interlock.core.cache_spec import CacheLayout
from interlock.core.model import Decoder
from interlock.core.planes import Planes, make_attend
from interlock.core.request import RequestId
from interlock.plugins.executor.batches import attention_batch

CPU = torch.device("cpu")
Row = tuple[int, Sequence[int]]
"""A sequence's number and its next tokens."""


class PagedRun:
    """Sequences that share a pool; their pages lie scattered, in a different order per table."""

    def __init__(
        self,
        decoder: Decoder,
        backend: AttentionBackend,
        page_size: int,
        num_sequences: int,
        max_tokens: int,
    ) -> None:
        self.decoder = decoder
        self.backend = backend
        self.page_size = page_size
        self.lengths = [0] * num_sequences
        layout = CacheLayout.of(backend.cache_groups(decoder.description.attention, 0))
        pages = -(-max_tokens // page_size)
        total = num_sequences * pages
        draw = np.random.default_rng(0)
        self.tables = tuple(
            draw.permutation(total).astype(np.int32).reshape(num_sequences, pages)
            for _ in layout.lifetimes
        )
        dtype = decoder.embed(torch.tensor([0])).dtype
        self.planes = Planes(layout, [total] * len(layout.lifetimes), page_size, dtype, CPU)

    @torch.inference_mode()
    def step(self, rows: Sequence[Row]) -> list[torch.Tensor]:
        """The logits [T, vocabulary] of each row's new tokens."""
        batch = self._batch(rows)
        attend = make_attend(
            self.backend, self.backend.plan(attention_batch(batch, CPU)), self.planes
        )
        tokens, positions = torch.from_numpy(batch.tokens), torch.from_numpy(batch.positions)
        logits = self.decoder.logits(self.decoder.forward(tokens, positions, attend))
        for sequence, new in rows:
            self.lengths[sequence] += len(new)
        return list(logits.split([len(new) for _, new in rows]))

    def _batch(self, rows: Sequence[Row]) -> Batch:
        starts = [self.lengths[sequence] for sequence, _ in rows]
        counts = np.array([len(new) for _, new in rows], dtype=np.int64)
        positions = [np.arange(s, s + n) for s, n in zip(starts, counts, strict=True)]
        return Batch(
            request_ids=tuple(RequestId(sequence) for sequence, _ in rows),
            tokens=np.concatenate([np.array(new, dtype=np.int64) for _, new in rows]),
            positions=np.concatenate(positions),
            row_offsets=np.concatenate([[0], counts.cumsum()]),
            starts=np.array(starts, dtype=np.int64),
            logit_counts=counts,
            drafts={},
            slots=np.array([sequence for sequence, _ in rows], dtype=np.int64),
            tables=self.tables,
            page_size=self.page_size,
        )


def in_chunks(run: PagedRun, sequence: int, ids: Sequence[int], chunk: int) -> torch.Tensor:
    """The logits of a whole sequence, computed `chunk` tokens at a time."""
    pieces = [ids[at : at + chunk] for at in range(0, len(ids), chunk)]
    return torch.cat([run.step([(sequence, piece)])[0] for piece in pieces])


def ragged(run: PagedRun, sequences: Sequence[Sequence[int]], seed: int) -> list[torch.Tensor]:
    """Each sequence's logits; every step runs a random set of them by random numbers of tokens."""
    draw = np.random.default_rng(seed)
    out: list[list[torch.Tensor]] = [[] for _ in sequences]
    while any(run.lengths[i] < len(ids) for i, ids in enumerate(sequences)):
        rows: list[Row] = []
        for i in draw.permutation(len(sequences)).tolist():
            done = run.lengths[i]
            count = int(draw.choice([0, 1, 1, 2, 9, 40]))
            if new := sequences[i][done : done + count]:
                rows.append((i, new))
        if rows:
            for (i, _), logits in zip(rows, run.step(rows), strict=True):
                out[i].append(logits)
    return [torch.cat(pieces) for pieces in out]
