"""A state machine over the cache alone: what every request reads is what its own tokens wrote.

The model is a dict: (table, page, offset) -> all tokens that the row there depends on. Whoever
computes position p must find at every visible entry e the row of its own tokens 0 .. e.
"""

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from interlock.core.cache_spec import CacheGroup, CacheLayout, Full, Window
from interlock.core.kv_cache import Holding, KVCache
from interlock.core.request import Request, RequestId
from interlock.core.testing.integrity import check_cache, check_written
from interlock.core.token_sequence import TokenSequence
from interlock.plugins.cache.block_hash import BlockHashIndex
from interlock.plugins.cache.contiguous import ContiguousAllocator
from interlock.plugins.cache.eviction.fifo import FIFOEviction
from interlock.plugins.cache.eviction.lru import LRUEviction
from interlock.plugins.cache.none import NoIndex
from interlock.plugins.cache.paged import PagedAllocator
from interlock.plugins.cache.radix import RadixIndex

LONGEST, STEP_TOKENS = 24, 8
TRUNKS = [[5] * 20, [5, 6] * 10]
CACHES = st.sampled_from(
    [(PagedAllocator, RadixIndex), (PagedAllocator, BlockHashIndex),
     (PagedAllocator, NoIndex), (ContiguousAllocator, NoIndex)]
)  # fmt: skip
TOKEN = st.sampled_from([5, 5, 5, 6])


@dataclass
class Reader:
    """A request: its pages, its tokens, and how many of them have rows."""

    holding: Holding
    sequence: TokenSequence
    computed: int
    salt: bytes

    def depends(self, entry, lookback):
        """What the row of an entry depends on, as far as tokens are known."""
        return self.salt, tuple(self.sequence.slice(0, min(entry + 1 + lookback, self.length)))

    @property
    def length(self):
        return self.sequence.length


