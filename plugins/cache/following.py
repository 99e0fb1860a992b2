"""Runs by what they follow, and which of them begins with the most of some tokens."""

from interlock.core.batch import PageId
from interlock.core.prefix_index import Part, Units
from interlock.plugins.cache.run_tree import Node, common_rows


class Following:
    """For every run, and every salt, the runs that come right after it, by their first row."""

    def __init__(self) -> None:
        self.runs: dict[int | bytes, dict[bytes, Node]] = {}
        """By the bytes of their first row, by the number of the run before them, or salt."""

    def after(self, salt: bytes, node: Node | None) -> dict[bytes, Node]:
        """Runs after the end of a run (None: the first ones of a salt)."""
        return self.runs.get(salt if node is None else node.number, {})

    def link(self, node: Node) -> None:
        """A run follows its parent, or begins a tree."""
        self.runs.setdefault(_before(node), {})[node.rows[0].tobytes()] = node

    def unlink(self, node: Node) -> None:
        """A run is about to go."""
        siblings = self.runs[_before(node)]
        del siblings[node.rows[0].tobytes()]
        if not siblings:
            del self.runs[_before(node)]

    def part(self, salt: bytes, node: Node | None, used: int, units: Units) -> Part | None:
        """Of the pages right after the first `used` ones of a run, the one whose row begins with
        the most of `units`. O(runs that follow)."""
        if node is not None and used < len(node.pages):
            places = [(node, used)]
        else:
            places = [(run, 0) for run in self.after(salt, node).values()]
        best: Part | None = None
        for run, place in places:
            same = common_rows(run.rows[place][:, None], units[:, None])
            if same > (best.units if best else 0):
                best = Part(PageId(run.pages.item(place)), same)
        return best


def _before(node: Node) -> int | bytes:
    parent = node.parent
    assert parent is None or isinstance(parent, Node)
    return node.salt if parent is None else parent.number
