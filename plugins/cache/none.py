"""No prefix cache: a page lives as long as its request."""

from collections.abc import Iterator

import numpy as np

from interlock.core.batch import PageId, Pages
from interlock.core.component import BuildContext
from interlock.core.prefix_index import Inserted, PrefixIndex, PrefixKey, Run
from interlock.plugins.cache import NoIndexConfig


class NoIndex(PrefixIndex):
    """Matches nothing and keeps nothing."""

    retains = False

    def keep_keys(self) -> bool:
        """True: there is no run without."""
        return True

    def match(self, key: PrefixKey) -> Pages:
        """No pages."""
        return np.empty(0, dtype=np.int32)

    def insert(self, key: PrefixKey, after: PageId | None, pages: Pages) -> Inserted:
        """The caller's pages, none of them kept."""
        return Inserted(pages, 0)

    def run_of(self, page: PageId) -> Run | None:
        """None: no page is indexed."""
        return None

    def drop_tail(self, run: Run, count: int) -> Pages:
        """Never called: there are no runs."""
        raise AssertionError("cache/index=none holds no run to drop from")

    def runs(self) -> Iterator[Run]:
        """No runs."""
        return iter(())

    def num_pages(self) -> int:
        """Always 0."""
        return 0


def build(_config: NoIndexConfig, _context: BuildContext) -> NoIndex:
    """An index without state."""
    return NoIndex()
