"""The contract of a store of pages: subclass `TierContract`, define `make`, run pytest."""

import hashlib
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import settings, strategies
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from interlock.core.tier import KEY_BYTES, Key, KVTier

PAYLOAD_BYTES = 32 << 10
ENTRIES = 8
"""How many payloads of that size every store in a test has room for."""


def key_of(number: int) -> Key:
    """One of many keys, each for one content."""
    return hashlib.blake2b(str(number).encode(), digest_size=KEY_BYTES).digest()


def payload_of(number: int, size: int = PAYLOAD_BYTES) -> bytes:
    """The content that belongs to `key_of(number)`."""
    return random.Random(number).randbytes(size)


def put(store: KVTier, number: int, size: int = PAYLOAD_BYTES) -> bool:
    """Write content `number` from a buffer that is another's right afterwards."""
    buffer = bytearray(payload_of(number, size))
    written = store.write(key_of(number), memoryview(buffer))
    buffer[:] = bytes(size)
    return written


def got(store: KVTier, number: int, size: int = PAYLOAD_BYTES) -> bool:
    """Read content `number`; what is read must be right."""
    buffer = bytearray(b"\xa5" * size)
    found = store.read(key_of(number), memoryview(buffer))
    assert not found or buffer == payload_of(number, size), "wrong bytes"
    return found


def held(store: KVTier, numbers: Sequence[int]) -> list[bool]:
    """Which of these the store says that it holds."""
    return list(store.holds([key_of(number) for number in numbers]))


class TierContract:
    """Every promise of `KVTier`."""

    examples = 25
    """Random histories that the state machine tries."""
    durable = False
    """Entries outlive the process: then define `reopen` too."""
    damages: Sequence[str] = ()
    """Kinds of damage that can happen to a stored entry: then define `damage` too."""

    def make(self) -> KVTier:
        """A new empty store with room for at least 8 payloads of 32 KiB."""
        raise NotImplementedError

    def reopen(self, store: KVTier) -> KVTier:
        """Close the store, and open one that finds its entries, as a new process would."""
        raise NotImplementedError

    def damage(self, store: KVTier, key: Key, kind: str) -> None:
        """Do such damage to the stored entry behind the store's back."""
        raise NotImplementedError

    def test_empty_store_holds_nothing_and_misses_without_a_failure(self) -> None:
        store = self.make()
        assert held(store, [1, 2]) == [False, False]
        assert not got(store, 1)
        assert (list(store.keys()), store.used_bytes(), dict(store.failures)) == ([], 0, {})
        store.close()

    @pytest.mark.parametrize("size", [1, 63, 4096, 65537])
    def test_what_is_written_is_read_byte_for_byte_and_stays(self, size: int) -> None:
        store = self.make()
        assert put(store, 1, size)
        assert held(store, [1, 2]) == [True, False]
        assert got(store, 1, size)
        assert got(store, 1, size)
        assert (list(store.keys()), store.used_bytes()) == ([key_of(1)], size)
        store.close()

    def test_payloads_may_be_of_numbers_of_several_bytes(self) -> None:
        store = self.make()
        written: memoryview[Any] = memoryview(bytearray(payload_of(1))).cast("d")
        read = memoryview(bytearray(PAYLOAD_BYTES)).cast("i")
        assert store.write(key_of(1), written)
        assert store.read(key_of(1), read)
        assert bytes(read) == payload_of(1)
        store.close()

    def test_keys_that_differ_in_one_bit_are_different_entries(self) -> None:
        store = self.make()
        near = [bytes([*key_of(1)[:i], key_of(1)[i] ^ 1, *key_of(1)[i + 1 :]]) for i in (0, 31)]
        assert put(store, 1)
        assert list(store.holds(near)) == [False, False]
        assert not any(store.read(key, memoryview(bytearray(PAYLOAD_BYTES))) for key in near)
        store.close()

    def test_writing_a_key_again_keeps_one_entry(self) -> None:
        store = self.make()
        assert put(store, 1)
        assert put(store, 1)
        assert store.used_bytes() == PAYLOAD_BYTES
        assert got(store, 1)
        store.close()

    def test_several_entries_at_once_are_written_and_read_up_to_the_first_miss(self) -> None:
        store = self.make()
        numbers = range(min(4, ENTRIES))
        keys = [key_of(number) for number in numbers]
        sources = [bytearray(payload_of(number)) for number in numbers]
        assert store.write_many(keys, [memoryview(source) for source in sources]) == [True] * len(
            keys
        )
        for source in sources:
            source[:] = bytes(PAYLOAD_BYTES)
        into = [bytearray(PAYLOAD_BYTES) for _ in numbers]
        assert store.read_many(keys, [memoryview(one) for one in into]) == len(keys)
        assert into == [payload_of(number) for number in numbers]
        store.remove(keys[2])
        into = [bytearray(PAYLOAD_BYTES) for _ in numbers]
        assert store.read_many(keys, [memoryview(one) for one in into]) == 2
        assert into[:2] == [payload_of(0), payload_of(1)]
        assert (store.write_many([], []), store.read_many([], [])) == ([], 0)
        store.close()

    def test_removed_entry_is_a_miss_and_removing_nothing_does_nothing(self) -> None:
        store = self.make()
        assert put(store, 1)
        store.remove(key_of(1))
        store.remove(key_of(2))
        assert held(store, [1]) == [False]
        assert not got(store, 1)
        assert (list(store.keys()), store.used_bytes(), dict(store.failures)) == ([], 0, {})
        store.close()

    @pytest.mark.parametrize("wanted", [PAYLOAD_BYTES - 1, PAYLOAD_BYTES + 1])
    def test_entry_of_another_size_than_wanted_is_a_counted_miss_and_removed(
        self, wanted: int
    ) -> None:
        store = self.make()
        assert put(store, 1)
        assert not store.read(key_of(1), memoryview(bytearray(wanted)))
        assert store.failures.total() == 1
        assert held(store, [1]) == [False]
        assert not got(store, 1)
        store.close()

    def test_full_store_stays_within_its_capacity_and_takes_what_is_new(self) -> None:
        store = self.make()
        if store.capacity_bytes is None:
            store.close()
            pytest.skip("the store sets no limit of its own")
        for number in range(3 * store.capacity_bytes // PAYLOAD_BYTES):
            assert put(store, number)
            assert got(store, number)
            assert store.used_bytes() <= store.capacity_bytes
        assert store.used_bytes() == len(list(store.keys())) * PAYLOAD_BYTES
        store.close()

    def test_payload_larger_than_the_store_is_refused_and_costs_no_entry(self) -> None:
        store = self.make()
        if store.capacity_bytes is None:
            store.close()
            pytest.skip("the store sets no limit of its own")
        assert put(store, 1)
        assert not put(store, 2, store.capacity_bytes + 1)
        assert store.failures.total() == 1
        assert got(store, 1)
        assert not got(store, 2, store.capacity_bytes + 1)
        store.close()

    def test_threads_never_read_wrong_bytes_and_the_account_adds_up(self) -> None:
        store = self.make()
        numbers = range(3 * ENTRIES)

        def use(thread: int) -> None:
            dice = random.Random(thread)
            for _ in range(60):
                action, number = dice.random(), dice.choice(numbers)
                if action < 0.45:
                    put(store, number)
                elif action < 0.9:
                    got(store, number)
                else:
                    store.remove(key_of(number))

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(use, range(4)))
        assert store.used_bytes() == len(list(store.keys())) * PAYLOAD_BYTES
        for number in numbers:
            got(store, number)
        store.close()

    def test_entries_outlive_the_process_where_the_store_promises_it(self) -> None:
        store = self.make()
        if not self.durable:
            store.close()
            pytest.skip("the store ends with its process")
        for number in range(ENTRIES):
            assert put(store, number)
        store.remove(key_of(3))
        store = self.reopen(store)
        expected = [number != 3 for number in range(ENTRIES)]
        assert held(store, range(ENTRIES)) == expected
        assert [got(store, number) for number in range(ENTRIES)] == expected
        store.close()

    def test_damaged_entry_is_a_counted_miss_once_and_can_be_written_again(self) -> None:
        for kind in self.damages:
            store = self.make()
            assert put(store, 1)
            assert put(store, 2)
            self.damage(store, key_of(1), kind)
            assert not got(store, 1), kind
            assert store.failures.total() == 1, kind
            assert held(store, [1, 2]) == [False, True], kind
            assert store.used_bytes() == PAYLOAD_BYTES, kind
            assert put(store, 1), kind
            assert got(store, 1), kind
            assert got(store, 2), kind
            store.close()

    def test_any_history_loses_entries_at_most(self) -> None:
        run_state_machine_as_test(
            lambda: _Machine(self),  # type: ignore[arg-type]  # any factory works
            settings=settings(
                max_examples=self.examples, stateful_step_count=30, deadline=None, derandomize=True
            ),
        )


