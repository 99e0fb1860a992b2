"""How long drafts are where a request, its pages or its positions end."""

import pytest

from interlock.core.batch import Draft
from interlock.core.draft_length import DraftLength
from interlock.core.drafter import TokenDrafter
from tests.engine.serving import Client, asking, build, outputs, plus, registry_with, serve, solo


class Bush(TokenDrafter):
    """Trees of two levels, `width` siblings on each, never right."""

    depth = 2

    def __init__(self, width):
        self.num_drafts = 2 * width
        self.drafts = []

    def propose(self, request, tokens, limit):
        width = self.num_drafts // 2
        nodes = tuple(range(10, 10 + self.num_drafts))
        parents = (-1,) * width + (0,) * width
        draft = Draft(nodes, parents).first(limit)
        self.drafts.append((len(tokens), len(draft.tokens)))
        return draft


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_a_tree_stays_whole_until_its_longest_path_is_too_long(model_of, page_size):
    """Of 20 tokens the last but two are drafted for with all 12 candidates."""
    bush, request = Bush(6), asking(0, 9, 20, ignore_eos=True)
    registry = registry_with("spec", lambda _context: bush)
    engine = build(model_of(), registry, spec="ours", page_size=page_size, num_pages=128)
    assert outputs(serve(engine, request)) == solo(model_of(), [request])
    for length, candidates in bush.drafts:
        left = 9 + 20 - length
        assert candidates == (12 if left >= 3 else left - 1)
    assert sum(candidates == 12 for _, candidates in bush.drafts) >= 15


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_no_candidate_lies_beyond_the_pages_of_the_longest_request(model_of, page_size):
    bush, request = Bush(6), asking(0, 9, 23, ignore_eos=True)
    registry = registry_with("spec", lambda _context: bush)
    engine = build(
        model_of(), registry, spec="ours", page_size=page_size, num_pages=128, max_model_len=32
    )
    assert outputs(serve(engine, request)) == solo(model_of(), [request])
    assert all(length + candidates <= 32 for length, candidates in bush.drafts)


class Half(DraftLength):
    """Verifies half of every draft."""

    def propose(self, num_drafts, decodes):
        return num_drafts

    def verify(self, drafts, load):
        return [len(draft.tokens) // 2 for draft in drafts]


class Chain(TokenDrafter):
    num_drafts = 8

    def propose(self, request, tokens, limit):
        return Draft((10,) * min(limit, 8))


def test_pages_are_asked_for_before_a_draft_is_cut(model_of):
    """Whether a draft is verified at all must not depend on what a policy cut it to."""
    request = asking(0, 7, 30, ignore_eos=True)
    registry = registry_with("spec", lambda _context: Chain())
    component = registry_with("length", lambda _context: Half()).components["spec/length", "ours"]
    registry.components = {**plus(component).components, **registry.components}
    registry.origins = {**plus(component).origins, **registry.origins}
    engine = build(
        model_of(),
        registry,
        spec="ours",
        length="ours",
        page_size=4,
        num_pages=10,
        max_model_len=40,
    )
    verified = []
    execute = engine.executor.execute

    def watching(plan):
        (start,) = plan.batch.starts
        verified.append((int(start), len(plan.batch.draft(0).tokens)))
        return execute(plan)

    engine.executor.execute = watching
    client = Client(engine)
    client.submit(request)
    assert outputs(client.finish()) == solo(model_of(), [request])
    for start, candidates in verified:
        left = 37 - start - 1
        uncut = min(8, left - 1) if start >= 7 else 0
        assert candidates == (uncut // 2 if start + 1 + uncut <= 40 else 0)
