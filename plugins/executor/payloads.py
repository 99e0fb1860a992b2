"""Pages as bytes: every plane of every table at one page, in a fixed order behind a header.

Legend: P pages of a table, N pages of a transfer, S bytes of a page in one plane, Z of a payload.
"""

import hashlib
import struct
from collections.abc import Sequence

import torch
from torch import Tensor

from interlock.core.batch import Pages
from interlock.core.planes import Planes
from interlock.core.transfers import NOWHERE

HEADER = struct.Struct("<8sI20s")
"""Magic, which tables have rows here (bit t for table t), and a digest of the layout."""
MAGIC = b"ilkvpg1\0"
ALIGNED = 64
"""The first plane begins at a multiple of this, and so does the next payload."""


class Payloads:
    """How the planes of a cache lie in a payload. Tables without rows leave zeros."""

    def __init__(self, planes: Planes) -> None:
        layout = planes.layout
        self._flat: list[tuple[int, int, Tensor]] = []
        """Of each plane its table, where its bytes begin, and its rows as [P, S] bytes."""
        self._tables = len(layout.lifetimes)
        described = [repr((layout.groups, layout.lifetimes, planes.page_size))]
        end = ALIGNED
        for layer in sorted(planes.of_layer):
            for name, plane in sorted(planes.of_layer[layer].items()):
                flat_PS = plane.view(torch.uint8).view(len(plane), -1)
                self._flat.append((planes.tables[layer], end, flat_PS))
                described.append(f"{layer} {name} {end} {plane.dtype} {tuple(plane.shape[1:])}")
                end += flat_PS.shape[1]
        self.size = -(-end // ALIGNED) * ALIGNED
        self._digest = hashlib.blake2b("\n".join(described).encode(), digest_size=20).digest()
        self._device = self._flat[0][2].device if self._flat else torch.device("cpu")

    def buffer(self, count: int) -> Tensor:
        """Room for so many payloads on the host, [N, Z] bytes; pinned where the planes are not."""
        pinned = self._device.type == "cuda"
        return torch.zeros((count, self.size), dtype=torch.uint8, pin_memory=pinned)

    def pack(self, pages: Sequence[Pages], into_NZ: Tensor) -> None:
        """The payloads of N pages: pages[t] are theirs in table t, NOWHERE where there is none."""
        host = self._device.type == "cpu"
        packed_NZ = into_NZ if host else torch.zeros_like(into_NZ, device=self._device)
        picked = [self._picked(of_table) for of_table in pages]
        for table, begin, flat_PS in self._flat:
            at_N, page_N = picked[table]
            rows_NS = flat_PS[page_N]
            part_NS = packed_NZ[:, begin : begin + flat_PS.shape[1]]
            if at_N is None:
                part_NS.copy_(rows_NS)
            else:
                part_NS.zero_()
                part_NS[at_N] = rows_NS
        if not host:
            into_NZ.copy_(packed_NZ)
        for i, row_Z in enumerate(into_NZ):
            present = sum((of_table[i] != NOWHERE) << t for t, of_table in enumerate(pages))
            header = HEADER.pack(MAGIC, int(present), self._digest)
            row_Z[: HEADER.size] = torch.frombuffer(bytearray(header), dtype=torch.uint8)

    def present(self, payload: memoryview) -> tuple[bool, ...] | None:
        """Which tables a payload has rows of; None if it is not one of this layout."""
        magic, present, digest = HEADER.unpack_from(payload)
        if (magic, digest) != (MAGIC, self._digest) or present >> self._tables:
            return None
        return tuple(bool(present >> table & 1) for table in range(self._tables))

    def unpack(self, from_NZ: Tensor, pages: Sequence[Pages]) -> None:
        """Write N payloads to these pages; those NOWHERE are left out."""
        device_NZ = from_NZ.to(self._device)
        picked = [self._picked(of_table) for of_table in pages]
        for table, begin, flat_PS in self._flat:
            at_N, page_N = picked[table]
            part_NS = device_NZ[:, begin : begin + flat_PS.shape[1]]
            flat_PS[page_N] = part_NS if at_N is None else part_NS[at_N]

    def _picked(self, pages: Pages) -> tuple[Tensor | None, Tensor]:
        """Which of N pages exist (None: all), and their numbers."""
        page_N = torch.from_numpy(pages).long()
        at_N = (page_N != NOWHERE).nonzero()[:, 0]
        if len(at_N) == len(page_N):
            return None, page_N.to(self._device)
        return at_N.to(self._device), page_N[at_N].to(self._device)
