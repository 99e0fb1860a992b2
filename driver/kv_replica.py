"""What a reader of `kv_events.jsonl` knows: the cached pages of a run, rebuilt from its events.

Also the example of a consumer: it uses the file alone.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from interlock.core.errors import RunFolderError

EVENTS = "kv_events.jsonl"
SCHEMA, VERSION = "interlock.kv_events", 1
DEVICE = "device"
WRITTEN_BY = "a run with cache/events=jsonl writes it"


@dataclass
class Page:
    """A cached page, and what happened to it since it was stored."""

    key: str
    parent: str | None
    namespace: int
    row: tuple[int, ...]
    """Its tokens (in a replay of block ids its word), then those ahead that it depends on."""
    tokens: int
    stored_s: float
    last_used_s: float
    uses: int = 0
    """Requests that started on it."""


class Replica:
    """The pages of every medium, as of the batches that were applied.

    Raises:
        RunFolderError: a batch is missing, or says what cannot be.
    """

    def __init__(self, header: Mapping[str, Any]) -> None:
        if (header.get("schema"), header.get("version")) != (SCHEMA, VERSION):
            raise RunFolderError(
                f"these are no {SCHEMA} of version {VERSION}, which this Interlock reads"
            )
        self.header = dict(header)
        self.page_size: int = header["page_size"]
        self.lookback: int = header["lookback_tokens"]
        self.pages: dict[str, Page] = {}
        """Of the device: what the prefix index holds."""
        self.tiers: dict[str, set[str]] = {m: set() for m in header["media"] if m != DEVICE}
        self.namespaces: dict[int, dict[str, Any]] = {}
        self.seq = 0

    def apply(self, batch: Mapping[str, Any]) -> None:
        """Take a batch in."""
        if batch["seq"] != self.seq:
            raise RunFolderError(
                f"events {self.seq} to {batch['seq'] - 1} are missing before step {batch['step']}"
            )
        for event in batch["events"]:
            getattr(self, f"_{event['event']}")(event, batch["time_s"])
        self.seq += len(batch["events"])

    def prefix(self, key: str) -> list[Page]:
        """The pages from the beginning of a prompt up to the one of this key."""
        found: list[Page] = []
        after: str | None = key
        while after is not None:
            found.append(self.pages[after])
            after = found[-1].parent
        return found[::-1]

    # Events -------------------------------------------------------------------------------------

    def _namespace(self, event: Mapping[str, Any], _time_s: float) -> None:
        self.namespaces[event["namespace"]] = dict(event)

    def _stored(self, event: Mapping[str, Any], time_s: float) -> None:
        self._enter(event, time_s)

    def _moved(self, event: Mapping[str, Any], time_s: float) -> None:
        if event["to"] == DEVICE:
            self._enter(event, time_s)
        else:
            self.tiers[event["to"]].update(event["keys"])
        if event["from"] != DEVICE:
            self.tiers[event["from"]].update(event["keys"])

    def _enter(self, event: Mapping[str, Any], time_s: float) -> None:
        parent, rows = event["parent"], self._rows(event)
        if parent is not None and parent not in self.pages:
            raise RunFolderError(f"page {event['keys'][0]} follows {parent}, which is not stored")
        for key, row in zip(event["keys"], rows, strict=True):
            if key in self.pages:
                raise RunFolderError(f"page {key} is stored twice")
            self.pages[key] = Page(
                key, parent, event["namespace"], row, self.page_size, time_s, time_s
            )
            parent = key

    def _rows(self, event: Mapping[str, Any]) -> list[tuple[int, ...]]:
        if event["words"] is not None:
            return [(word,) for word in event["words"]]
        tokens, size = [*event["token_ids"], *event["ahead_token_ids"]], self.page_size
        width = size + self.lookback
        return [tuple(tokens[i * size : i * size + width]) for i in range(len(event["keys"]))]

    def _used(self, event: Mapping[str, Any], time_s: float) -> None:
        for page in self.prefix(event["key"]):
            page.uses += 1
            page.last_used_s = time_s

    def _removed(self, event: Mapping[str, Any], _time_s: float) -> None:
        keys = event["keys"]
        if event["medium"] != DEVICE:
            self.tiers[event["medium"]] -= set(keys)
            return
        for key in [*self.pages] if keys is None else keys:
            if self.pages.pop(key, None) is None:
                raise RunFolderError(f"page {key} is removed and was not stored")


def read_events(
    path: Path, tell: Callable[[str], None] = lambda _: None
) -> Iterator[dict[str, Any]]:
    """The header, then every batch. RunFolderError names the file and the line that is broken.

    A last line without its end is left out, which `tell` is told: the run that wrote it was killed.
    Without a whole line there is nothing to read, which is an error.
    """
    try:
        number = 0
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith("\n"):
                    if number == 1:
                        raise RunFolderError(f"{path}, line 1: cut off; no event is left")
                    tell(f"{path}, line {number}: cut off; what follows line {number - 1} is lost")
                    return
                try:
                    yield json.loads(line)
                except ValueError as error:
                    raise RunFolderError(f"{path}, line {number}: corrupt: {error}") from error
            if not number:
                raise RunFolderError(f"{path}: it is empty; {WRITTEN_BY}")
    except (OSError, UnicodeDecodeError) as error:
        raise RunFolderError(f"{path}: cannot be read ({error}); {WRITTEN_BY}") from error