class _Machine(RuleBasedStateMachine):
    """The model: what was written and not removed since. A store may forget, but never lie."""

    def __init__(self, contract: TierContract) -> None:
        super().__init__()
        self.contract = contract
        self.store = contract.make()
        self.written: set[int] = set()

    @rule(number=strategies.integers(0, 40))
    def write(self, number: int) -> None:
        assert put(self.store, number)
        assert held(self.store, [number]) == [True]
        self.written.add(number)

    @rule(number=strategies.integers(0, 40))
    def read(self, number: int) -> None:
        [there] = held(self.store, [number])
        assert not there or number in self.written, "holds what was never written"
        assert got(self.store, number) == there

    @rule(number=strategies.integers(0, 40))
    def remove(self, number: int) -> None:
        self.store.remove(key_of(number))
        self.written.discard(number)
        assert held(self.store, [number]) == [False]

    @precondition(lambda self: self.contract.durable)
    @rule()
    def restart(self) -> None:
        before = held(self.store, range(41))
        self.store = self.contract.reopen(self.store)
        assert held(self.store, range(41)) == before

    @precondition(lambda self: self.contract.damages and self.written)
    @rule(data=strategies.data())
    def damage(self, data: Any) -> None:
        number = data.draw(strategies.sampled_from(sorted(self.written)))
        if held(self.store, [number]) == [True]:
            kind = data.draw(strategies.sampled_from(sorted(self.contract.damages)))
            self.contract.damage(self.store, key_of(number), kind)
            assert not got(self.store, number)
        self.written.discard(number)

    @invariant()
    def the_account_adds_up(self) -> None:
        keys = list(self.store.keys())
        assert set(keys) <= {key_of(number) for number in self.written}
        assert len(set(keys)) == len(keys)
        assert self.store.used_bytes() == len(keys) * PAYLOAD_BYTES
        if self.store.capacity_bytes is not None:
            assert self.store.used_bytes() <= self.store.capacity_bytes

    def teardown(self) -> None:
        self.store.close()
