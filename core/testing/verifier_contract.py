"""The contract of `Verifier`, on a target whose law depends on the token before."""

from collections.abc import Iterable, Sequence
from itertools import accumulate

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.core.batch import NO_DRAFT, Draft
from interlock.core.streams import Purpose, Uniforms, uniforms
from interlock.core.testing.chi_square import assert_follows
from interlock.core.verifier import TargetRows, Verdict, Verifier

Laws = Sequence[Sequence[float]]
"""Laws[t]: probabilities of the token after token t."""

ANCHOR = 0
"""The last committed token of every request here."""

LAWS: Laws = ((0.5, 0.2, 0.3), (0.1, 0.6, 0.3), (0.0, 0.75, 0.25))

DRAFTS = (
    NO_DRAFT,
    Draft((1,)),
    Draft((0, 0, 2)),
    Draft((2, 0)),  # 0 never follows 2
    Draft((0, 1, 1, 2), (-1, -1, 0, 1)),
    Draft((0, 1, 2, 1, 1), (-1, -1, -1, 1, 2)),
    Draft((1, 1, 2, 0, 0), (-1, -1, 1, 1, 0)),  # equal siblings
)


@st.composite
def draft_trees(draw: st.DrawFn, vocab_size: int = len(LAWS), most: int = 7) -> Draft:
    """Any draft: chain or tree, equal siblings included."""
    tokens = tuple(draw(st.lists(st.integers(0, vocab_size - 1), max_size=most)))
    if draw(st.booleans()):
        return Draft(tokens)
    return Draft(tokens, tuple(draw(st.integers(-1, node - 1)) for node in range(len(tokens))))


def parent_of(draft: Draft, candidate: int) -> int:
    """The candidate before this one, -1 for the anchor."""
    return candidate - 1 if draft.parents is None else draft.parents[candidate]


def markov_rows(
    drafts: Sequence[Draft],
    seeds: Iterable[int],
    laws: Laws = LAWS,
    anchors: Sequence[int] | None = None,
    position: int = 0,
    temperature: float = 1.0,
) -> "ListRows":
    """Rows of these drafts; each request's first token to draw stands at `position`."""
    after = [
        token
        for request, draft in enumerate(drafts)
        for token in (anchors[request] if anchors else ANCHOR, *draft.tokens)
    ]
    positions = [position + depth for draft in drafts for depth in (0, *draft.depths())]
    owned = zip(drafts, seeds, strict=True)
    row_seeds = [seed for draft, seed in owned for _ in range(1 + len(draft.tokens))]
    chosen = [laws[token] for token in after]
    if temperature == 0:
        chosen = [[float(t == law.index(max(law))) for t in range(len(law))] for law in chosen]
    return ListRows(chosen, row_seeds, positions)


class ListRows(TargetRows):
    """Given laws, drawn from by inverse transform with the noise of the seeds and positions."""

    def __init__(self, laws: Laws, seeds: Sequence[int], positions: Sequence[int]) -> None:
        self._laws, self._seeds, self._positions = laws, seeds, positions

    def sample(self) -> list[int]:
        """The first token of each law whose cumulative probability exceeds the noise."""
        numbers = uniforms(self._seeds, self._positions, Purpose.TARGET).tolist()
        drawn = zip(self._laws, numbers, strict=True)
        return [
            min(sum(edge <= number for edge in accumulate(law)), len(law) - 1)
            for law, number in drawn
        ]

    def uniforms(self, purpose: Purpose, sample: int = 0) -> Uniforms:
        """The numbers of the seeds and positions."""
        return uniforms(self._seeds, self._positions, purpose, sample)

    def laws(self) -> torch.Tensor:
        """As given, in fp64."""
        return torch.tensor(self._laws, dtype=torch.float64)


def emitted(draft: Draft, verdict: Verdict) -> list[int]:
    """The tokens that a verdict gives the request."""
    return [*(draft.tokens[candidate] for candidate in verdict.path), verdict.token]


def first_two_tokens(
    verifier: Verifier, drafts: Sequence[Draft], laws: Laws = LAWS
) -> list[tuple[int, int]]:
    """What requests with seeds 0, 1, ... emit first; one token more is decoded where needed."""
    verdicts = verifier.accept(drafts, markov_rows(drafts, range(len(drafts)), laws))
    outputs = [emitted(*pair) for pair in zip(drafts, verdicts, strict=True)]
    short = [request for request, output in enumerate(outputs) if len(output) == 1]
    anchors = [outputs[request][0] for request in short]
    plain = [NO_DRAFT] * len(short)
    for request, token in zip(
        short, markov_rows(plain, short, laws, anchors, position=1).sample(), strict=True
    ):
        outputs[request].append(token)
    return [(output[0], output[1]) for output in outputs]


class VerifierContract:
    """Every promise of `Verifier`."""

    def make(self) -> Verifier:
        """A fresh verifier."""
        raise NotImplementedError

    def test_emitted_tokens_follow_the_target_whatever_the_draft(self) -> None:
        size = len(LAWS)
        expected = [LAWS[ANCHOR][a] * LAWS[a][b] for a in range(size) for b in range(size)]
        for draft in DRAFTS:
            pairs = first_two_tokens(self.make(), [draft] * 4000)
            counts = [pairs.count((a, b)) for a in range(size) for b in range(size)]
            assert_follows(counts, expected)

    def test_a_verdict_is_a_path_from_the_anchor_that_the_target_could_take(self) -> None:
        @settings(max_examples=100, deadline=None)
        @given(st.lists(draft_trees(), max_size=4), st.integers(0, 2**64 - 9))
        def check(drafts: list[Draft], seed: int) -> None:
            rows = markov_rows(drafts, range(seed, seed + len(drafts)))
            verdicts = self.make().accept(drafts, rows)
            assert len(verdicts) == len(drafts)
            for draft, verdict in zip(drafts, verdicts, strict=True):
                node, last = -1, ANCHOR
                for candidate in verdict.path:
                    assert parent_of(draft, candidate) == node
                    assert LAWS[last][draft.tokens[candidate]] > 0
                    node, last = candidate, draft.tokens[candidate]
                assert LAWS[last][verdict.token] > 0

        check()

    def test_greedy_output_is_the_greedy_continuation(self) -> None:
        @settings(max_examples=60, deadline=None)
        @given(draft_trees())
        def check(draft: Draft) -> None:
            (verdict,) = self.make().accept([draft], markov_rows([draft], [0], temperature=0))
            last = ANCHOR
            for token in emitted(draft, verdict):
                assert token == LAWS[last].index(max(LAWS[last]))
                last = token

        check()

    def test_a_verdict_does_not_depend_on_the_other_requests(self) -> None:
        @settings(max_examples=40, deadline=None)
        @given(st.lists(draft_trees(), min_size=2, max_size=5))
        def check(drafts: list[Draft]) -> None:
            together = self.make().accept(drafts, markov_rows(drafts, range(len(drafts))))
            for seed, draft in enumerate(drafts):
                alone = self.make().accept([draft], markov_rows([draft], [seed]))
                assert alone == [together[seed]]

        check()

    def test_without_drafts_the_token_is_the_plain_draw(self) -> None:
        plain = [NO_DRAFT] * 50
        verdicts = self.make().accept(plain, markov_rows(plain, range(50)))
        assert [verdict.token for verdict in verdicts] == markov_rows(plain, range(50)).sample()
        assert all(verdict.path == () for verdict in verdicts)
        assert self.make().accept([], markov_rows([], [])) == []
