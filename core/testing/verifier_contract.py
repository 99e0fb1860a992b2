"""The contract of `Verifier`, on a target whose law depends on the token before."""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.core.batch import NO_DRAFT, Draft
from interlock.core.streams import Purpose, Uniforms, uniforms
from interlock.core.testing.chi_square import assert_follows
from interlock.core.testing.draft_cases import (
    Case,
    Prefix,
    continued,
    drawn_chains,
    drawn_trees,
    law_error,
    random_laws,
)
from interlock.core.testing.draft_cases import (
    Laws as PrefixLaws,
)
from interlock.core.testing.draft_rounds import rounds_law
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


LAW_ERROR = 1e-12
"""fp64, over sums of at most some thousand products of laws that are normalised a few times."""


@st.composite
def draft_trees(
    draw: st.DrawFn,
    vocab_size: int = len(LAWS),
    most: int = 7,
    trees: bool = True,
    chosen: bool = True,
) -> Draft:
    """Any draft: chain or (`trees`) tree, equal siblings included, with laws or (`chosen`) not."""
    tokens = tuple(draw(st.lists(st.integers(0, vocab_size - 1), max_size=most)))
    parents = None
    if trees and draw(st.booleans()):
        parents = tuple(draw(st.integers(-1, node - 1)) for node in range(len(tokens)))
    if not tokens or (chosen and draw(st.booleans())):
        return Draft(tokens, parents)
    weight = st.lists(st.integers(1, 9), min_size=vocab_size, max_size=vocab_size)
    laws = torch.tensor([draw(weight) for _ in tokens], dtype=torch.float64)
    return Draft(tokens, parents, laws / laws.sum(-1, keepdim=True))


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
    """Every promise of `Verifier`.

    A lossless verifier must give the target's law, exactly, for every draft that it serves.
    """

    trees: ClassVar[bool] = True
    """It serves drafts with siblings."""
    chosen: ClassVar[bool] = True
    """It serves candidates that come without a law, however they were chosen."""
    lossless: ClassVar[bool] = True

    def make(self) -> Verifier:
        """A fresh verifier."""
        raise NotImplementedError

    def _drafts(self) -> st.SearchStrategy[Draft]:
        return draft_trees(trees=self.trees, chosen=self.chosen)

    def _assert_exact(self, cases: Sequence[Case], target: PrefixLaws) -> None:
        if not self.lossless:
            pytest.skip("it declares that its outputs follow another law")
        error = law_error(self.make(), cases, target)
        assert error <= LAW_ERROR, f"a sequence comes {error:.2e} more or less often than it should"

    def test_tokens_follow_the_target_exactly_when_chains_are_drawn(self) -> None:
        for vocab, depth, seed in ((3, 2, 1), (4, 2, 5)):
            target, drafts = (random_laws(vocab, depth, seed + i) for i in (0, 100))
            self._assert_exact(drawn_chains(drafts, depth), target)

    def test_they_do_when_a_chains_length_follows_from_what_was_drawn_before(self) -> None:
        def length(prefix: Prefix) -> int:
            return 1 if prefix[:1] == (0,) else 3 if prefix[:2] == (1, 2) else 2

        target, drafts = random_laws(3, 3, 4), random_laws(3, 3, 104)
        self._assert_exact(drawn_chains(drafts, length), target)

    @pytest.mark.parametrize("replaced", [True, False])
    @pytest.mark.parametrize("shape", [(2, 1), (3,)])
    def test_they_do_when_siblings_are_drawn(self, shape: tuple[int, ...], replaced: bool) -> None:
        if not self.trees:
            pytest.skip("it serves chains")
        target, drafts = random_laws(3, 2, 11), random_laws(3, 2, 111)
        self._assert_exact(drawn_trees(drafts, shape, replaced), target)

    def test_they_do_whatever_candidates_were_chosen(self) -> None:
        if not self.chosen:
            pytest.skip("it serves drawn candidates")
        target = random_laws(3, 4, 21)
        for draft in DRAFTS:
            if self.trees or draft.parents is None:
                self._assert_exact([Case(draft, 1.0)], target)

    def test_no_number_decides_two_tokens(self) -> None:
        """Drafts of several rounds overlap: what decided one may not be read again."""
        if not self.lossless:
            pytest.skip("it declares that its outputs follow another law")
        target, drafts = random_laws(2, 3, 3, zeros=False), random_laws(2, 3, 103, zeros=False)
        law = rounds_law(self.make(), target, drafts, num_drafts=2, length=3)
        for tokens, chance in continued((), target, 3):
            assert abs(law.get(tokens, 0.0) - chance) <= LAW_ERROR, tokens

    def test_emitted_tokens_follow_the_target_whatever_the_draft(self) -> None:
        if not (self.lossless and self.chosen):
            pytest.skip("it is exact for drawn candidates at most")
        size = len(LAWS)
        expected = [LAWS[ANCHOR][a] * LAWS[a][b] for a in range(size) for b in range(size)]
        for draft in DRAFTS:
            if self.trees or draft.parents is None:
                pairs = first_two_tokens(self.make(), [draft] * 2000)
                counts = [pairs.count((a, b)) for a in range(size) for b in range(size)]
                assert_follows(counts, expected)

    def test_a_verdict_is_a_path_from_the_anchor_that_the_target_could_take(self) -> None:
        @settings(max_examples=100, deadline=None)
        @given(st.lists(self._drafts(), max_size=4), st.integers(0, 2**64 - 9))
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
        @given(self._drafts())
        def check(draft: Draft) -> None:
            (verdict,) = self.make().accept([draft], markov_rows([draft], [0], temperature=0))
            last = ANCHOR
            for token in emitted(draft, verdict):
                assert token == LAWS[last].index(max(LAWS[last]))
                last = token

        check()

    def test_a_verdict_does_not_depend_on_the_other_requests(self) -> None:
        @settings(max_examples=40, deadline=None)
        @given(st.lists(self._drafts(), min_size=2, max_size=5))
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
