"""Rows of the cache that change their place: pages that are copied, accepted nodes of a tree."""

from collections.abc import Iterator, Sequence

from torch import Tensor

from interlock.core.batch import Pages
from interlock.core.planes import Planes


def copy_page(planes: Planes, table: int, source: int, target: int) -> None:
    """Copy one page in every plane of a table."""
    for plane in _of_table(planes, table):
        plane[target] = plane[source]


def move_entries(
    planes: Planes, table: int, pages: Pages, sources: Sequence[int], targets: Sequence[int]
) -> None:
    """Within one request, copy rows of entries `sources` to entries `targets` of a table.

    All sources are read before any target is written.
    """
    size = planes.page_size
    at = [(int(pages[s // size]), s % size) for s in sources]
    to = [(int(pages[t // size]), t % size) for t in targets]
    for plane in _of_table(planes, table):
        rows = plane[[p for p, _ in at], [o for _, o in at]]
        plane[[p for p, _ in to], [o for _, o in to]] = rows


def _of_table(planes: Planes, table: int) -> Iterator[Tensor]:
    for layer, of_table in planes.tables.items():
        if of_table == table:
            yield from planes.of_layer[layer].values()
