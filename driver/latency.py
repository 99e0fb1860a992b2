"""The latencies of one finished request, from the times at which its tokens came out.

Definitions, all from the *scheduled* arrival (a late client cannot hide a queue):
  ttft   first token - arrival
  tpot   (last token - first token) / (n - 1); undefined for one token
  itl    one value per later token: a chunk of k tokens that comes `gap` after the one before it
         counts as k gaps of gap / k, and the extra tokens of the first chunk as gaps of 0, so that
         the mean of a request's values is its tpot
  chunk_gap  one value per later chunk: what a reader of the stream sees
  e2el   last token - arrival (not the moment when the stream is closed)
Chunks without tokens (role frames, usage frames) are no chunks.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interlock.core.request import RequestRecord

Floats = NDArray[np.float64]
PERCENTILES = (90, 99)


@dataclass(frozen=True)
class Latencies:
    """Seconds; None where the definition does not apply."""

    ttft_s: float | None
    tpot_s: float | None
    e2el_s: float | None
    itl_s: Floats
    chunk_gap_s: Floats


def latencies(record: RequestRecord) -> Latencies:
    """The latencies of a record, whatever its status. O(tokens)."""
    times = np.asarray(record.chunk_times_s, dtype=np.float64)
    sizes = np.asarray(record.chunk_sizes, dtype=np.int64)
    times, sizes = times[sizes > 0], sizes[sizes > 0]
    if not len(times):
        ended = None if record.finished_s is None else record.finished_s - record.arrival_s
        return Latencies(None, None, ended, np.zeros(0), np.zeros(0))
    gaps = np.diff(times)
    later = np.repeat(gaps / sizes[1:], sizes[1:])
    tokens = int(sizes.sum())
    return Latencies(
        ttft_s=float(times[0]) - record.arrival_s,
        tpot_s=float(times[-1] - times[0]) / (tokens - 1) if tokens > 1 else None,
        e2el_s=float(times[-1]) - record.arrival_s,
        itl_s=np.concatenate([np.zeros(sizes[0] - 1), later]),
        chunk_gap_s=gaps,
    )


def pooled(arrays: Iterable[Floats]) -> Floats:
    """All values in one array."""
    return np.concatenate([np.zeros(0), *arrays])


def statistics_ms(name: str, values_s: Sequence[float] | Floats) -> dict[str, Any]:
    """{mean,median,std,p90,p99}_<name>_ms: linear percentiles; None for an empty set."""
    values = np.asarray(values_s, dtype=np.float64) * 1e3
    keys = [f"{stat}_{name}_ms" for stat in ("mean", "median", "std")]
    keys += [f"p{percent}_{name}_ms" for percent in PERCENTILES]
    if not len(values):
        return dict.fromkeys(keys)
    percentiles = np.percentile(values, PERCENTILES)
    stats = [values.mean(), np.median(values), values.std(), *percentiles]
    return dict(zip(keys, map(float, stats), strict=True))
