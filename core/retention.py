"""How long a request asks for its cached pages to stay, by ranges of tokens.

As TensorRT-LLM's KvCacheRetentionConfig: priorities from 0 to 100 where 35 is what nobody asked
about, durations that count from the last use, after which a page is one of priority 35 again. The
eviction policy may follow it (`cache/eviction=priority` does).
"""

from dataclasses import dataclass
from typing import NamedTuple

DEFAULT_PRIORITY = 35
NO_END = float("inf")
RETAIN_S = "retain_s"
"""The place in `Run.state` of the seconds for which the run's priority holds after its last use."""


class Said(NamedTuple):
    """What a request says of one page."""

    priority: int
    duration_s: float


@dataclass(frozen=True)
class RetainedRange:
    """Prompt tokens start .. end - 1 (None: to the end); `duration_s` None: for ever."""

    start: int = 0
    end: int | None = None
    priority: int = DEFAULT_PRIORITY
    duration_s: float | None = None


@dataclass(frozen=True)
class Retention:
    """What a request asks for: ranges of its prompt in rising order, and its output."""

    ranges: tuple[RetainedRange, ...] = ()
    output_priority: int = DEFAULT_PRIORITY
    output_duration_s: float | None = None

    def of(self, token: int, num_prompt: int) -> Said | None:
        """Of the page whose first token is this one; None where nothing is said."""
        if token >= num_prompt:
            return _said(self.output_priority, self.output_duration_s)
        for one in self.ranges:
            if one.start <= token and (one.end is None or token < one.end):
                return _said(one.priority, one.duration_s)
        return None


def _said(priority: int, duration_s: float | None) -> Said:
    return Said(priority, NO_END if duration_s is None else duration_s)
