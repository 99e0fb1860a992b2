"""`interlock plugins`: what is listed, and what the kit says of good and bad components."""

import json
from dataclasses import replace

import pytest

from interlock.core.capabilities import CarriesTokens, Lossy, ServesAttention
from interlock.core.component import Component
from interlock.core.errors import ConfigError
from interlock.core.registry import Origin, load_registry
from interlock.core.scheduler import OrderPolicy
from interlock.core.seams import SEAMS
from interlock.core.testing.eviction_contract import a_run
from interlock.driver.conformance import CONTRACTS, contract_of
from interlock.driver.plugin_check import FAILED, PASSED, check, components_called
from interlock.driver.plugins_command import listing, listing_text, main
from interlock.plugins.cache.eviction import LRUConfig
from tests.config.conftest import install as install
from tests.config.conftest import registry_of as registry_of

STRANGE = Origin("strange", "3.1")


class Backwards(OrderPolicy):
    """Its keys change while a request waits."""

    def __init__(self):
        self._asked = 0

    def key(self, view):
        self._asked += 1
        return self._asked


@pytest.fixture
def with_component():
    """The installed components and one more."""

    def build(component):
        registry, key = load_registry(), (component.seam, component.name)
        return replace(
            registry,
            components={**registry.components, key: component},
            origins={**registry.origins, key: STRANGE},
            contracts={**registry.contracts, STRANGE: 1},
        )

    return build


def test_the_list_has_every_component_with_its_distribution_version_and_contract(capsys):
    registry = load_registry()
    assert main(["--json"], registry) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads(json.dumps(listing(registry)))
    assert {(c["seam"], c["name"]) for c in found["components"]} == set(registry.components)
    assert {c["seam"] for c in found["components"]} == set(SEAMS)
    assert "qwen3" in found["model_families"]
    rows = listing_text(registry).splitlines()
    assert any(row.split()[:2] == ["cache/eviction", "lru"] for row in rows)


def test_a_broken_plugin_is_listed_with_its_cause_and_what_it_offered(install, registry_of, capsys):
    body = """
@hookimpl
def interlock_components():
    yield Component("spec", "half", object, "m:b", "before the failure")
    raise OSError("disk")
"""
    registry = registry_of(install("half-there", body))
    assert main([], registry) == 0
    (line,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith("BROKEN")]
    assert (
        line == "BROKEN: half-there 1.0, half_there = half_there (offered spec=half): OSError: disk"
    )
    with pytest.raises(ConfigError, match="OSError: disk"):
        main(["check", "half-there"], registry)


def test_every_seam_has_a_contract():
    assert set(CONTRACTS) == set(SEAMS)


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("cache/eviction/lru", [("cache/eviction", "lru")]),
        ("cache/eviction=lru", [("cache/eviction", "lru")]),
        ("lru", [("cache/eviction", "lru")]),
        ("cpu", [("cache/tiers", "cpu"), ("cache/tiers/below", "cpu")]),
    ],
)
def test_a_component_is_called_with_or_without_its_seam(word, found):
    assert components_called(word, load_registry()) == found


def test_a_distribution_means_all_of_its_components():
    registry = load_registry()
    assert {key for key in components_called("Interlock", registry)} >= {("spec", "ngram")}


def test_an_unknown_name_says_where_the_list_is():
    with pytest.raises(ConfigError, match="'lruu'; `interlock plugins` lists them"):
        components_called("lruu", load_registry())


def test_a_policy_that_breaks_its_contract_fails_with_the_sentence_it_broke(with_component, capsys):
    build = lambda *_: Backwards()  # noqa: E731
    component = Component("scheduler/order", "backwards", LRUConfig, build, "")
    assert main(["check", "backwards"], with_component(component)) == 1
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "scheduler/order=backwards (strange 3.1)"
    assert "  passed  any requests can be sorted" in printed
    (failed,) = [line for line in printed if line.startswith(f"  {FAILED}")]
    assert failed.startswith("  FAILED  the key is fixed while a request waits: ")
    assert "assert" in failed
    assert printed[-1] == "  does NOT keep its contract: 1 passed, 1 failed, 0 skipped"


