"""Every draft that a drafter could draw for a small target, and what a verifier makes of them.

Laws are tables by prefix: the tokens since the anchor.

Legend: V vocabulary, N rows, D numbers.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from interlock.core.batch import Draft
from interlock.core.streams import Purpose, Uniforms
from interlock.core.testing.exact_laws import Points, outcome_laws
from interlock.core.verifier import TargetRows, Verdict, Verifier

Prefix = tuple[int, ...]
Law = NDArray[np.float64]
Laws = Mapping[Prefix, Law]
SIBLINGS = 4
"""As many further numbers of ACCEPT at one position a verifier may read here."""


class Case(NamedTuple):
    """A draft, and the probability that it is drawn."""

    draft: Draft
    chance: float


def random_laws(vocab: int, depth: int, seed: int, zeros: bool = True) -> dict[Prefix, Law]:
    """A law after every prefix of up to `depth` tokens; some tokens never come."""
    generator = np.random.default_rng(seed)
    laws = {}
    for length in range(depth + 1):
        for prefix in product(range(vocab), repeat=length):
            weights = generator.exponential(size=vocab) ** 2
            if zeros and generator.random() < 0.3:
                weights[generator.integers(vocab)] = 0
            laws[prefix] = weights / weights.sum()
    return laws


def drawn_chains(laws: Laws, length: Callable[[Prefix], int] | int) -> list[Case]:
    """Every chain that can be drawn from these laws.

    `length(prefix)`: how many candidates there may be, from what was drawn so far; the chain ends
    where it has as many.
    """
    limit = length if callable(length) else lambda prefix: length
    cases = []
    stack: list[tuple[Prefix, float]] = [((), 1.0)]
    while stack:
        prefix, chance = stack.pop()
        if len(prefix) >= limit(prefix):
            rows = [laws[prefix[:i]] for i in range(len(prefix))]
            cases.append(Case(Draft(prefix, laws=_stacked(rows)), chance))
            continue
        law = laws[prefix]
        stack += [((*prefix, t), chance * law[t]) for t in np.flatnonzero(law).tolist()]
    return cases


def drawn_trees(laws: Laws, shape: Sequence[int], replaced: bool) -> list[Case]:
    """Every tree with shape[d] siblings after each node of depth d, drawn in order.

    Without replacement, each sibling's law is the node's without the earlier ones, normalised.
    """
    trees = [(_Tree(), 1.0)]
    for siblings in shape:
        grown = []
        for tree, chance in trees:
            for extra, factor in _grown(tree, laws, siblings, replaced):
                grown.append((extra, chance * factor))
        trees = grown
    return [Case(tree.draft(), chance) for tree, chance in trees]


@dataclass(frozen=True)
class _Tree:
    tokens: Prefix = ()
    parents: Prefix = ()
    laws: tuple[Law, ...] = ()
    newest: tuple[int, ...] = (-1,)

    def path(self, node: int) -> Prefix:
        return (*self.path(self.parents[node]), self.tokens[node]) if node >= 0 else ()

    def draft(self) -> Draft:
        return Draft(self.tokens, self.parents, _stacked(self.laws))


def _grown(tree: _Tree, laws: Laws, siblings: int, replaced: bool) -> Iterator[tuple[_Tree, float]]:
    """The tree with one more level."""
    choices = [list(_families(laws[tree.path(node)], siblings, replaced)) for node in tree.newest]
    for families in product(*choices):
        grown, chance = _Tree(tree.tokens, tree.parents, tree.laws, ()), 1.0
        for node, (tokens, drawn_from, factor) in zip(tree.newest, families, strict=True):
            first = len(grown.tokens)
            grown = _Tree(
                (*grown.tokens, *tokens),
                (*grown.parents, *(node for _ in tokens)),
                (*grown.laws, *drawn_from),
                (*grown.newest, *range(first, first + len(tokens))),
            )
            chance *= factor
        yield grown, chance


def _families(
    law: Law, siblings: int, replaced: bool
) -> Iterator[tuple[Prefix, tuple[Law, ...], float]]:
    """Tokens of siblings in order, the law of each, and their chance."""
    support = np.flatnonzero(law).tolist()
    count = siblings if replaced else min(siblings, len(support))
    for tokens in product(support, repeat=count) if replaced else permutations(support, count):
        left, laws, chance = law.copy(), list[Law](), 1.0
        for token in tokens:
            laws.append(left / left.sum())
            chance *= float(laws[-1][token])
            if not replaced:
                left[token] = 0
        yield tokens, tuple(laws), chance


def _stacked(laws: Sequence[Law]) -> torch.Tensor | None:
    return torch.from_numpy(np.stack(laws)) if laws else None


class GivenRows(TargetRows):
    """Rows of given laws [N, V] that read the numbers of their keys.

    `keys` says which of the numbers belongs to (purpose, sample, position).
    """

    def __init__(
        self,
        laws_NV: Law,
        owners: Sequence[int],
        positions: Sequence[int],
        keys: Mapping[tuple[Purpose, int, int], int],
        numbers: Points,
    ) -> None:
        self._laws_NV, self._owners, self._positions = laws_NV, owners, positions
        self._keys, self._numbers = keys, numbers

    def sample(self) -> list[int]:
        """By inverse transform of the numbers of TARGET."""
        return inverse(self._laws_NV, self.uniforms(Purpose.TARGET))

    def uniforms(self, purpose: Purpose, sample: int = 0) -> Uniforms:
        """The numbers of the rows' positions; other keys are an error."""
        columns = [self._keys[purpose, sample, position] for position in self._positions]
        return self._numbers[list(self._owners), columns]

    def laws(self) -> torch.Tensor:
        """As given, in fp64."""
        return torch.from_numpy(self._laws_NV)


