"""Figures and names as text: the same on a terminal, in a plot and on a page."""

import math
import unicodedata
from collections.abc import Callable, Sequence

from interlock.study.findings import Estimate
from interlock.study.spec import Metric

UNDEFINED = "-"
ROUNDING = 1e-9
"""What is smaller than this share of its interval is zero but for rounding."""
LATENCIES = {
    "ttft": "TTFT",
    "tpot": "TPOT",
    "itl": "ITL",
    "e2el": "end-to-end latency",
    "chunk_gap": "gap between chunks",
}
STATISTICS = {"mean": "mean", "median": "median", "p90": "P90", "p99": "P99", "std": "deviation of"}
LABELS = {
    "output_throughput": ("output throughput", "tokens/s"),
    "total_token_throughput": ("token throughput", "tokens/s"),
    "request_throughput": ("request throughput", "requests/s"),
    "request_goodput": ("goodput", "requests/s"),
    "prefix_cache_hit_rate": ("prefix cache hit rate", ""),
    "kv_usage.mean": ("mean KV occupancy", ""),
    "kv_usage.peak": ("peak KV occupancy", ""),
    "spec_decode_acceptance_rate": ("draft acceptance rate", ""),
    "spec_decode_acceptance_length": ("acceptance length", "tokens"),
    "emitted_per_pass": ("tokens a target pass", "tokens"),
    "duration": ("duration", "s"),
    "busy_s": ("time in steps", "s"),
    "total_output_tokens": ("output tokens", "tokens"),
    "preemptions": ("preemptions", ""),
    "steps": ("steps", ""),
    "mbu": ("memory bandwidth used", ""),
}
BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def printable(text: str) -> str:
    """The text in one line, without characters that move a cursor, end a string or turn a line.

    Line breaks and tabs become spaces; other control characters, halves of surrogate pairs and
    marks of direction are shown as escapes.
    """
    return "".join(map(_shown, text))


def _shown(character: str) -> str:
    if character in "\n\r\t":
        return " "
    if character in BIDI or unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp", "Cn"):
        return character.encode("unicode_escape").decode("ascii")
    return character


def shortened(text: str, most: int) -> str:
    """At most `most` characters: the middle of a longer text is left out."""
    if len(text) <= most:
        return text
    end = (most - 1) // 2
    return f"{text[: most - 1 - end]}…{text[len(text) - end :]}"


def label_of(key: str) -> str:
    """A metric's name for people, without its unit: `p99_ttft_ms` is "P99 TTFT"."""
    if key in LABELS:
        return LABELS[key][0]
    first, _, rest = key.partition("_")
    name = rest.removesuffix("_ms")
    if first in STATISTICS and name in LATENCIES and rest.endswith("_ms"):
        return f"{STATISTICS[first]} {LATENCIES[name]}"
    return printable(key)


def unit_of(key: str) -> str:
    """Its unit; empty for a share or a count."""
    if key in LABELS:
        return LABELS[key][1]
    for suffix, unit in (("_ms", "ms"), ("_s", "s"), ("_bytes", "bytes"), ("_tokens", "tokens")):
        if key.endswith(suffix):
            return unit
    return ""


def titled(key: str) -> str:
    """Name and unit: "P99 TTFT (ms)"."""
    unit = unit_of(key)
    name = label_of(key)
    return f"{name} ({unit})" if unit and unit not in name.split() else name


def is_defined(value: float | None) -> bool:
    """False for None and NaN: figures that a run does not have."""
    return value is not None and not math.isnan(value)


def figure(value: float | None) -> str:
    """Four significant digits, whole numbers with separators; "-" for what is not defined."""
    if value is None or math.isnan(value):
        return UNDEFINED
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    size = abs(value)
    if size >= 1000 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.4g}"


def interval(low: float | None, high: float | None) -> str:
    """Its two ends; empty where neither is defined, or where there is one value only."""
    if low == high or not (is_defined(low) or is_defined(high)):
        return ""
    return f"[{figure(low)}, {figure(high)}]"


def change(value: float | None, metric: Metric) -> str:
    """An effect: "-12.3 %" on the ratio scale, else a signed difference."""
    if value is None or math.isnan(value):
        return UNDEFINED
    if metric.scale != "ratio":
        return f"{value:+.3g}"
    return f"{_percent(value)} %"


def effect(estimate: Estimate, metric: Metric) -> str:
    """Value and interval: "-12.3 % [-14.0, -10.1]"; the value alone where it is exact; else "-"."""
    if not any(map(is_defined, (estimate.value, estimate.low, estimate.high))):
        return UNDEFINED
    if estimate.low == estimate.high:
        return change(estimate.value, metric)
    write: Callable[[float], str] = _percent if metric.scale == "ratio" else "{:+.3g}".format
    least = ROUNDING * max(map(abs, filter(is_defined, (estimate.low, estimate.high))), default=0.0)
    value, *ends = (
        0.0 if abs(one) < least else one for one in (estimate.value, estimate.low, estimate.high)
    )
    low, high = (write(end) if is_defined(end) else UNDEFINED for end in ends)
    return f"{change(value, metric)} [{low}, {high}]"


def _percent(value: float) -> str:
    """A relative change in per cent, signed; more digits for a small one."""
    percent = 100 * value
    if not math.isfinite(percent):
        return f"{percent:+}"
    return f"{percent:+,.0f}" if abs(percent) >= 1000 else f"{percent:+.{_decimals(percent)}f}"


def _decimals(percent: float) -> int:
    return 1 if round(abs(percent), 2) >= 10 else 2


def chance(p: float | None) -> str:
    """A p-value: three digits, "< 0.001" below that."""
    if p is None or math.isnan(p):
        return UNDEFINED
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def corrected(estimate: Estimate) -> str:
    """Its corrected p-value; "-" where nothing was estimated."""
    return chance(estimate.p_adjusted) if is_defined(estimate.value) else UNDEFINED


def counted(number: int, what: str) -> str:
    """ "1 cell", "2 cells"."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def listed(names: Sequence[str], most: int) -> str:
    """Names in a row, as many as `most`, and how many more there are."""
    shown = ", ".join(map(printable, names[:most]))
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown
