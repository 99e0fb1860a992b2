"""The contracts of `LoadPolicy`, of `PricedTier`, and of doing without a store."""

from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.core.load_policy import LoadOffer, LoadPolicy
from interlock.core.tier import KEY_BYTES, KVTier, PricedTier
from interlock.core.transfers import Moved

NOTHING = memoryview(bytearray())
_seconds = st.floats(0, 1e3)


@st.composite
def offers(draw: st.DrawFn) -> LoadOffer:
    """A prompt with pages in up to three tiers."""
    size = draw(st.sampled_from([1, 16, 512]))
    tiers = draw(st.lists(st.integers(0, 2), min_size=1, max_size=20))
    return LoadOffer(
        tiers=tiers,
        page_size=size,
        payload_bytes=draw(st.integers(1, 1 << 30)),
        pending_tokens=len(tiers) * size + draw(st.integers(1, 2000)),
        budget_tokens=draw(st.integers(1, 4096)),
        backlog_tokens=draw(st.integers(0, 10_000)),
        queued=draw(st.tuples(*[st.integers(0, 500)] * 3)),
        behind=draw(st.integers(0, 100)),
        waited_s=draw(_seconds),
        limit_s=draw(st.none() | _seconds),
        timeout_s=draw(st.floats(1e-3, 60)),
    )


@st.composite
def loads(draw: st.DrawFn) -> tuple[list[int], list[Moved], float]:
    """What became of a load: nothing, some of it, or everything."""
    wanted = draw(st.lists(st.integers(0, 2), min_size=1, max_size=20))
    moved = [Moved(t, draw(st.integers(1, wanted.count(t))), draw(_seconds)) for t in {*wanted}]
    return wanted, draw(st.sampled_from([[], moved[:1], moved])), draw(_seconds)


class LoadPolicyContract:
    """Every promise of `LoadPolicy`."""

    def make(self) -> LoadPolicy:
        """A fresh policy."""
        raise NotImplementedError

    def test_choice_is_a_number_of_the_offered_pages_whatever_was_measured(self) -> None:
        steps = st.tuples(st.integers(1, 4096), _seconds)

        @settings(max_examples=60, deadline=None)
        @given(st.lists(steps, max_size=5), st.lists(loads(), max_size=5), st.lists(offers()))
        def check(
            steps: list[tuple[int, float]],
            loads: list[tuple[list[int], list[Moved], float]],
            offers: list[LoadOffer],
        ) -> None:
            policy = self.make()
            for step in steps:
                policy.stepped(*step)
            for load in loads:
                policy.loaded(*load)
            for offer in offers:
                pages = policy.choose(offer)
                assert isinstance(pages, int)
                assert 0 <= pages <= len(offer.tiers)

        check()

    def test_facts_are_finite_numbers_that_never_fall(self) -> None:
        @settings(max_examples=30, deadline=None)
        @given(st.lists(offers(), max_size=6), loads())
        def check(offers: list[LoadOffer], load: tuple[list[int], list[Moved], float]) -> None:
            policy = self.make()
            before = dict(policy.facts())
            for offer in offers:
                policy.stepped(100, 0.5)
                policy.choose(offer)
                policy.loaded(*load)
                facts = policy.facts()
                for name, value in facts.items():
                    assert before.get(name, 0) <= value < float("inf")
                before = dict(facts)

        check()


class PricedTierContract:
    """Every promise of `PricedTier`: a set of keys within its capacity, and a price."""

    def make(self) -> PricedTier:
        """An empty store with room for at least 8 payloads, and for less than 1000."""
        raise NotImplementedError

    def test_keys_that_were_written_are_held_until_removed_or_evicted(self) -> None:
        tier, keys = self.make(), [bytes([n]) * KEY_BYTES for n in range(8)]
        assert not any(tier.holds(keys))
        assert all(tier.write(key, NOTHING) for key in keys)
        assert all(tier.holds(keys))
        assert all(tier.read(key, NOTHING) for key in keys)
        tier.remove(keys[3])
        assert not tier.read(keys[3], NOTHING)
        assert set(tier.keys()) == {*keys} - {keys[3]}

    def test_full_store_stays_within_its_capacity(self) -> None:
        tier = self.make()
        assert tier.capacity_bytes is not None
        for n in range(1000):
            tier.write(n.to_bytes(KEY_BYTES, "big"), NOTHING)
            assert tier.used_bytes() <= tier.capacity_bytes
        assert tier.read((999).to_bytes(KEY_BYTES, "big"), NOTHING)
        assert not tier.read((0).to_bytes(KEY_BYTES, "big"), NOTHING)

    def test_more_bytes_take_longer(self) -> None:
        tier = self.make()
        assert 0 <= tier.seconds(1) < tier.seconds(1 << 30) < tier.seconds(1 << 32)


class NoStoreContract:
    """Doing without: nothing is built."""

    def make(self) -> Callable[[Any, Any], KVTier | None]:
        """The component's build."""
        raise NotImplementedError

    def test_nothing_is_built(self) -> None:
        assert self.make()(None, None) is None
