"""The cache group declares its components, what they provide and what they require."""

import subprocess
import sys

import pytest

from interlock.conf.decode import decode
from interlock.core.capabilities import Composition, KeepsPages, KnowsContent, SharesPages
from interlock.core.component import BuildContext, Component
from interlock.core.model import ModelDescription
from interlock.plugins.cache import components
from interlock.plugins.cache.block_hash import BlockHashIndex
from interlock.plugins.cache.chain_keys import DigestKeys, FastKeys

COMPONENTS = {(component.seam, component.name): component for component in components()}


def provided(component: Component) -> set[object]:
    return set(component.provides(component.config(), None))


def reasons(component: Component, *capabilities: object) -> list[str]:
    composition = Composition({}, frozenset(capabilities), None)
    requirements = component.requires(component.config(), None)
    return [reason for requirement in requirements if (reason := requirement(composition))]


def context() -> BuildContext:
    model = ModelDescription.__new__(ModelDescription)
    return BuildContext(model=model, num_pages=9)


def test_the_choices_of_the_cache_seams_are_declared() -> None:
    assert set(COMPONENTS) >= {
        ("cache/allocator", "paged"), ("cache/allocator", "contiguous"),
        ("cache/allocator", "buddy"),
        ("cache/index", "block_hash"), ("cache/index", "radix"), ("cache/index", "none"),
        ("cache/eviction", "lru"), ("cache/eviction", "fifo"),
    }  # fmt: skip


@pytest.mark.parametrize(
    "component",
    [c for (seam, _), c in COMPONENTS.items() if seam in ("cache/allocator", "cache/index")],
    ids=lambda c: f"{c.seam}={c.name}",
)
def test_component_is_built_from_its_default_config(component: Component) -> None:
    instance = component.make(component.config(), context())
    assert component.config().name == component.name
    assert getattr(instance, "num_pages", 9) == 9 or instance.num_pages() == 0


@pytest.mark.parametrize("name", ["block_hash", "radix"])
def test_index_that_keeps_pages_needs_pages_that_can_be_shared(name: str) -> None:
    component = COMPONENTS["cache/index", name]
    assert provided(component) == {KeepsPages(), KnowsContent()}
    assert reasons(component, SharesPages()) == []
    (reason,) = reasons(component)
    assert reason.startswith(f"cache/index={name} keeps pages for later requests, which needs")


def test_parts_of_pages_do_not_go_with_tiers() -> None:
    component = COMPONENTS["cache/index", "radix"]
    requirements = [*component.requires(component.config(partial_pages=True), None)]
    for tier, refused in [("none", []), ("disk", ["cache/tiers=disk moves pages while steps run"])]:
        chosen = {"cache/tiers": (tier, None)}
        composition = Composition(chosen, frozenset({SharesPages()}), None)
        found = [reason for needed in requirements if (reason := needed(composition))]
        assert [reason.split(",")[0] for reason in found] == refused


def test_no_index_goes_with_any_allocator() -> None:
    component = COMPONENTS["cache/index", "none"]
    assert provided(component) == set()
    assert reasons(component) == []


def test_only_the_paged_allocator_shares_pages() -> None:
    assert provided(COMPONENTS["cache/allocator", "paged"]) == {SharesPages()}
    assert provided(COMPONENTS["cache/allocator", "contiguous"]) == set()


@pytest.mark.parametrize(
    ("name", "kind", "trusted"),
    [("fast", FastKeys, False), ("blake2b", DigestKeys, True), ("sha256", DigestKeys, True)],
)
def test_hash_option_selects_the_keys(name: str, kind: type, trusted: bool) -> None:
    component = COMPONENTS["cache/index", "block_hash"]
    problems: list[str] = []
    config = decode(component.config, {"hash": name}, "cache.index", problems)
    index = component.make(config, context())
    assert isinstance(index, BlockHashIndex)
    assert isinstance(index._chain, kind)
    assert index._chain.trusted is trusted
    decode(component.config, {"hash": "md5"}, "cache.index", problems)
    assert problems == ["cache.index.hash='md5' is not one of fast, blake2b, sha256"]


def test_declaring_the_components_imports_no_torch() -> None:
    code = "import sys, interlock.plugins.cache; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
