"""A cache component that breaks its contract stops the engine, and the message names its class."""

import numpy as np
import pytest

from interlock.core.prefix_index import Inserted
from interlock.plugins.cache.eviction.lru import LRUEviction
from interlock.plugins.cache.paged import PagedAllocator
from interlock.plugins.cache.radix import RadixIndex
from tests.engine.breaking import stopped


class GivesOnePageTwice(PagedAllocator):
    def take(self, owner, count):
        pages = super().take(owner, count)
        if pages is not None and len(pages) > 1:
            pages[-1] = pages[0]
        return pages


class GivesAHeldPage(PagedAllocator):
    first = None

    def take(self, owner, count):
        pages = super().take(owner, count)
        if pages is not None:
            self.first = pages[0] if self.first is None else self.first
            pages[-1] = self.first
        return pages


class GivesTooFew(PagedAllocator):
    def take(self, owner, count):
        pages = super().take(owner, count)
        return None if pages is None else pages[:-1]


class GivesAPageBeyondThePool(PagedAllocator):
    page = 12

    def take(self, owner, count):
        pages = super().take(owner, count)
        if pages is not None:
            pages[-1] = self.page
        return pages


class GivesANegativePage(GivesAPageBeyondThePool):
    page = -1


class LosesAPage(PagedAllocator):
    def give_back(self, pages):
        super().give_back(pages[:-1])


class NeverHasAny(PagedAllocator):
    def take(self, owner, count):
        return None


class SetsTooFewAside(PagedAllocator):
    """Says that it reserves, and has nothing for requests that grow together."""

    reserves = True

    def take(self, owner, count):
        return super().take(owner, count) if count > 1 else None


@pytest.mark.parametrize(
    "broken",
    [
        SetsTooFewAside,
        GivesOnePageTwice,
        GivesAHeldPage,
        GivesTooFew,
        GivesAPageBeyondThePool,
        GivesANegativePage,
        LosesAPage,
        NeverHasAny,
    ],
)
def test_an_allocator_is_named(broken):
    message = stopped("allocator", lambda context: broken(context.num_pages))
    assert broken.__name__ in message


class MatchesTooMuch(RadixIndex):
    def match(self, key):
        found = super().match(key)
        return np.concatenate([found, found, found, found]) if len(found) else found


class MatchesFreePages(RadixIndex):
    def match(self, key):
        return np.array([11], dtype=np.int32)


class MatchesOnePageTwice(RadixIndex):
    def match(self, key):
        found = super().match(key)
        return found[[0, 0]] if len(found) > 1 else found


class LosesRuns(RadixIndex):
    def run_of(self, page):
        return None


class InsertsOtherPages(RadixIndex):
    def insert(self, key, after, pages):
        inserted = super().insert(key, after, pages)
        return Inserted(inserted.pages[::-1].copy(), inserted.kept)


class InsertsMoreThanGiven(RadixIndex):
    def insert(self, key, after, pages):
        inserted = super().insert(key, after, pages)
        return Inserted(inserted.pages, inserted.kept + 1)


class DropsNothing(RadixIndex):
    def drop_tail(self, run, count):
        return super().drop_tail(run, count)[:0]


@pytest.mark.parametrize(
    "broken",
    [
        MatchesTooMuch,
        MatchesFreePages,
        MatchesOnePageTwice,
        LosesRuns,
        InsertsOtherPages,
        InsertsMoreThanGiven,
        DropsNothing,
    ],
)
def test_an_index_is_named(broken):
    assert broken.__name__ in stopped("index", lambda context: broken(context.num_pages))


class ChoosesAnyRun(LRUEviction):
    def __init__(self):
        super().__init__()
        self.all = []

    def used(self, run):
        self.all.append(run)

    def choose(self):
        return self.all[0] if self.all else super().choose()


class ChoosesNobody(LRUEviction):
    def choose(self):
        return None


@pytest.mark.parametrize("broken", [ChoosesAnyRun, ChoosesNobody])
def test_an_eviction_policy_is_named(broken):
    message = stopped("eviction", lambda _context: broken(), index="radix", num_pages=8)
    assert broken.__name__ in message
