"""Copies to and from tiers in virtual time: what they would take, and no bytes."""

from collections.abc import Sequence
from heapq import heappop, heappush

from interlock.core.clock import Clock
from interlock.core.tier import PricedTier
from interlock.core.transfers import Kind, Moved, Transfer, Transfers

NOTHING = memoryview(bytearray())


class PricedTransfers(Transfers):
    """Each tier has two lines, one to it and one from it, and a line serves one copy at a time.

    A copy is of the payloads of one transfer that the tier has: it takes the tier's price for all
    their bytes. A transfer that loads from two tiers is done when both are; a save, when the
    slowest tier has it. Stores are asked and written when the copy would end.
    """

    def __init__(self, tiers: Sequence[PricedTier], payload_bytes: int) -> None:
        self._tiers, self.payload_bytes = tuple(tiers), payload_bytes
        self._free_s = {(kind, n): 0.0 for kind in Kind for n in range(len(self._tiers))}
        self._ends: list[tuple[float, int, Transfer]] = []
        self._number = 0

    def start(self, transfer: Transfer, now_s: float) -> None:
        """See Transfers."""
        if transfer.kind is Kind.FIND:
            found = zip(*(tier.holds(transfer.keys) for tier in self._tiers), strict=True)
            for held in found:
                if True not in held:
                    break
                transfer.where.append(list(held).index(True))
            transfer.finished = True
            return
        end_s = now_s
        for number, tier in enumerate(self._tiers):
            if transfer.kind is Kind.LOAD:
                pages = transfer.where.count(number)
            else:
                pages = list(tier.holds(transfer.keys)).count(False)
            if not pages:
                continue
            line = transfer.kind, number
            begin_s = max(now_s, self._free_s[line])
            if begin_s > transfer.until_s:
                continue
            seconds = tier.seconds(pages * self.payload_bytes)
            self._free_s[line] = begin_s + seconds
            end_s = max(end_s, begin_s + seconds)
            transfer.moved.append(Moved(number, pages, seconds))
        self._number += 1
        heappush(self._ends, (end_s, self._number, transfer))

    def finished(self, now_s: float) -> list[Transfer]:
        """See Transfers."""
        done = []
        while self._ends and self._ends[0][0] <= now_s:
            transfer = heappop(self._ends)[2]
            self._move(transfer)
            done.append(transfer)
        return done

    def _move(self, transfer: Transfer) -> None:
        tables = (True,) * len(transfer.pages)
        moved = {tier for tier, _, _ in transfer.moved}
        if transfer.kind is Kind.SAVE:
            for key in transfer.keys:
                stored = [
                    self._tiers[n].write(key, NOTHING)
                    for n in range(len(self._tiers))
                    if n in moved or self._tiers[n].holds([key])[0]
                ]
                transfer.done.append((any(stored),))
            return
        for key, where in zip(transfer.keys, transfer.where, strict=True):
            if where not in moved or not self._tiers[where].read(key, NOTHING):
                break
            for faster in self._tiers[:where]:
                faster.write(key, NOTHING)
            transfer.done.append(tables)

    def wait(self, clock: Clock, until_s: float) -> None:
        """See Transfers."""
        ends_s = self._ends[0][0] if self._ends else until_s
        clock.wait_until(min(ends_s, until_s))
