"""A radix tree over page rows, as in SGLang's RadixAttention."""

from interlock.core.batch import PageId, Pages
from interlock.core.component import BuildContext
from interlock.core.prefix_index import Part, Units
from interlock.plugins.cache import RadixConfig
from interlock.plugins.cache.chain_keys import ChainKeys, FastKeys, chained
from interlock.plugins.cache.following import Following
from interlock.plugins.cache.run_tree import Column, Node, RunTree, Walk, common_rows


class RadixIndex(RunTree):
    """Runs of pages as edges of a tree, one tree a salt (Zheng et al., NeurIPS 2024, section 3).

    The run that follows is found by the bytes of its first row; rows are then compared a run at a
    time by vectorised code: Python runs once a node, not once a page.
    """

    def __init__(self, num_pages: int = 0, partial_pages: bool = False) -> None:
        """Page ids below `num_pages` need no growth of the page table; larger ones are allowed."""
        super().__init__(num_pages)
        self._partial = partial_pages
        self._following = Following()
        self._chain: ChainKeys | None = None

    def keep_keys(self) -> bool:
        """See PrefixIndex: keys of 64 bits, which nothing but eviction policies looks at."""
        assert not self._nodes, "keys are kept from the first page on or not at all"
        self._chain = FastKeys()
        return True

    def partial(self, salt: bytes, after: PageId | None, units: Units) -> Part | None:
        """See PrefixIndex. O(runs that follow)."""
        if not self._partial:
            return None
        node, used = (None, 0) if after is None else self._place(after)
        return self._following.part(salt, node, used, units)

    def _walk(self, salt: bytes, node: Node | None, used: int, rows: Units) -> Walk:
        parts: list[Pages] = []
        runs, done = self._following.runs, 0
        while done < len(rows):
            if node is None or used == len(node.pages):
                following = runs.get(salt if node is None else node.number, {})
                found = following.get(rows[done].tobytes()) if following else None
                if found is None:
                    break
                node, used = found, 0
            same = common_rows(node.rows[used:], rows[done:])
            if same == 0:
                break
            parts.append(node.pages[used : used + same])
            used, done = used + same, done + same
        return Walk(parts, done, node, used)

    def _columns(
        self, salt: bytes, node: Node | None, used: int, rows: Units, pages: Pages
    ) -> list[Column]:
        columns: list[Column] = [pages, rows]
        if self._chain is not None:
            columns.append(chained(self._chain, salt, node, used, rows))
        return columns

    def _linked(self, node: Node) -> None:
        self._following.link(node)

    def _unlinked(self, node: Node) -> None:
        self._following.unlink(node)


def build(config: RadixConfig, context: BuildContext) -> RadixIndex:
    """An empty index for page ids below `context.num_pages`."""
    return RadixIndex(context.num_pages, config.partial_pages)
