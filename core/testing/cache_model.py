"""What a cache of one page table must hold, kept by brute force: plain dictionaries of prefixes.

A page's path is its salt and every token that its rows depend on. Nothing here knows runs, trees,
hashes or free lists.
"""

from collections import Counter

Path = tuple[bytes, tuple[int, ...]]


class CacheModel:
    """Which page stands for which prefix, who has pages, and when each was last used."""

    def __init__(self, page_size: int, lookback: int) -> None:
        self.page_size, self.lookback = page_size, lookback
        self.page_of: dict[Path, int] = {}
        self.path_of: dict[int, Path] = {}
        self.owners: Counter[int] = Counter()
        """References of requests to each page, none of 0."""
        self.used_s: dict[int, float] = {}
        """When an indexed page was last used."""
        self._following: Counter[Path] = Counter()
        """Indexed pages right after each path."""
        self.left = 0
        """Pages that were evicted."""

    def path(self, salt: bytes, tokens: tuple[int, ...], page: int) -> Path:
        """Of the page with this number."""
        return salt, tokens[: (page + 1) * self.page_size + self.lookback]

    def before(self, path: Path) -> Path:
        """The path that one follows: of no page at all where it is a prompt's first."""
        salt, tokens = path
        count = len(tokens) - self.lookback - self.page_size
        return salt, tokens[: count + self.lookback] if count else ()

    def full_pages(self, tokens: tuple[int, ...], entries: int) -> int:
        """Leading pages of so many entries whose paths are known."""
        return max(0, min(entries, len(tokens) - self.lookback)) // self.page_size

    def longest(self, salt: bytes, tokens: tuple[int, ...]) -> list[int]:
        """Pages of the longest indexed prefix that leaves a token to compute."""
        found: list[int] = []
        for number in range(self.full_pages(tokens, len(tokens) - 1)):
            page = self.page_of.get(self.path(salt, tokens, number))
            if page is None:
                break
            found.append(page)
        return found

    def best_part(self, salt: bytes, tokens: tuple[int, ...], pages: int) -> int:
        """Most leading rows of page number `pages` that some indexed page in its place has."""
        first = pages * self.page_size
        begin = self.path(salt, tokens, pages - 1) if pages else (salt, ())
        mine, best = tokens[first:], 0
        for path in self.page_of:
            if self.before(path) == begin:
                same = common(path[1][first:], mine)
                best = max(best, min(same - self.lookback, self.page_size))
        return max(0, min(best, len(tokens) - 1 - first))

    def own(self, pages: list[int]) -> None:
        """One more reference to each."""
        self.owners.update(pages)

    def disown(self, pages: list[int]) -> None:
        """One reference less to each."""
        for page in pages:
            self.owners[page] -= 1
            assert self.owners[page] >= 0, f"page {page} was let go of once too often"
            if not self.owners[page]:
                del self.owners[page]

    def index(self, path: Path, page: int, now_s: float) -> int:
        """A computed page of a request becomes visible; the page that stands for it from now on."""
        known = self.page_of.get(path)
        if known is not None:
            self.own([known])
            self.disown([page])
            return known
        before = self.before(path)
        assert not before[1] or before in self.page_of, "a page without the one before it"
        self.page_of[path], self.path_of[page], self.used_s[page] = page, path, now_s
        self._following[before] += 1
        return page

    def use(self, pages: list[int], now_s: float) -> None:
        """These indexed pages were in use until now."""
        self.used_s.update(dict.fromkeys(pages, now_s))

    def idle_leaves(self) -> list[int]:
        """Indexed pages that may go: of no request, and with none after them."""
        return [
            page
            for page, path in self.path_of.items()
            if page not in self.owners and not self._following[path]
        ]

    def leave(self, page: int) -> None:
        """An indexed page is evicted: it must be one that may go."""
        path = self.path_of[page]
        assert page not in self.owners, f"page {page} was evicted while a request uses it"
        assert not self._following[path], f"page {page} was evicted before one that follows it"
        del self.path_of[page], self.page_of[path], self.used_s[page], self._following[path]
        self._following[self.before(path)] -= 1
        self.left += 1

    def taken(self) -> set[int]:
        """Pages that are not free."""
        return set(self.owners) | set(self.path_of)


def common(ours: tuple[int, ...], theirs: tuple[int, ...]) -> int:
    """How many leading tokens are equal."""
    count = 0
    for one, other in zip(ours, theirs, strict=False):
        if one != other:
            break
        count += 1
    return count
