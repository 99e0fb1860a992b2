"""Events of the cache: what consumers of a stream are told, version 1 of the schema.

Every key is 32 hex digits: a hash of all rows from the beginning of the prompt to the end of the
page, so equal keys are equal content. `docs/cache.md` has the schema and how it maps to others'.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

SCHEMA, VERSION = "interlock.kv_events", 1
DEVICE = "device"
"""The medium whose content is the prefix index; others are tiers by their component's name."""


@dataclass(frozen=True)
class Event:
    """One change. `line` is what a file has of it."""

    kind: ClassVar[str]

    def line(self) -> dict[str, Any]:
        """Plain values, the same names as the fields."""
        return {"event": self.kind, **asdict(self)}


@dataclass(frozen=True)
class Namespace(Event):
    """Comes before the first page of a namespace: prompts of others never match its pages."""

    kind = "namespace"
    namespace: int
    """Numbered as they come."""
    adapter: str | None
    """The LoRA adapter of its requests, null for none."""
    tenant: bool
    """True: of a tenant of its own, whose name is nowhere in the stream."""


@dataclass(frozen=True)
class Content:
    """What pages hold that follow each other in one prompt."""

    namespace: int
    parent: str | None
    """Key of the page before the first one; null at the beginning of a prompt."""
    token_ids: Sequence[int] | None
    """Of all the pages, one after the other; null where prompts are ids of blocks."""
    ahead_token_ids: Sequence[int]
    """Tokens after the last page that its rows depend on (a drafter looks back from them)."""
    words: Sequence[int] | None
    """Of prompts of block ids: a word a page that stands for its tokens."""


@dataclass(frozen=True)
class Stored(Event):
    """Pages entered a medium and can be found."""

    kind = "stored"
    keys: Sequence[str]
    medium: str
    source: str
    """"computed", or "snapshot" for what the cache began with."""
    content: Content

    def line(self) -> dict[str, Any]:
        """See Event; the content's fields beside the others."""
        line = super().line()
        content = line.pop("content")
        return {**line, **content}


@dataclass(frozen=True)
class Moved(Event):
    """Pages were copied from one medium to another, which has them now."""

    kind = "moved"
    keys: Sequence[str]
    source: str
    target: str
    stays: bool
    """The source has them still."""
    content: Content | None = None
    """Of pages that came to the device."""

    def line(self) -> dict[str, Any]:
        """See Event; `from` and `to` are the media."""
        line = super().line()
        content = line.pop("content") or {}
        line["from"], line["to"] = line.pop("source"), line.pop("target")
        return {**line, **content}


@dataclass(frozen=True)
class Removed(Event):
    """Pages left a medium."""

    kind = "removed"
    keys: Sequence[str] | None
    """Null: everything."""
    medium: str
    reason: str
    """"capacity": their room was needed; "expired": the policy's time was over; "lost": asked for
    and not there; "cleared": the engine was closed."""


@dataclass(frozen=True)
class Used(Event):
    """A request starts on cached pages: the one of `key` and all before it."""

    kind = "used"
    key: str
    pages: int


@dataclass(frozen=True)
class Batch:
    """What changed up to the end of a step, and the pool after it."""

    seq: int
    """Number of its first event: the next batch has this plus `len(events)`."""
    step: int | None
    """The step that was just committed; None after the last one."""
    time_s: float
    pools: Sequence[Sequence[int]]
    """Of each page table: pages free, cached, held by requests, and in transit to or from tiers."""
    tiers: Mapping[str, int]
    """Payload bytes in each tier."""
    events: Sequence[Event]

    def line(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "seq": self.seq,
            "step": self.step,
            "time_s": self.time_s,
            "pools": self.pools,
            "tiers": self.tiers,
            "events": [event.line() for event in self.events],
        }
