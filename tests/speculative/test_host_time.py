"""The time of drafters that propose on the host is part of what drafting costs."""

import time

from interlock.core.batch import Draft
from interlock.core.draft_length import DraftLength
from interlock.core.drafter import TokenDrafter
from tests.engine.serving import asking, build, outputs, plus, registry_with, serve, solo

SECONDS = 0.005


class Slow(TokenDrafter):
    """The newest token again, after a while."""

    num_drafts = 3

    def propose(self, request, tokens, limit):
        time.sleep(SECONDS)
        return Draft((int(tokens[-1]),) * min(limit, self.num_drafts))


class Noting(DraftLength):
    """Drafts in every other step, and keeps what it is told."""

    def __init__(self):
        self.wanted, self.seen = 0, []

    def propose(self, num_drafts, decodes):
        self.wanted = 2 - self.wanted
        return self.wanted

    def observe(self, outcome):
        self.seen.append((outcome.drafting, outcome.proposed, outcome.times.draft_s))


def test_a_step_has_the_time_of_the_proposals_that_it_verifies(model_of):
    policy, requests = Noting(), [asking(i, 5, 12, ignore_eos=True) for i in range(2)]
    drafters = registry_with("spec", lambda _context: Slow())
    length = registry_with("length", lambda _context: policy).components["spec/length", "ours"]
    drafters.components = {**plus(length).components, **drafters.components}
    drafters.origins = {**plus(length).origins, **drafters.origins}
    engine = build(model_of(), drafters, spec="ours", length="ours")
    times = []
    engine.watch(lambda _plan, result: times.append(result.times.draft_s))
    assert outputs(serve(engine, *requests)) == solo(model_of(), requests)
    assert [seconds for _, _, seconds in policy.seen] == times
    asked = [(requests, longest, s) for requests, longest, s in policy.seen if requests]
    assert all(s >= requests * SECONDS for requests, _, s in asked)
    assert {longest for _, longest, _ in asked} == {2}
    assert {requests for requests, _, _ in asked} == {1, 2}
    assert [longest for requests, longest, _ in policy.seen if not requests].count(0) >= 4