def inverse(laws_NV: Law, numbers_N: Uniforms) -> list[int]:
    """The first token of each row whose cumulative probability exceeds its number."""
    edges_NV = laws_NV.cumsum(-1)
    tokens_N = (edges_NV <= numbers_N[:, None] * edges_NV[:, -1:]).sum(-1)
    has_mass_NV = laws_NV > 0
    last_N = laws_NV.shape[1] - 1 - has_mass_NV[:, ::-1].argmax(-1)
    tokens: list[int] = np.minimum(tokens_N, last_N).tolist()
    return tokens


def keys_of(positions: int) -> dict[tuple[Purpose, int, int], int]:
    """A number for each (purpose, sample, position) that a verifier may read."""
    read = [(Purpose.ACCEPT, sample) for sample in range(SIBLINGS)]
    read += [(Purpose.RESIDUAL, 0), (Purpose.TARGET, 0)]
    places = [(*one, position) for position in range(positions) for one in read]
    return {place: number for number, place in enumerate(places)}


def paths_of(draft: Draft) -> list[Prefix]:
    """The tokens on the way to the anchor and to each candidate."""
    paths: list[Prefix] = [()]
    for node, token in enumerate(draft.tokens):
        parent = node - 1 if draft.parents is None else draft.parents[node]
        paths.append((*paths[parent + 1], token))
    return paths


def verdict_laws(
    verifier: Verifier, cases: Sequence[Case], target: Laws
) -> list[dict[Verdict, float]]:
    """For each case the probability of every verdict, over the verifier's numbers."""
    laws = [np.stack([target[path] for path in paths_of(case.draft)]) for case in cases]
    depths = [(0, *case.draft.depths()) for case in cases]
    keys = keys_of(1 + max(map(max, depths)))

    def play(chosen: NDArray[np.int64], numbers: Points) -> list[Verdict]:
        which = chosen.tolist()
        owners = [m for m, case in enumerate(which) for _ in depths[case]]
        positions = [depth for case in which for depth in depths[case]]
        laws_NV = np.concatenate([laws[case] for case in which])
        rows = GivenRows(laws_NV, owners, positions, keys, numbers)
        return verifier.accept([cases[case].draft for case in which], rows)

    return outcome_laws(play, len(cases), len(keys))  # type: ignore[return-value]


def emitted_law(
    verifier: Verifier, cases: Sequence[Case], target: Laws, length: int
) -> dict[Prefix, float]:
    """The law of the first `length` tokens: drafts as drawn, the verdict, then the target alone."""
    law: dict[Prefix, float] = {}
    for case, verdicts in zip(cases, verdict_laws(verifier, cases, target), strict=True):
        for verdict, chance in verdicts.items():
            path = (*(case.draft.tokens[node] for node in verdict.path), verdict.token)
            for tokens, weight in continued(path, target, length):
                law[tokens] = law.get(tokens, 0.0) + case.chance * chance * weight
    return law


def continued(path: Prefix, target: Laws, length: int) -> list[tuple[Prefix, float]]:
    """Every sequence of `length` tokens that starts with `path` (or its beginning), with the
    target's probability of what follows it."""
    found = [(path[:length], 1.0)]
    for _ in range(length - len(path)):
        found = [
            ((*tokens, token), chance * float(p))
            for tokens, chance in found
            for token, p in enumerate(target[tokens])
        ]
    return found


def law_error(
    verifier: Verifier, cases: Sequence[Case], target: Laws, length: int | None = None
) -> float:
    """The largest difference, over sequences, of what is emitted from what the target says."""
    length = length or 1 + max(max(case.draft.depths(), default=0) for case in cases)
    right = dict(continued((), target, length))
    law = emitted_law(verifier, cases, target, length)
    return max(abs(law.get(tokens, 0.0) - right.get(tokens, 0.0)) for tokens in {*law, *right})


def expected_accepted(verifier: Verifier, cases: Sequence[Case], target: Laws) -> float:
    """How many candidates are accepted in the mean."""
    laws = verdict_laws(verifier, cases, target)
    return sum(
        case.chance * chance * len(verdict.path)
        for case, verdicts in zip(cases, laws, strict=True)
        for verdict, chance in verdicts.items()
    )
