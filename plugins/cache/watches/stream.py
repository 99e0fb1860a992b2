"""The stream of events: follows the index and the copies to tiers, and tells step by step."""

import hashlib
import secrets
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from interlock.core.batch import PageId, Pages, StepPlan, StepResult
from interlock.core.cache_watch import CacheWatch
from interlock.core.engine import Engine
from interlock.core.prefix_index import Inserted, PrefixKey, Units
from interlock.core.transfers import Kind, Transfer
from interlock.plugins.cache.watches.messages import (
    DEVICE,
    SCHEMA,
    VERSION,
    Batch,
    Content,
    Event,
    Moved,
    Removed,
    Stored,
    Used,
)
from interlock.plugins.cache.watches.namespaces import Namespaces

KEY_BYTES = 16
Consumer = Callable[[Batch], None]


class KVEvents(CacheWatch):
    """Tells its consumers, after each step, what entered, moved and left, in order.

    Whoever applies all events from the first on has the keys and tokens of exactly the pages that
    the index holds, after every step. Of a tier it has what copies to and from it showed: stores
    evict by themselves.
    """

    def __init__(self, secret: bytes | None = None) -> None:
        """`secret` goes into the keys of tenants' pages: without it nobody can confirm a guess."""
        self._secret = secrets.token_bytes(16) if secret is None else secret
        self._consumers: list[Consumer] = []
        self._events: list[Event] = []
        self._keys: list[bytes] = []
        self._on_device: list[bool] = []
        self._in_tiers: dict[bytes, bytes] = {}
        """Key in tiers -> key in events."""
        self._arriving: list[str] = []
        """Which medium each page comes from that is indexed next."""
        self._seq = self._batches = 0
        self._last_pools: Sequence[Sequence[int]] = ()
        self._closed = False

    # Consumers ----------------------------------------------------------------------------------

    def subscribe(self, consumer: Consumer) -> None:
        """Call this with every batch from now on; from before the first request to miss none."""
        self._consumers.append(consumer)

    def header(self) -> dict[str, Any]:
        """What a consumer has to know before the first batch."""
        return {
            "schema": SCHEMA,
            "version": VERSION,
            "model": self._engine.resolution.model.name,
            "page_size": self._page_size,
            "lookback_tokens": self._lookback,
            "media": [DEVICE, *self._media],
            "pool_pages": [pool.num_pages for pool in self._cache.pools],
        }

    # CacheWatch ---------------------------------------------------------------------------------

    def attach(self, engine: Engine) -> None:
        """See CacheWatch."""
        core, chosen = engine.core, engine.resolution.chosen
        self._engine, self._cache = engine, core.cache
        self._page_size, self._lookback = core.cache.page_size, core.drafts.lookback_tokens
        stores = core.loads.stores if core.loads else ()
        seams = ("cache/tiers", "cache/tiers/below")
        names = [chosen[s].component.name for s in seams if chosen[s].component.name != "none"]
        self._stores = stores
        twice = len(set(names)) < len(names)
        self._media = [f"{name}_{i}" for i, name in enumerate(names)] if twice else names
        self._keys = [b""] * core.cache.pools[0].num_pages
        self._on_device = [False] * len(self._keys)
        self._namespaces = Namespaces(engine, self._secret)
        core.cache.runs.watches.append(self)
        engine.watch(self._stepped)

    def stored(self, key: PrefixKey, after: PageId | None, inserted: Inserted) -> None:
        """See CacheWatch."""
        media, self._arriving = self._arriving, []
        known = len(inserted.pages) - inserted.kept
        if not inserted.kept:
            return
        parent = after if not known else PageId(int(inserted.pages[known - 1]))
        space = self._namespaces.of(key.salt, self._events.append)
        before = space.root if parent is None else self._keys[parent]
        keys, rows = _chained(before, key.units[known:]), key.units[known:]
        for page, one in zip(inserted.pages[known:].tolist(), keys, strict=True):
            self._keys[page], self._on_device[page] = one, True
        source = "computed" if self._engine.core.num_added else "snapshot"
        media = media[known:] or [source] * len(keys)
        first = 0
        while first < len(keys):  # pages that come from one medium are one event
            end = next((i for i in range(first, len(keys)) if media[i] != media[first]), len(keys))
            content = self._content(
                space.number, space.hashed, None if parent is None and not first else before,
                rows[first:end],
            )  # fmt: skip
            self._events.append(self._entered(_hex(keys[first:end]), media[first], content))
            before, first = keys[end - 1], end

    def _entered(self, keys: list[str], medium: str, content: Content) -> Event:
        if medium in self._media:
            return Moved(keys, medium, DEVICE, stays=True, content=content)
        return Stored(keys, DEVICE, medium, content)

    def _content(
        self, namespace: int, hashed: bool, before: bytes | None, rows: Units
    ) -> Content:  # fmt: skip
        size, parent = self._page_size, None if before is None else before.hex()
        if hashed or rows.shape[1] != size + self._lookback:
            return Content(namespace, parent, None, (), rows[:, 0].tolist())
        ahead = rows[-1, size:].tolist()
        return Content(namespace, parent, rows[:, :size].reshape(-1).tolist(), ahead, None)

    def used(self, pages: Pages) -> None:
        """See CacheWatch."""
        self._events.append(Used(self._keys[pages[-1]].hex(), len(pages)))

    def removed(self, pages: Pages, expired: bool) -> None:
        """See CacheWatch."""
        listed = pages.tolist()
        for page in listed:
            self._on_device[page] = False
        keys = _hex(self._keys[page] for page in listed)
        self._events.append(Removed(keys, DEVICE, "expired" if expired else "capacity"))

    def copied(self, transfer: Transfer) -> None:
        """See CacheWatch."""
        if transfer.kind is Kind.SAVE:
            self._saved(transfer)
        elif transfer.kind is Kind.LOAD:
            done = len(transfer.done)
            self._arriving = [self._media[tier] for tier in transfer.where[:done]]
            lost = self._in_tiers.get(transfer.keys[done]) if done < len(transfer.keys) else None
            if lost is not None:
                medium = self._media[transfer.where[done]]
                self._events.append(Removed([lost.hex()], medium, "lost"))

    def _saved(self, transfer: Transfer) -> None:
        """A page that is copied keeps its number until the copy ends, indexed or not."""
        pages = [
            (page, key)
            for page, key, (stored,) in zip(
                transfer.pages[0].tolist(), transfer.keys, transfer.done, strict=True
            )
            if stored
        ]
        taken = {moved.tier: moved.pages for moved in transfer.moved}
        for number, medium in enumerate(self._media):
            there = [True] * len(pages)
            if self._stores[number].answers_at_once:
                there = list(self._stores[number].holds([key for _, key in pages]))
            elif taken.get(number, 0) < len(pages):
                there = [False] * len(pages)
            for stays in (True, False):
                moved = [
                    self._keys[page]
                    for (page, _), here in zip(pages, there, strict=True)
                    if here and self._on_device[page] is stays
                ]
                if moved:
                    self._events.append(Moved(_hex(moved), DEVICE, medium, stays))
        self._in_tiers.update((key, self._keys[page]) for page, key in pages)

    def facts(self) -> dict[str, Any]:
        """See CacheWatch."""
        return {"events": self._seq + len(self._events), "batches": self._batches}

    def close(self) -> None:
        """See CacheWatch: everything is gone from the device now."""
        if not self._closed:
            self._closed = True
            self._tell(None)
            self._events.append(Removed(None, DEVICE, "cleared"))
            self._tell(None)

    # Steps --------------------------------------------------------------------------------------

    def _stepped(self, plan: StepPlan, _result: StepResult) -> None:
        self._tell(plan.step_id)

    def _tell(self, step: int | None) -> None:
        """Give out a batch, unless nothing changed."""
        pools = [
            [pool.allocator.free_pages(), pool.cached, pool.held, pool.in_transit]
            for pool in self._cache.pools
        ]
        if not self._events and pools == self._last_pools:
            return
        events, self._events, self._last_pools = self._events, [], pools
        tiers = {m: s.used_bytes() for m, s in zip(self._media, self._stores, strict=True)}
        batch = Batch(self._seq, step, self._cache.now_s, pools, tiers, events)
        self._seq += len(events)
        self._batches += 1
        for consumer in self._consumers:
            consumer(batch)


def _chained(before: bytes, rows: Units) -> list[bytes]:
    keys = []
    for row in rows:
        data = before + row.astype("<i8").tobytes()
        before = hashlib.blake2b(data, digest_size=KEY_BYTES).digest()
        keys.append(before)
    return keys


def _hex(keys: Iterable[bytes]) -> list[str]:
    return [key.hex() for key in keys]
