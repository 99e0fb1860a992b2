"""Plugins that break in unusual places: left out, or named when they are chosen."""

import pytest

from interlock.core.assemble import build_engine
from interlock.core.batch import Draft
from interlock.core.drafter import TokenDrafter
from interlock.core.errors import ContractError, PluginError
from interlock.core.request import Request
from interlock.core.workload import Workload
from interlock.driver.run import make_entries
from tests.config.conftest import install, registry_of
from tests.engine.serving import asking, build, configured, registry_with, serve

__all__ = ["install", "registry_of"]  # fixtures


class Drafts(TokenDrafter):
    """Proposes what the test says."""

    def __init__(self, make):
        self.make = make
        self.num_drafts = 3
        self.lookback_tokens = 0
        self.max_positions = None

    def propose(self, request, tokens, limit):
        return self.make(tokens, limit)


def engine_drafting(tiny, make):
    return build(tiny, registry_with("spec", lambda _context: Drafts(make)), spec="ours")


@pytest.mark.parametrize(
    "proposal",
    [None, [1, 2], Draft((1.5,)), Draft(("a",)), Draft((10**30,)), Draft((-1,)), Draft((1,), (4,))],
)
def test_what_is_no_draft_stops_the_engine_with_the_drafters_name(tiny, proposal):
    engine = engine_drafting(tiny, lambda _tokens, _limit: proposal)
    with pytest.raises(ContractError, match="Drafts proposed"):
        serve(engine, asking(0, (1, 2, 3), 8))


def test_more_candidates_than_asked_for_are_cut(tiny):
    engine = engine_drafting(tiny, lambda _tokens, _limit: Draft(tuple(range(50))))
    plain = serve(build(tiny), asking(0, (1, 2, 3), 8))[0]
    assert serve(engine, asking(0, (1, 2, 3), 8))[0].output_token_ids == plain.output_token_ids


def test_a_drafter_cannot_write_to_the_tokens_of_its_request(tiny):
    def overwrite(tokens, _limit):
        tokens[:] = 0

    with pytest.raises(ValueError, match="read-only"):
        serve(engine_drafting(tiny, overwrite), asking(0, (1, 2, 3), 8))


class Entries(Workload):
    """A workload of whatever the test says."""

    def __init__(self, entries):
        self.entries = entries

    def requests(self, context):
        return self.entries


@pytest.mark.parametrize(
    ("entries", "place"),
    [([5], 0), ([Request(0, (1,)), Request(0, (2,))], 1), ([Request(3, (1,))], 0)],
)
def test_a_workload_that_numbers_its_requests_wrongly_is_named(entries, place):
    registry = registry_with("workload", lambda _context: Entries(entries))
    config = configured(None, registry, workload="ours")
    with pytest.raises(ContractError, match=rf"Entries\.requests gave .* at place {place}"):
        make_entries(config, build_engine(config, registry))


def test_a_requirement_that_fails_is_named_when_its_component_is_chosen():
    def broken(_composition):
        raise ZeroDivisionError("by zero")

    registry = registry_with(
        "spec", lambda _context: None, requires=lambda _config, _model: (broken,)
    )
    build_engine(configured(None, registry), registry)
    with pytest.raises(PluginError, match="spec=ours cannot judge a composition: ZeroDivisionErr"):
        build_engine(configured(None, registry, spec="ours"), registry)


def test_a_plugin_with_a_wrong_config_folder_is_left_out(install, registry_of):
    body = "@hookimpl\ndef interlock_config_dirs():\n    return [5]\n"
    (broken,) = registry_of(install("wrongdir", body)).broken
    assert "interlock_config_dirs gave 5, not a text" in str(broken)


def test_a_step_observer_that_fails_is_named_with_the_cause():
    def watching(_plan, _result):
        raise LookupError("no such step")

    registry = registry_with("spec", lambda _context: None)
    registry.observers = [watching]  # of this copy alone
    engine = build_engine(configured(None, registry), registry)
    with pytest.raises(ContractError, match=r"observer .*watching failed: LookupError: no such st"):
        serve(engine, asking(0, (1, 2, 3), 2))


def test_a_component_without_memory_is_not_called_broken():
    def build_it(_context):
        raise MemoryError("no room")

    registry = registry_with("spec", build_it)
    with pytest.raises(MemoryError):
        registry.chosen("spec", "ours").build(None)
