"""Which way a figure of a run's summary is better, and how two of them are compared."""

from interlock.study.spec import Metric

DEFAULTS = ("mean_ttft_ms", "mean_tpot_ms", "output_throughput")
REPLAY_DEFAULTS = ("hit_rate", "prefix_hit_rate")
"""Of a replay of block ids, which has no times."""
HIGHER = (
    "throughput", "goodput", "good_requests", "hit_rate", "acceptance", "accepted", "emitted",
    "mbu", "mfu", "completed",
)  # fmt: skip
SHARES = ("rate", "acceptance", "usage", "share", "mbu", "mfu")
COUNTS = ("preemptions", "failed", "aborted", "unfinished", "evicted")
"""Often zero: of these no ratio can be formed."""
TIMES = ("_ms", "_s", "duration")


def metric_of(key: str, better: str = "", scale: str = "") -> Metric:
    """The metric of a key of summary.json, with what its name says where nothing is given.

    Times are better lower and throughputs higher, both compared as ratios; shares and counts that
    may be zero are compared by their difference.
    """
    name = key.rsplit(".", 1)[-1] if key.rsplit(".", 1)[-1] not in ("mean", "peak") else key
    if not better:
        better = "higher" if any(word in key for word in HIGHER) else "lower"
    if not scale:
        timed = name.endswith(TIMES) or "throughput" in name or "goodput" in name
        words = name.replace(".", "_").split("_")
        differs = any(word in SHARES for word in words) or any(one in name for one in COUNTS)
        scale = "difference" if differs and not timed else "ratio"
    return Metric(key, better, scale)
