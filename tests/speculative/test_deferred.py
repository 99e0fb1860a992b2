"""Steps without drafting leave a drafter's rows for later: in the end nothing differs."""

import pytest

from interlock.core.draft_length import DraftLength
from interlock.core.registry import load_registry
from interlock.core.request import Status
from interlock.core.testing.every_draft import every_draft
from interlock.core.testing.tiny import write_tiny_checkpoint
from interlock.core.testing.tiny_heads import write_tiny_heads
from interlock.plugins.models import model_families
from tests.engine.serving import Client, asking, build, registry_with, serve, tokens
from tests.speculative.rebuild import Rebuilt

DRAFTS = {
    name: options
    for name, options in every_draft(load_registry()).items()
    if name in ("draft_model", "dflash", "dspark", "eagle", "eagle2", "eagle3", "mtp")
}
PAGE = 4


class Now(DraftLength):
    """Drafts in the steps whose number says so."""

    def __init__(self, drafts_in):
        self.drafts_in, self.steps = drafts_in, 0

    def propose(self, num_drafts, decodes):
        self.steps += 1
        return num_drafts if self.drafts_in(self.steps) else 0


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model with heads of every kind."""
    return written(tmp_path_factory.mktemp("heads") / "gqa", "gqa")


def written(folder, kind):
    families = model_families()
    write_tiny_checkpoint(folder, kind, families)
    write_tiny_heads(folder, families)
    return folder


def engine_of(model, draft, drafts_in, **settings):
    registry = registry_with("length", lambda _context: Now(drafts_in))
    return build(
        model, registry, spec=DRAFTS[draft], length="ours", page_size=PAGE, index="radix",
        **settings,
    )  # fmt: skip


def rarely(step):
    """Pauses of up to a page and a half."""
    return step % 7 == 0


def watched(engine):
    """How many rows each pass of the drafter took in, where it took in some."""
    taken, propose = [], engine.executor.drafter.propose

    def proposing(rows, context):
        taken.append((len(rows.tokens_N), any(rows.limits)))
        return propose(rows, context)

    engine.executor.drafter.propose = proposing
    return taken


def busy():
    """More than there are pages for: prompts on both sides of page edges, and samples."""
    found = [asking(i, tokens(3 + 5 * i, salt=i % 2), 14 + i, temperature=0.6) for i in range(5)]
    return [
        *found,
        asking(5, tokens(9), 12, temperature=0.9, n=3, ignore_eos=True),
    ]


@pytest.mark.parametrize("draft", DRAFTS)
def test_rows_that_waited_are_what_they_would_have_been(model, draft):
    """Chunks, preemptions, prefix hits and samples included; and outputs stay the same."""
    check_rows(model, draft)


@pytest.mark.parametrize("draft", ["draft_model", "mtp"])
def test_drafters_with_a_window_take_every_row_in_at_once(tmp_path, draft):
    """Their layers read older rows, which a window lets go of."""
    check_rows(written(tmp_path / "hybrid", "hybrid"), draft)


def check_rows(model, draft):
    plain = build(model, page_size=PAGE, index="radix")
    engine = engine_of(model, draft, rarely, num_pages=24, budget_tokens=20)
    rebuilt = Rebuilt(engine, within=1e-12)
    wanted = busy()
    found, right = serve(engine, *wanted), serve(plain, *wanted)
    assert {record.status for record in found.values()} == {Status.FINISHED}, [
        record.error for record in found.values() if record.error
    ]
    assert {key: one.output_token_ids for key, one in found.items()} == {
        key: one.output_token_ids for key, one in right.items()
    }
    assert rebuilt.checked
    assert engine.core.queues.counters.preemptions
    assert engine.core.queues.counters.chunks
    assert engine.core.cache.counters.hits


@pytest.mark.parametrize("draft", DRAFTS)
def test_drafts_after_a_pause_are_those_of_a_drafter_that_never_paused(model, draft):
    prompts = [asking(i, tokens(6 + 3 * i, salt=i), 32, ignore_eos=True) for i in range(3)]
    always, pausing = (
        engine_of(model, draft, drafts_in) for drafts_in in (lambda step: True, rarely)
    )
    first, second = Rebuilt(always, within=1e-12), Rebuilt(pausing, within=1e-12)
    assert outputs_of(always, prompts) == outputs_of(pausing, prompts)
    drafted = {at: draft for at, draft in second.drafted.items() if draft.tokens}
    both = drafted.keys() & first.drafted.keys()
    assert len(both) >= 4
    assert {at: drafted[at].tokens for at in both} == {at: first.drafted[at].tokens for at in both}


def outputs_of(engine, requests):
    return {index: one.output_token_ids for index, one in serve(engine, *requests).items()}


@pytest.mark.parametrize("draft", ["eagle", "dspark"])
def test_without_drafting_a_drafter_runs_once_a_page(model, draft):
    engine = engine_of(model, draft, lambda step: False)
    taken = watched(engine)
    client = Client(engine)
    client.submit(asking(0, tokens(PAGE + 1), 4 * PAGE, ignore_eos=True))
    client.finish()
    assert taken == [(PAGE + 1, False), *[(rows, False) for rows in (PAGE - 1, PAGE, PAGE, PAGE)]]


def test_a_drafter_without_cache_rows_is_not_asked_where_nobody_drafts(model):
    registry = registry_with("length", lambda _context: Now(lambda step: step % 5 == 0))
    engine = build(model, registry, spec="medusa", length="ours")
    taken = watched(engine)
    serve(engine, asking(0, tokens(9), 20, ignore_eos=True))
    assert taken
    assert all(wanted for _, wanted in taken)
