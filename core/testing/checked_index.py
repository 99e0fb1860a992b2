"""A prefix index beside its oracle: a dictionary from every indexed prefix to its page."""

import numpy as np

from interlock.core.batch import PageId
from interlock.core.prefix_index import PrefixIndex, PrefixKey, Run, Units

Symbols = tuple[int, ...]
"""One symbol a page: a short name for its row."""


def rows_of(symbols: Symbols, units_per_page: int) -> Units:
    """[pages, units_per_page]: rows of different symbols differ in one place or two."""
    rows = np.zeros((len(symbols), units_per_page), dtype=np.int64)
    for page, symbol in enumerate(symbols):
        rows[page, symbol % units_per_page] = symbol + 1
    return rows


class CheckedIndex:
    """An index whose every answer is compared with a dictionary of all indexed prefixes."""

    def __init__(self, index: PrefixIndex, units_per_page: int) -> None:
        self.index = index
        self.units_per_page = units_per_page
        self.pages: dict[tuple[bytes, Symbols], int] = {}
        self._unused = list(range(200))

    def key(self, salt: bytes, symbols: Symbols) -> PrefixKey:
        """The rows of `symbols`."""
        return PrefixKey(salt, rows_of(symbols, self.units_per_page))

    def known(self, salt: bytes, symbols: Symbols) -> list[int]:
        """The pages that a match of `symbols` must return."""
        prefixes = ((salt, symbols[:end]) for end in range(1, len(symbols) + 1))
        return [self.pages[prefix] for prefix in prefixes if prefix in self.pages]

    def match(self, salt: bytes, symbols: Symbols) -> list[int]:
        """The matched pages, after checking them and that nothing changed."""
        before = self._snapshot()
        pages = self.index.match(self.key(salt, symbols))
        assert pages.dtype == np.int32
        assert pages.tolist() == self.known(salt, symbols)
        assert self._snapshot() == before, "match changed a run"
        return list(pages.tolist())

    def insert(self, salt: bytes, symbols: Symbols, start: int = 0) -> list[int]:
        """Index symbols[start:] with new pages after symbols[:start], which are indexed."""
        after = PageId(self.pages[salt, symbols[:start]]) if start else None
        own = [self._unused.pop() for _ in symbols[start:]]
        known = self.known(salt, symbols)[start:]
        pages, kept = self.index.insert(
            self.key(salt, symbols[start:]), after, np.array(own, dtype=np.int32)
        )
        assert pages.tolist() == known + own[len(known) :], "not the canonical pages"
        if self.index.retains:
            assert kept == len(own) - len(known)
            for end in range(start + 1 + len(known), len(symbols) + 1):
                self.pages[salt, symbols[:end]] = own[end - start - 1]
            self._unused += own[: len(known)]
        else:
            assert kept == 0
            self._unused += own
        return list(pages.tolist())

    def serve(self, salt: bytes, symbols: Symbols, chunks: int = 1) -> None:
        """Match, then index the rest in equal parts, as a request prefilled in chunks does."""
        done = len(self.match(salt, symbols))
        rest = len(symbols) - done
        for chunk in range(1, chunks + 1):
            end = len(symbols) - rest + rest * chunk // chunks
            if end > done and (self.index.retains or done == 0):
                self.insert(salt, symbols[:end], done)
                done = end

    def isolate(self, page: PageId) -> None:
        """Make `page` the end of its run; the run's tail stays the same object."""
        run = self.run_of(page)
        tail = PageId(int(run.pages[-1]))
        self.index.isolate(page)
        assert self.run_of(page).pages[-1] == page
        assert self.run_of(tail) is run, "the tail of a split run is another object"

    def drop_tail(self, run: Run, count: int) -> None:
        """Forget pages at the end of a run without children."""
        expected, parent = run.pages[len(run.pages) - count :].tolist(), run.parent
        children = parent.children if parent else 0
        emptied = count == len(run.pages)
        assert self.index.drop_tail(run, count).tolist() == expected
        assert len(run.pages) == 0 if emptied else self.run_of(PageId(int(run.pages[-1]))) is run
        if parent:
            assert parent.children == children - emptied
        assert all(self.index.run_of(PageId(page)) is None for page in expected)
        self.pages = {path: page for path, page in self.pages.items() if page not in expected}
        self._unused += expected

    def run_of(self, page: PageId) -> Run:
        """The run of a page that must be indexed."""
        run = self.index.run_of(page)
        assert run is not None, f"page {page} is not indexed"
        return run

    def leaves(self) -> list[Run]:
        """Runs that nothing follows, in order of their last page."""
        runs = [run for run in self.index.runs() if run.children == 0]
        return sorted(runs, key=lambda run: int(run.pages[-1]))

    def check(self) -> None:
        """Compare all runs with the dictionary."""
        self.index.check_integrity()
        assert self.index.num_pages() == len(self.pages)
        assert all(self.index.run_of(PageId(page)) is None for page in self._unused)
        paths = {page: path for path, page in self.pages.items()}
        for run in self.index.runs():
            before = paths[int(run.parent.pages[-1])] if run.parent else (run.salt, ())
            assert run.depth_pages == len(before[1])
            for page in run.pages.tolist():
                salt, symbols = paths[page]
                assert (salt, symbols[:-1]) == before, "a page follows another history"
                before = salt, symbols

    def _snapshot(self) -> list[tuple[object, ...]]:
        return [
            (
                id(run), run.pages.tolist(), id(run.parent), run.depth_pages, run.children,
                run.created_s, run.last_used_s, run.uses, run.priority, dict(run.state),
            )
            for run in self.index.runs()
        ]  # fmt: skip
