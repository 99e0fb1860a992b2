"""Policies that remember what they evicted need an index by whose keys it is known again."""

import pytest

from interlock.core.capabilities import KeepsPages, KnowsContent
from interlock.core.errors import ConfigError, ContractError
from interlock.plugins.cache.eviction import BeladyConfig, LRUConfig
from interlock.plugins.cache.radix import RadixIndex
from tests.engine.serving import build, registry_with


class Keyless(RadixIndex):
    """Keeps no keys of pages."""

    def keep_keys(self):
        return False


def index(*provided):
    return registry_with("index", lambda _context: Keyless(), provides=lambda *_: provided)


REMEMBER = {
    "arc": "arc", "s3fifo": "s3fifo", "lruk": "lruk", "belady": BeladyConfig(path="uses"),
    "lru that is recorded": LRUConfig(record="uses"),
}  # fmt: skip


@pytest.mark.parametrize("policy", REMEMBER.values(), ids=REMEMBER)
def test_policies_that_remember_are_refused_with_what_would_work(policy):
    with pytest.raises(ConfigError, match="remembers what it evicted") as caught:
        build(None, index(KeepsPages()), index="ours", eviction=policy)
    for works in ("cache/index=radix", "cache/index=block_hash", "cache/eviction=fifo"):
        assert works in str(caught.value)


@pytest.mark.parametrize("policy", ["lru", "fifo", "lfu", "priority"])
def test_policies_that_forget_go_with_any_index(policy):
    build(None, index(KeepsPages()), index="ours", eviction=policy).close()


def test_an_index_that_keeps_no_pages_needs_no_keys():
    build(None, index="none", eviction="arc").close()


def test_an_index_that_promised_keys_and_keeps_none_is_named():
    with pytest.raises(ContractError, match="Keyless keeps no keys of pages, which it promised"):
        build(None, index(KeepsPages(), KnowsContent()), index="ours", eviction="arc")
