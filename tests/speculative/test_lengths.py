from interlock.core.testing.draft_length_contract import DraftLengthContract
from interlock.plugins.speculative.fixed_length import FixedLength


class TestFixed(DraftLengthContract):
    def make(self):
        return FixedLength(3)


def test_a_fixed_length_is_at_most_what_the_drafter_makes():
    assert [FixedLength(3).propose(most, 1) for most in (0, 2, 3, 9)] == [0, 2, 3, 3]
    assert [FixedLength(None).propose(most, 1) for most in (0, 9)] == [0, 9]
