"""A random history of requests on a cache of one page table, each step compared with brute force.

No engine: requests match, open, grow, write, index, fork, roll back and close on a real KVCache
with its pool, index, allocator and eviction policy. Rows are what they depend on (salt and tokens),
so that a page with two owners, or one whose content is another prompt's, is seen when it is read.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from interlock.core.batch import Pages
from interlock.core.kv_cache import Holding, KVCache, Match
from interlock.core.request import Request, RequestId
from interlock.core.retention import RetainedRange, Retention
from interlock.core.testing.cache_model import CacheModel
from interlock.core.testing.deep_bytes import deep_bytes
from interlock.core.testing.integrity import check_cache, check_written
from interlock.core.token_sequence import TokenSequence

LONGEST, LONGEST_PROMPT, STEP_TOKENS, REQUESTS = 32, 26, 12, 5
TRUNKS = ((5,) * 24, (5, 6) * 12, (7, 5, 5, 6) * 6)
"""Prompts begin with a part of one of these, so that they share much."""
PAGE_BYTES, RUN_BYTES, FIXED_BYTES = 256, 2048, 32768
"""What index and policy may hold, beyond what they held empty: for a page that is kept (its row,
key and table entry, each in a buffer up to half empty) or remembered, for a run, and in all
(a heap keeps up to 64 entries of runs that left, half a kilobyte each)."""


@dataclass(eq=False)
class Reader:
    """A request: what it was given, and the pages that it must have."""

    holding: Holding
    sequence: TokenSequence
    salt: bytes
    computed: int
    pages: list[int]
    most: int
    indexed: int = 0

    @property
    def tokens(self) -> tuple[int, ...]:
        """All its tokens so far."""
        return tuple(self.sequence.slice(0, self.sequence.length).tolist())


class CacheMachine:
    """One cache and its model; `step` does something random, `finish` lets go of everything.

    `ttl_s`: after every look at the time nothing that may go was unused for so long; time goes on
    by a second a step. `by_last_use`: what is evicted was unused for longest, page by page.
    """

    def __init__(
        self, cache: KVCache, lookback: int, seed: int, *, ttl_s: float | None = None,
        by_last_use: bool = False, offers_parts: bool = False,
    ) -> None:  # fmt: skip
        self.cache, self.pool = cache, cache.pools[0]
        self.model = CacheModel(cache.page_size, lookback)
        self.readers: list[Reader] = []
        self.now_s, self.opened = 0.0, 0
        self._lookback, self._random = lookback, random.Random(seed)
        self._ttl_s, self._by_last_use, self._parts = ttl_s, by_last_use, offers_parts
        self._rows: dict[tuple[int, int], tuple[bytes, tuple[int, ...]]] = {}
        self._waiting: tuple[bytes, TokenSequence] | None = None
        self._actions: list[tuple[Callable[[], None], int]] = [
            (self._open, 5), (self._advance, 12), (self._fork, 2), (self._close, 4),
            (self._look, 2), (self._expire, 1),
        ]  # fmt: skip
        cache.runs.leaving = self._leaving
        self._empty_bytes = self.bytes_held()

    def step(self) -> None:
        """One random operation, then the accounts."""
        self.now_s += 1.0
        names, weights = zip(*self._actions, strict=True)
        self._random.choices(names, weights)[0]()
        self._check()
        self._wait()

    def finish(self) -> None:
        """Close every request, evict every page: nothing is left, of pages or of memory."""
        while self.readers:
            self._close()
            self._check()
        self.cache.runs.evict(self.pool.num_pages)
        assert not self.model.path_of, "pages that nobody uses cannot be evicted"
        assert self.pool.allocator.free_pages() == self.pool.num_pages
        self.check_integrity()
        self.check_memory()

    def bytes_held(self) -> int:
        """Memory of index and policy."""
        return deep_bytes(self.cache.runs.index, self.cache.runs.policy)

    def check_memory(self) -> None:
        """Assert that index and policy hold no more than what the kept pages are worth.

        A policy may remember as many evicted pages as the pool has, twice.
        """
        kept = len(self.model.path_of)
        if self.cache.runs.policy.wants_identity:
            kept += 2 * self.pool.num_pages
        runs = sum(1 for _ in self.cache.index.runs())
        most = FIXED_BYTES + kept * PAGE_BYTES + runs * RUN_BYTES
        held = self.bytes_held() - self._empty_bytes
        assert held <= most, f"{held} bytes for {kept} pages in {runs} runs"

    def check_integrity(self) -> None:
        """Recompute every account of the cache itself. Slower than the model's own."""
        check_cache(self.cache, [reader.holding for reader in self.readers])
        for reader in self.readers:
            check_written(self.cache, reader.holding, reader.computed)

    # Operations ---------------------------------------------------------------------------------

    def _asked(self) -> tuple[bytes, tuple[int, ...]]:
        """The salt and the prompt of somebody who comes."""
        draw = self._random
        trunk = draw.choice(TRUNKS)[: draw.randint(1, 24)]
        prompt = (*trunk, *draw.choices((5, 6), k=draw.randint(0, 3)))[:LONGEST_PROMPT]
        return draw.choice((b"", b"", b"x")), prompt

    def _wait(self) -> None:
        """Somebody waits for a while, and asks after every operation what is cached by now."""
        if self._waiting is None or self._random.random() < 0.1:
            salt, prompt = self._asked()
            self._waiting = salt, self._sequence(prompt)
        salt, sequence = self._waiting
        prompt = tuple(sequence.slice(0, sequence.length).tolist())
        whose = salt if self._random.random() < 0.8 else b"x"  # nobody's pages but one's own
        self._check_match(self.cache.match(whose, sequence), whose, prompt)
        if self._random.random() < 0.1:  # preempted after a token of it, or another one
            sequence.rewrite(self._random.choices((5, 6), k=1))

    def _open(self) -> None:
        draw, (salt, prompt) = self._random, self._asked()
        retention = None
        if draw.random() < 0.3:
            some = RetainedRange(
                0, draw.randint(1, 20), draw.randint(0, 100), draw.choice((None, 9.0, 1e9))
            )
            retention = Retention((some,), output_priority=draw.randint(0, 100))
        sequence = self._sequence(prompt)
        match = self.cache.match(salt, sequence)
        self._check_match(match, salt, prompt)
        reader = self._start(match, salt, sequence, retention)
        if reader is not None:
            while draw.random() < 0.8 and reader.computed < len(prompt):
                if not self._run(reader):
                    break

    def _sequence(self, prompt: tuple[int, ...]) -> TokenSequence:
        return TokenSequence(Request(self.opened, prompt), self.cache.page_size, self._lookback)

    def _start(
        self, match: Match, salt: bytes, sequence: TokenSequence, retention: Retention | None
    ) -> Reader | None:
        """Open a request on a match, its copied rows included."""
        self.opened += 1
        id, before = RequestId(self.opened), self.pool.allocator.free_pages()
        holding = self.cache.open(id, salt, sequence, retention, LONGEST, match, self.now_s)
        if holding is None:
            reserves = self.pool.allocator.reserves
            assert len(self.readers) == REQUESTS or reserves, "a request was not let in"
            assert self.pool.allocator.free_pages() == before
            return None
        pages, source = match.pages.tolist(), match.source
        indexed = len(pages)
        if source is not None:
            indexed = min(indexed, *(r.indexed for r in self.readers if r.holding is source))
        reader = Reader(
            holding, sequence, salt, match.tokens, pages,
            self.cache.pages_for(0, LONGEST) - len(pages), indexed,
        )  # fmt: skip
        self.model.own(pages)
        self.model.use(pages[:indexed], self.now_s)
        self.readers.append(reader)
        if match.tokens % self.cache.page_size and not self._copy(reader, match):
            return None
        self._read(reader)
        return reader

    def _copy(self, reader: Reader, match: Match) -> bool:
        """Fill the last page of a match that ends inside it; without room the request ends."""
        kept = dict(self._rows)
        if not self._grow(reader, match.tokens + 1):
            self._end(reader)
            return False
        own = reader.pages[match.tokens // self.cache.page_size]
        copies = self.cache.fork_copies(reader.holding, match)
        assert [int(copy.target) for copy in copies] in ([own], [])
        source = int(copies[0].source) if copies else own
        for offset in range(match.tokens % self.cache.page_size):
            self._rows[own, offset] = kept[source, offset]
        return True

    def _advance(self) -> None:
        if self.readers:
            self._run(self._random.choice(self.readers))

    def _run(self, reader: Reader) -> bool:
        """A chunk of a prompt, or one token with candidates of which some are accepted."""
        draw, sequence = self._random, reader.sequence
        start, length = reader.computed, sequence.length
        end = min(length, start + draw.randint(1, STEP_TOKENS))
        newest = end == length
        if newest and length == LONGEST:
            return False
        room = min(LONGEST - end - 1, STEP_TOKENS - (end - start), 3)
        guesses = draw.choices((5, 6), k=draw.randint(0, room)) if newest and room > 0 else []
        if not self._grow(reader, end + len(guesses), slide=True):
            return False
        self._write(reader, start, end + len(guesses))
        accepted = draw.randint(0, len(guesses)) if newest else 0
        if newest:
            sequence.output.extend([*guesses[:accepted], draw.choice((5, 5, 6))])
        reader.computed = end + accepted
        self._write(reader, start, reader.computed)
        self.cache.index_computed(reader.holding, reader.computed, self.now_s)
        self._index(reader)
        self.cache.truncate(reader.holding, reader.computed)
        if not self.pool.allocator.reserves:
            kept = -(-reader.computed // self.cache.page_size)
            self.model.disown(reader.pages[kept:])
            del reader.pages[kept:]
        return True

    def _grow(self, reader: Reader, entries: int, slide: bool = False) -> bool:
        """Own pages for so many entries: they are had exactly if there are enough."""
        missing = max(0, -(-entries // self.cache.page_size) - len(reader.pages))
        could = missing <= self.pool.num_pages - len(self.model.owners)
        holding = reader.holding
        if slide:
            grown = self.cache.grow(holding, reader.computed, entries)
        else:
            slots, owners = np.array([holding.slot]), [holding.id]
            grown = self.cache.grow_rows(slots, owners, np.array([entries]))
        if not self.pool.allocator.reserves:
            assert grown == could, f"{missing} pages asked for"
        assert grown or len(self.readers) > 1, "a request alone cannot grow"
        if grown:
            row = self.cache.tables[0][holding.slot]
            new = row[len(reader.pages) : len(reader.pages) + missing].tolist()
            taken = self.model.taken()
            assert not taken & set(new), f"of {new}, {taken & set(new)} are somebody's"
            self.model.own(new)
            reader.pages += new
        return bool(grown)

    def _index(self, reader: Reader) -> None:
        if not self.cache.index.retains:
            return
        tokens = reader.tokens
        for number in range(reader.indexed, self.model.full_pages(tokens, reader.computed)):
            path = self.model.path(reader.salt, tokens, number)
            reader.pages[number] = self.model.index(path, reader.pages[number], self.now_s)
            reader.indexed = number + 1

    def _fork(self) -> None:
        """A further sample of a computed prompt."""
        some = [r for r in self.readers if r.computed >= r.sequence.num_prompt]
        if not some:
            return
        parent = self._random.choice(some)
        prompt = parent.tokens[: parent.sequence.num_prompt]
        sequence = self._sequence(prompt)
        match = self.cache.fork(parent.holding, sequence.shared_entries)
        assert (match is not None) == self.cache.shares_pages
        if match is not None:
            assert match.tokens == sequence.shared_entries
            assert match.pages.tolist() == parent.pages[: match.tokens // self.cache.page_size]
            self._start(match, parent.salt, sequence, None)

    def _close(self) -> None:
        if self.readers:
            self._end(self._random.choice(self.readers))

    def _end(self, reader: Reader) -> None:
        self.readers.remove(reader)
        self.cache.close(reader.holding, self.now_s)
        self.model.disown(reader.pages)
        self.model.use(reader.pages[: reader.indexed], self.now_s)

    def _look(self) -> None:
        for reader in self.readers:
            self._read(reader)

    def _expire(self) -> None:
        self.cache.expire(self.now_s)
        if self._ttl_s is not None:
            old = [
                p
                for p in self.model.idle_leaves()
                if self.model.used_s[p] + self._ttl_s <= self.now_s
            ]
            assert not old, f"pages {old} were not used for {self._ttl_s} s"

    # Comparisons --------------------------------------------------------------------------------

    def _check_match(self, match: Match, salt: bytes, prompt: tuple[int, ...]) -> None:
        whole = self.model.longest(salt, prompt) if self.cache.index.retains else []
        assert match.pages.tolist() == whole, "not the longest indexed prefix"
        part = self.model.best_part(salt, prompt, len(whole)) if self._parts else 0
        assert match.tokens == len(whole) * self.cache.page_size + part

    def _leaving(self, pages: Pages) -> None:
        for page in reversed(pages.tolist()):
            if self._by_last_use:
                first = min(self.model.used_s[one] for one in self.model.idle_leaves())
                assert self.model.used_s[page] == first, f"page {page} was used later than others"
            self.model.leave(page)

    def _write(self, reader: Reader, start: int, end: int) -> None:
        for entry in range(start, end):
            page, offset = self._place(reader, entry)
            assert self.model.owners[page] == 1, f"page {page} of several requests is written"
            assert page not in self.model.path_of, f"indexed page {page} is written"
            self._rows[page, offset] = self._depends(reader, entry)

    def _read(self, reader: Reader) -> None:
        for entry in range(reader.computed):
            found = self._rows[self._place(reader, entry)]
            assert found == self._depends(reader, entry), f"entry {entry} is another prompt's"

    def _place(self, reader: Reader, entry: int) -> tuple[int, int]:
        page, offset = divmod(entry, self.cache.page_size)
        return reader.pages[page], offset

    def _depends(self, reader: Reader, entry: int) -> tuple[bytes, tuple[int, ...]]:
        return reader.salt, reader.tokens[: entry + 1 + self._lookback]

    def _check(self) -> None:
        """Tables, references and the pool's terms are the model's."""
        for reader in self.readers:
            count = int(reader.holding.counts[0])
            assert self.cache.tables[0][reader.holding.slot, :count].tolist() == reader.pages
            assert self.cache.indexed[reader.holding.slot] == reader.indexed
        model, pool = self.model, self.pool
        refs = dict(
            zip(np.flatnonzero(pool.refs).tolist(), pool.refs[pool.refs > 0].tolist(), strict=True)
        )
        assert refs == dict(model.owners), "references are not the requests'"
        assert set(np.flatnonzero(pool.kept).tolist()) == set(model.path_of)
        assert self.cache.index.num_pages() == len(model.path_of)
        reserved = pool.allocator.reserved_pages()
        if pool.allocator.reserves:
            assert reserved == sum(r.most - len(r.pages) for r in self.readers)
        free = pool.allocator.free_pages()
        assert free + reserved + len(model.taken()) == pool.num_pages, "free pages are miscounted"
        assert pool.cached == len(model.path_of.keys() - model.owners.keys()), "cached is stale"
        self.cache.check()
