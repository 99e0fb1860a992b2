"""The contract of `DraftLength`."""

from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.core.batch import Draft, StepTimes
from interlock.core.draft_length import DraftLength, DraftRound, StepLoad, StepOutcome

_chances = st.floats(0, 1)


@st.composite
def rated_drafts(draw: st.DrawFn) -> Draft:
    """A chain with an estimate for every candidate."""
    tokens = draw(st.lists(st.integers(0, 50), max_size=8))
    chances = draw(st.lists(_chances, min_size=len(tokens), max_size=len(tokens)))
    return Draft(tuple(tokens), confidence=tuple(chances))


@st.composite
def outcomes(draw: st.DrawFn) -> StepOutcome:
    """A finished step."""
    rounds = []
    for draft in draw(st.lists(rated_drafts(), max_size=4)):
        accepted = draw(st.integers(0, len(draft.tokens)))
        temperature = draw(st.sampled_from([0.0, 0.7, 1.0]))
        rounds.append(DraftRound(draft, tuple(range(accepted)), temperature))
    return StepOutcome(
        decodes=len(rounds) + draw(st.integers(0, 3)),
        prompt_tokens=draw(st.integers(0, 100)),
        rounds=rounds,
        drafting=draw(st.integers(0, 4)),
        proposed=draw(st.integers(0, 8)),
        times=StepTimes(*draw(st.tuples(*[st.floats(0, 0.1)] * 3))),
        seconds=draw(st.floats(0, 0.5)),
    )


class DraftLengthContract:
    """Every promise of `DraftLength`."""

    def make(self) -> DraftLength:
        """A fresh policy."""
        raise NotImplementedError

    def test_decisions_stay_in_range_whatever_was_observed(self) -> None:
        @settings(max_examples=60, deadline=None)
        @given(st.lists(outcomes(), max_size=6), st.lists(rated_drafts(), max_size=5), st.data())
        def check(seen: list[StepOutcome], drafts: list[Draft], data: st.DataObject) -> None:
            policy = self.make()
            for outcome in seen:
                policy.observe(outcome)
                most, decodes = data.draw(st.integers(0, 8)), data.draw(st.integers(1, 300))
                assert 0 <= policy.propose(most, decodes) <= most
                warm = [data.draw(st.sampled_from([0.0, 1.0])) for _ in drafts]
                load = StepLoad(max(1, len(drafts)), data.draw(st.booleans()), 20, warm)
                lengths = policy.verify(drafts, load)
                assert len(lengths) == len(drafts)
                for length, draft in zip(lengths, drafts, strict=True):
                    assert 0 <= length <= len(draft.tokens)

        check()

    def test_the_same_history_gives_the_same_decisions(self) -> None:
        @settings(max_examples=40, deadline=None)
        @given(st.lists(outcomes(), max_size=6), st.lists(rated_drafts(), max_size=5))
        def check(seen: list[StepOutcome], drafts: list[Draft]) -> None:
            found = []
            for policy in (self.make(), self.make()):
                decisions: list[object] = []
                for outcome in seen:
                    policy.observe(outcome)
                    decisions.append(policy.propose(7, 3))
                    load = StepLoad(5, False, 99, [0.0] * len(drafts))
                    decisions.append(list(policy.verify(drafts, load)))
                found.append(decisions)
            assert found[0] == found[1]

        check()

    def test_which_token_a_candidate_is_plays_no_part(self) -> None:
        @settings(max_examples=60, deadline=None)
        @given(st.lists(outcomes(), max_size=4), st.lists(rated_drafts(), max_size=5))
        def check(seen: list[StepOutcome], drafts: list[Draft]) -> None:
            others = [
                Draft(tuple(token + 1 for token in draft.tokens), confidence=draft.confidence)
                for draft in drafts
            ]
            policy = self.make()
            for outcome in seen:
                policy.observe(outcome)
            twin = self.make()
            for outcome in seen:
                twin.observe(outcome)
            load = StepLoad(len(drafts), False, 99, [1.0] * len(drafts))
            assert list(policy.verify(drafts, load)) == list(twin.verify(others, load))

        check()