def test_one_that_cannot_be_built_says_why_and_is_not_said_to_pass(with_component, capsys):
    component = Component("cache/eviction", "gone", LRUConfig, "no_such_module:build", "")
    assert main(["check", "gone"], with_component(component)) == 1
    assert "NOT CHECKED: cache/eviction=gone (from strange 3.1) could not be built: " in (
        printed := capsys.readouterr().out
    )
    assert "No module named 'no_such_module'" in printed


def test_a_drafter_with_a_head_is_checked_on_a_shipped_model(capsys):
    assert main(["check", "spec/eagle", "spec.num_drafts=2"], load_registry()) == 0
    assert "keeps its contract: 5 passed, 0 failed" in capsys.readouterr().out


def test_a_drafter_without_a_head_for_a_shipped_model_says_what_to_do(with_component, capsys):
    registry = load_registry()
    eagle = replace(registry.components["spec", "eagle"], name="headless")
    missing = "spec.path=nowhere"
    assert main(["check", "spec/headless", missing], with_component(eagle)) == 1
    printed = capsys.readouterr().out
    assert "NOT CHECKED: spec=headless runs on no shipped model (model=tiny-gqa: " in printed
    assert "nowhere" in printed
    assert "FeatureDrafterContract" in printed


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        (["lru", "cache.eviction.recrod=x"], "did you mean 'record'"),
        (["lru", "--declare", "exampels=3"], "EvictionContract has no such attribute"),
    ],
)
def test_a_mistyped_option_or_declaration_is_refused(arguments, wrong, capsys):
    assert main(["check", *arguments], load_registry()) == 1
    assert wrong in capsys.readouterr().out


def test_options_are_for_one_component():
    with pytest.raises(ConfigError, match="name one of cache/tiers/cpu, cache/tiers/below/cpu"):
        main(["check", "cpu", "cache.tiers.capacity_mib=1"], load_registry())


def test_options_and_declarations_reach_the_contract(tmp_path):
    registry = load_registry()
    contract = contract_of(registry, "cache/eviction", "ttl", ["cache.eviction.ttl_s=3"],
                           {"examples": 2}, tmp_path)  # fmt: skip
    assert contract.examples == 2
    policy = contract().make()
    policy.add(a_run(0, created_s=0.0))
    assert policy.expired(2.9) is None
    assert policy.expired(3.1) is not None


def test_what_a_component_declares_decides_which_promises_are_tested(tmp_path):
    registry = load_registry()

    def of(seam, name):
        return contract_of(registry, seam, name, [], {}, tmp_path)

    assert of("attention", "mla").forms == ("latent",)
    assert ServesAttention("latent") in registry.components["attention", "mla"].provides(
        registry.components["attention", "mla"].config(), None
    )
    assert of("attention", "reference").serves_sinks
    assert not of("attention", "mla").serves_sinks
    assert (of("spec/verifier", "ratio").trees, of("spec/verifier", "recursive").trees) == (
        False,
        True,
    )
    assert not of("spec/verifier", "typical").lossless
    assert Lossy() in registry.components["spec/verifier", "typical"].provides(None, None)
    assert of("structured", "none").refuses_everything
    assert of("workload", "synthetic").seeded
    assert of("workload", "synthetic").carries_tokens
    assert CarriesTokens() not in registry.components["workload", "trace"].provides(None, None)


def test_a_folder_of_its_own_is_given_to_each_instance(tmp_path):
    options = ["cache.tiers.directory={scratch}", "cache.tiers.sync=false"]
    contract = contract_of(load_registry(), "cache/tiers", "disk", options, {}, tmp_path)
    first, second = contract().make(), contract().make()
    assert first.write(bytes(32), memoryview(b"x" * 8))
    assert list(second.keys()) == []
    first.close()
    second.close()


@pytest.mark.parametrize("key", [("scheduler/victim", "latest"), ("spec/length", "fixed")])
def test_a_built_in_component_passes(key):
    result = check(load_registry(), key)
    assert result.passed
    assert {test.outcome for test in result.tests} == {PASSED}
