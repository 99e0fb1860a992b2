"""Copies between planes and tiers in threads of their own, beside the steps.

A thread takes one transfer at a time; loads go before saves that have not begun, because requests
wait for them. Payloads pass through a buffer of the thread's own, a few at a time.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence

import torch

from interlock.core.clock import Clock, WallClock
from interlock.core.errors import ContractError
from interlock.core.tier import Key, KVTier
from interlock.core.transfers import NOWHERE, Kind, Moved, Transfer, Transfers
from interlock.plugins.executor.payloads import Payloads

THREADS = 2
"""Of them one does nothing but loads and lookups, so that a slow write keeps nobody waiting."""
AT_ONCE_BYTES = 8 << 20
"""Of payloads that pass through a thread's buffer together, but for one that is larger."""
WAIT_S = 0.1
"""A wait is cut into naps, between which a run can show progress or be stopped."""


class ThreadTransfers(Transfers):
    """Runs transfers in daemon threads: a store that hangs for ever does not keep a process."""

    def __init__(self, payloads: Payloads, tiers: Sequence[KVTier], device: torch.device) -> None:
        self._payloads, self._tiers, self._device = payloads, tuple(tiers), device
        self.payload_bytes = payloads.size
        self._count = max(1, AT_ONCE_BYTES // payloads.size)
        self._at_once = all(tier.answers_at_once for tier in tiers)
        self._changed = threading.Condition()
        self._loads: deque[tuple[Transfer, float]] = deque()
        self._saves: deque[tuple[Transfer, float]] = deque()
        self._done: list[Transfer] = []
        self._closing, self._raised = False, list[Exception]()
        self._clock_s: Callable[[], float] = WallClock().now
        self._threads = [
            threading.Thread(target=self._serve, args=(n > 0,), name=f"tiers-{n}", daemon=True)
            for n in range(THREADS)
        ]
        for thread in self._threads:
            thread.start()

    def start(self, transfer: Transfer, now_s: float) -> None:
        """See Transfers."""
        if transfer.kind is Kind.FIND and self._at_once:
            self._find(transfer)
            transfer.finished = True
            return
        until_s = self._clock_s() + transfer.until_s - now_s
        with self._changed:
            queue = self._saves if transfer.kind is Kind.SAVE else self._loads
            queue.append((transfer, until_s))
            self._changed.notify_all()

    def finished(self, now_s: float) -> list[Transfer]:
        """See Transfers. ContractError when a store raised an exception."""
        with self._changed:
            done, self._done = self._done, []
            if self._raised:
                names = ", ".join(type(tier).__name__ for tier in self._tiers)
                raise ContractError(f"a store ({names}) raised {self._raised[0]!r}")
        return done

    def wait(self, clock: Clock, until_s: float) -> None:
        """See Transfers."""
        with self._changed:
            if not self._done:
                self._changed.wait(min(WAIT_S, max(0.0, until_s - clock.now())))

    def close(self, timeout_s: float) -> None:
        """See Transfers."""
        with self._changed:
            self._closing = True
            self._loads.clear()
            self._changed.notify_all()
        end_s = self._clock_s() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, end_s - self._clock_s()))

    # In the threads -----------------------------------------------------------------------------

    def _serve(self, saves: bool) -> None:
        buffer_NZ = self._payloads.buffer(self._count)
        stream = None
        if self._device.type == "cuda":
            stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]  # torch's
        while (taken := self._next(saves)) is not None:
            transfer, until_s = taken
            try:
                if self._clock_s() < until_s:
                    with torch.inference_mode(), torch.cuda.stream(stream):
                        self._run(transfer, until_s, buffer_NZ, stream)
            except Exception as error:  # a store that breaks its contract
                self._raised.append(error)
            finally:
                if transfer.kind is Kind.SAVE:
                    missing = len(transfer.keys) - len(transfer.done)
                    transfer.done += [(False,)] * missing
                with self._changed:
                    self._done.append(transfer)
                    self._changed.notify_all()

    def _next(self, saves: bool) -> tuple[Transfer, float] | None:
        """A transfer for this thread; None: there will be none."""
        with self._changed:
            while True:
                for queue in (self._loads, self._saves) if saves else (self._loads,):
                    if queue:
                        return queue.popleft()
                if self._closing:
                    return None
                self._changed.wait()

    def _run(
        self, transfer: Transfer, until_s: float, buffer_NZ: torch.Tensor,
        stream: "torch.cuda.Stream | None",
    ) -> None:  # fmt: skip
        if transfer.kind is Kind.FIND:
            self._find(transfer)
            return
        if stream is not None:  # after every kernel that wrote or read these pages
            stream.wait_stream(torch.cuda.default_stream(self._device))
        move = self._load if transfer.kind is Kind.LOAD else self._save
        for first in range(0, len(transfer.keys), self._count):
            if not move(transfer, first, until_s, buffer_NZ):
                break
        if stream is not None:
            stream.synchronize()

    def _find(self, transfer: Transfer) -> None:
        keys = transfer.keys
        where: list[int] = [NOWHERE] * len(keys)
        for number, tier in enumerate(self._tiers):
            missing = [i for i, tier_of in enumerate(where) if tier_of == NOWHERE]
            found = tier.holds([keys[i] for i in missing]) if missing else ()
            for i, held in zip(missing, found, strict=True):
                where[i] = number if held else NOWHERE
        transfer.where = where[: where.index(NOWHERE)] if NOWHERE in where else where

    def _load(
        self, transfer: Transfer, first: int, until_s: float, buffer_NZ: torch.Tensor
    ) -> bool:
        """Read the next payloads and write them to their pages; False at the first miss.

        A page that comes after `until_s` is one.
        """
        keys = transfer.keys[first : first + self._count]
        present: list[tuple[bool, ...]] = []
        whole = True
        while whole and len(present) < len(keys) and self._clock_s() < until_s:
            whole = self._read_some(transfer, first, len(keys), buffer_NZ, present)
        count = len(present)
        pages = [of_table[first : first + count].copy() for of_table in transfer.pages]
        for i, tables in enumerate(present):
            for of_table, here in zip(pages, tables, strict=True):
                of_table[i] = of_table[i] if here else NOWHERE
        begin_s = self._clock_s()
        if count:
            self._payloads.unpack(buffer_NZ[:count], pages)
            if self._device.type == "cuda":  # the buffer is filled again
                torch.cuda.current_stream(self._device).synchronize()
            _took(transfer, transfer.where[first], 0, self._clock_s() - begin_s)
        transfer.done += present
        return count == len(keys)

    def _read_some(
        self, transfer: Transfer, first: int, last: int, buffer_NZ: torch.Tensor,
        present: list[tuple[bool, ...]],
    ) -> bool:  # fmt: skip
        """Read the payloads that follow `present` and are in one tier, as many as it takes at once.

        Adds the tables that each has rows of to `present`; False after a miss in every tier.
        """
        begin = len(present)
        where = transfer.where[first + begin]
        others = transfer.where[
            first + begin : first + min(last, begin + self._tiers[where].at_once)
        ]
        end = begin + next((i for i, tier in enumerate(others) if tier != where), len(others))
        keys = transfer.keys[first + begin : first + end]
        payloads = [buffer_NZ[i].numpy().data for i in range(begin, end)]
        for number in range(where, len(self._tiers)):
            found = self._read_from(number, transfer, keys, payloads)
            present += found
            if len(found) == len(keys):
                return True
            keys, payloads = keys[len(found) :][:1], payloads[len(found) :][:1]
        return False

    def _read_from(
        self, number: int, transfer: Transfer, keys: Sequence[Key], payloads: list[memoryview]
    ) -> list[tuple[bool, ...]]:
        """Tables that payloads have rows of, read from a tier, up to the first that it misses.

        What comes from a slower tier is kept in the faster ones.
        """
        tier, begin_s = self._tiers[number], self._clock_s()
        count = tier.read_many(keys, payloads)
        if count:
            _took(transfer, number, count, self._clock_s() - begin_s)
        found: list[tuple[bool, ...]] = []
        for key, payload in zip(keys[:count], payloads, strict=False):
            tables = self._payloads.present(payload)
            if tables is None:
                tier.failures["layout"] += 1
                tier.remove(key)
                break
            found.append(tables)
        for faster in self._tiers[:number]:
            for key, payload in zip(keys[: len(found)], payloads, strict=False):
                faster.write(key, payload)
        return found

    def _save(
        self, transfer: Transfer, first: int, until_s: float, buffer_NZ: torch.Tensor
    ) -> bool:
        keys = transfer.keys[first : first + self._count]
        if self._at_once and all(all(tier.holds(keys)) for tier in self._tiers):
            transfer.done += [(True,)] * len(keys)
            return True
        pages = [of_table[first : first + len(keys)] for of_table in transfer.pages]
        self._payloads.pack(pages, buffer_NZ[: len(keys)])
        step = max(tier.at_once for tier in self._tiers)
        for begin in range(0, len(keys), step):
            if self._clock_s() >= until_s:
                return False
            some = keys[begin : begin + step]
            payloads = [buffer_NZ[begin + i].numpy().data for i in range(len(some))]
            of_tiers = [self._write(transfer, n, some, payloads) for n in range(len(self._tiers))]
            transfer.done += [(any(stored),) for stored in zip(*of_tiers, strict=True)]
        return True

    def _write(
        self, transfer: Transfer, number: int, keys: Sequence[Key], payloads: list[memoryview]
    ) -> list[bool]:
        """Which of these a tier has now."""
        tier, begin_s = self._tiers[number], self._clock_s()
        stored: list[bool] = []
        for begin in range(0, len(keys), tier.at_once):
            end = begin + tier.at_once
            stored += tier.write_many(keys[begin:end], payloads[begin:end])
        if count := sum(stored):
            _took(transfer, number, count, self._clock_s() - begin_s)
        return stored


def _took(transfer: Transfer, tier: int, pages: int, seconds: float) -> None:
    """Add to what a transfer took of a tier."""
    for i, (other, before, before_s) in enumerate(transfer.moved):
        if other == tier:
            transfer.moved[i] = Moved(tier, before + pages, before_s + seconds)
            return
    transfer.moved.append(Moved(tier, pages, seconds))