class CacheMachine(RuleBasedStateMachine):
    @initialize(
        cache=CACHES,
        policy=st.sampled_from([LRUEviction, FIFOEviction]),
        windows=st.sampled_from([(), (1,), (3,), (8,), (2, 5)]),
        page_size=st.sampled_from([1, 2, 4]),
        spare=st.lists(st.integers(0, 5), min_size=3, max_size=3),
        lookback=st.integers(0, 1),
    )
    def start(self, cache, policy, windows, page_size, spare, lookback):
        allocator, index = cache
        layout = CacheLayout.of([CacheGroup((i,), (), Window(w)) for i, w in enumerate(windows)])
        self.windows = [None, *sorted(windows)]
        self.lookback, self.page_size = lookback, page_size
        pages = [-(-LONGEST // page_size) + extra for extra in spare]
        for table, window in enumerate(self.windows):
            if window is not None and allocator is PagedAllocator:
                bound = -(-(window - 1 + STEP_TOKENS) // page_size) + 1
                pages[table] = min(bound, -(-LONGEST // page_size)) + spare[table]
        self.cache = KVCache(
            layout=layout,
            allocators=[allocator(pages[table]) for table in range(len(self.windows))],
            index=index(),
            policy=policy(),
            page_size=page_size,
            max_requests=4,
            max_tokens=LONGEST,
            max_step_tokens=STEP_TOKENS,
            shares_pages=allocator is PagedAllocator,
        )
        assert self.cache.shortage(LONGEST) is None
        self.rows = {}
        self.readers = []
        self.now_s, self.opened = 0.0, 0

    @rule(
        trunk=st.sampled_from(TRUNKS),
        cut=st.integers(1, 20),
        tail=st.lists(TOKEN, max_size=3),
        salt=st.sampled_from([b"", b"", b"x"]),
        prefilled=st.booleans(),
    )
    def open(self, trunk, cut, tail, salt, prefilled):
        prompt = [*trunk[:cut], *tail][:20]
        request = Request(self.opened, tuple(prompt))
        sequence = TokenSequence(request, self.page_size, self.lookback)
        match = self.cache.match(salt, sequence)
        assert match.tokens < len(prompt)
        assert match.tokens == len(match.pages) * self.page_size
        self.opened += 1
        holding = self.cache.open(
            RequestId(self.opened), salt, sequence, None, LONGEST, match, self._tick()
        )
        if holding is None:
            assert self.readers, "an empty cache opened nobody"
            return
        reader = Reader(holding, sequence, match.tokens, salt)
        self.readers.append(reader)
        self._read(reader, reader.computed)
        while prefilled and reader.computed < len(prompt):
            before = reader.computed
            self.advance(len(self.readers) - 1, STEP_TOKENS, [], 0, bonus=5)
            if reader.computed == before:
                break

    @precondition(lambda self: self.readers)
    @rule(
        which=st.integers(0, 3),
        asked=st.integers(1, STEP_TOKENS),
        candidates=st.lists(TOKEN, max_size=3),
        accepted=st.integers(0, 3),
        bonus=TOKEN,
    )
    def advance(self, which, asked, candidates, accepted, bonus):
        """A chunk of a prompt, or one token with candidates of which some are accepted."""
        reader = self.readers[which % len(self.readers)]
        pending = reader.length - reader.computed
        tokens = min(asked, pending)
        end = reader.computed + tokens
        newest = end == reader.length
        room = min(LONGEST - end - 1, STEP_TOKENS - tokens)
        candidates = candidates[: max(0, room)] if newest else []
        if newest and reader.length == LONGEST:
            return
        if not self.cache.grow(reader.holding, reader.computed, end + len(candidates)):
            assert len(self.readers) > 1, "a request alone cannot grow though intake took it"
            return
        for entry in range(reader.computed, end):
            self._write(reader, entry, reader.depends(entry, self.lookback))
        for place in range(len(candidates)):
            self._write(reader, end + place, "speculative")
        for entry in range(reader.computed, end):
            self._read(reader, entry)
        accepted = min(accepted, len(candidates)) if newest else 0
        if newest:
            reader.sequence.output.extend([*candidates[:accepted], bonus])
            # The drafter's row of the old newest token, and those of accepted candidates.
            for entry in range(reader.computed, end + accepted):
                self._write(reader, entry, reader.depends(entry, self.lookback))
        reader.computed = end + accepted
        self.cache.index_computed(reader.holding, reader.computed, self._tick())
        self.cache.truncate(reader.holding, reader.computed)

    @precondition(lambda self: self.readers)
    @rule(
        which=st.integers(0, 3),
        later=st.sampled_from([0, 0, 4, 9]),
        others=st.integers(1, 3),
        prefilled=st.booleans(),
    )
    def fork(self, which, later, others, prefilled):
        """Further samples of a computed prompt: full pages shared, the last one copied."""
        which %= len(self.readers)
        parent = self.readers[which]
        prompt = parent.sequence.num_prompt
        for _ in range(later):
            self.advance(which, 1, [], 0, bonus=5)
        for _ in range(others):
            if parent.computed < prompt:
                return
            reader = self._forked(parent, prompt)
            if reader is None:
                return
            self.readers.append(reader)
            self._read(reader, reader.computed)
            while prefilled and reader.computed < prompt:
                before = reader.computed
                self.advance(len(self.readers) - 1, STEP_TOKENS, [], 0, bonus=6)
                if reader.computed == before:
                    break

    def _forked(self, parent, prompt):
        """A new sample of the parent's prompt with its pages, or None where that cannot be."""
        request = Request(self.opened, tuple(parent.sequence.slice(0, prompt).tolist()))
        sequence = TokenSequence(request, self.page_size, self.lookback)
        start = sequence.shared_entries
        match = self.cache.fork(parent.holding, start)
        if match is None:
            assert len(self.windows) > 1 or not self.cache.shares_pages
            return None
        assert (match.tokens, len(match.pages)) == (start, start // self.page_size)
        self.opened += 1
        holding = self.cache.open(
            RequestId(self.opened), parent.salt, sequence, None, LONGEST, match, self._tick()
        )
        if holding is None:
            return None
        if not self.cache.grow(holding, start, prompt):
            self.cache.close(holding, self._tick())
            return None
        for copy in self.cache.fork_copies(holding, match):
            for offset in range(self.page_size):
                row = self.rows.get((copy.table, int(copy.source), offset))
                self.rows[copy.table, int(copy.target), offset] = row
        return Reader(holding, sequence, start, parent.salt)

    @precondition(lambda self: self.readers)
    @rule(which=st.integers(0, 3))
    def close(self, which):
        reader = self.readers.pop(which % len(self.readers))
        self.cache.close(reader.holding, self._tick())

    @precondition(lambda self: self.readers)
    @rule()
    def look(self):
        """Every open request can still read all that its next position sees."""
        for reader in self.readers:
            self._read(reader, reader.computed)

    def _tick(self):
        self.now_s += 1.0
        return self.now_s

    def _place(self, table, reader, entry):
        page = self.cache.tables[table][reader.holding.slot, entry // self.page_size]
        return table, int(page), entry % self.page_size

    def _write(self, reader, entry, row):
        for table, window in enumerate(self.windows):
            place = self._place(table, reader, entry)
            refs = self.cache.pools[table].refs[place[1]]
            assert refs == 1, f"table {table} (window {window}) writes a page of {refs} requests"
            self.rows[place] = row

    def _read(self, reader, position):
        """Rows of committed entries that a query at `position` sees."""
        for table, window in enumerate(self.windows):
            first = 0 if window is None else max(0, position - window + 1)
            for entry in range(first, min(position + 1, reader.computed)):
                found = self.rows[self._place(table, reader, entry)]
                assert found == reader.depends(entry, self.lookback), (table, window, entry)

    @invariant()
    def accounts_are_whole(self):
        if hasattr(self, "cache"):
            self.cache.check()
            check_cache(self.cache, [reader.holding for reader in self.readers])
            for reader in self.readers:
                check_written(self.cache, reader.holding, reader.computed)

    def teardown(self):
        if not hasattr(self, "cache"):
            return
        while self.readers:
            self.close(0)
            self.accounts_are_whole()
        for pool in self.cache.pools:
            assert pool.held == 0
            assert pool.allocator.free_pages() + pool.cached == pool.num_pages


CacheMachine.TestCase.settings = settings(max_examples=120, stateful_step_count=25, deadline=None)


class TestCacheMachine(CacheMachine.TestCase):
    """Run by pytest under this name."""


def test_a_model_of_windows_only_still_has_a_table_that_lives_as_long_as_the_request():
    layout = CacheLayout.of([CacheGroup((0,), (), Window(8))])
    assert layout.lifetimes == (Full(), Window(8))
    assert layout.table_of(0) == 1
    with pytest.raises(KeyError, match="layer 1"):
        layout.table_of(1)
