"""Parts of a full factorial from which main effects can be estimated, and what they confound.

Factors of two levels: regular fractions 2^(k-p) of the highest resolution that a search over their
generators finds (Box, Hunter & Hunter, Statistics for Experimenters, 2nd ed., chapter 6). Others:
rows of the full factorial that make the determinant of the main-effects model's information matrix
large (D-efficiency), by Fedorov's exchange from several seeded starts.
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from math import comb, prod

import numpy as np
from numpy.typing import NDArray

from interlock.study.spec import Cell, Study

Rows = list[tuple[int, ...]]
Matrix = NDArray[np.float64]
MOST_CANDIDATES = 4096
"""Rows of the full factorial that are considered; beyond, a seeded sample of them."""
STARTS = 8
MOST_SEARCHED = 2000
"""Sets of generators that are all tried; of more, greedy choices are compared."""


def fraction_rows(sizes: Sequence[int], runs: int | None, seed: int) -> Rows:
    """Rows of level numbers; `runs` None: the fewest of a usual size.

    With two levels everywhere and `runs` a power of two the fraction is regular and begins with
    the row of zeros. Else the row of zeros is one of those chosen for D-efficiency.
    """
    least, most = 1 + sum(size - 1 for size in sizes), prod(sizes)
    two = set(sizes) == {2}
    if runs is None:
        runs = 1 << (least - 1).bit_length() if two else min(most, _balanced(sizes, least))
    if runs >= most:
        return list(itertools.product(*map(range, sizes)))
    if two and runs & (runs - 1) == 0:
        return regular_rows(len(sizes), runs.bit_length() - 1)
    return d_efficient_rows(sizes, runs, seed)


def _balanced(sizes: Sequence[int], least: int) -> int:
    """The first number from `least` in which every pair of levels could stand equally often."""
    pairs = [a * b for a, b in itertools.combinations(sizes, 2)] or list(sizes)
    step = int(np.lcm.reduce(pairs))
    return -(-least // step) * step if step <= 2 * least else least


def regular_rows(count: int, base: int) -> Rows:
    """2^base runs of `count` two-level factors; level 0 stands for the sign that the baseline has.

    Each factor beyond the first `base` is a product of some of those, chosen so that the shortest
    word of the defining relation is as long as it can be, and such words as few.
    """
    words = generators(count, base)
    rows: Rows = []
    for bits in itertools.product((0, 1), repeat=base):
        added = [sum(bits[i] for i in word) % 2 for word in words]
        rows.append((*bits, *added))
    return rows


def generators(count: int, base: int) -> list[tuple[int, ...]]:
    """Which base factors each added factor is the product of (of levels counted as 0 and 1)."""
    options = [
        word for size in range(base, 1, -1) for word in itertools.combinations(range(base), size)
    ]
    added = count - base
    if added and comb(len(options), added) <= MOST_SEARCHED:
        return list(
            max(itertools.combinations(options, added), key=lambda w: _merit([*w], count, base))
        )
    odd = [word for word in options if len(word) % 2]  # all words even: resolution 4 at least
    tried = [_greedy(words, added, base) for words in (odd, options) if len(words) >= added]
    return max(tried, key=lambda words: _merit(words, count, base))


def _greedy(options: list[tuple[int, ...]], added: int, base: int) -> list[tuple[int, ...]]:
    chosen: list[tuple[int, ...]] = []
    for place in range(added):
        free = [word for word in options if word not in chosen]
        chosen.append(max(free, key=lambda w: _merit([*chosen, w], base + place + 1, base)))
    return chosen


def _merit(words: list[tuple[int, ...]], count: int, base: int) -> tuple[int, int]:
    """The length of the shortest words of the defining relation, and less how many there are."""
    if len(words) > base:
        return _merit_by_runs(words, count, base)
    lengths = _word_lengths(words, count, base)
    if not lengths:
        return count + 1, 0
    shortest = min(lengths)
    return shortest, -lengths.count(shortest)


def _merit_by_runs(words: list[tuple[int, ...]], count: int, base: int) -> tuple[int, int]:
    """The same from the 2^base runs, which are fewer than the words of many added factors.

    Runs and words are dual codes: the numbers of words of each length follow from how many factors
    are at level 1 in each run (MacWilliams, Bell System Technical Journal 42, 1963).
    """
    levels_RB = np.array(list(itertools.product((0, 1), repeat=base)))
    added_RA = np.array([levels_RB[:, list(word)].sum(axis=1) % 2 for word in words]).T
    ones_R = levels_RB.sum(axis=1) + added_RA.sum(axis=1)
    runs = Counter(ones_R.tolist())
    for length in range(1, count + 1):
        total = sum(number * _krawtchouk(length, ones, count) for ones, number in runs.items())
        if total:
            return length, -(total >> base)
    return count + 1, 0


def _krawtchouk(length: int, ones: int, count: int) -> int:
    return sum(
        (-1) ** i * comb(ones, i) * comb(count - ones, length - i) for i in range(length + 1)
    )


def _word_lengths(words: list[tuple[int, ...]], count: int, base: int) -> list[int]:
    """Lengths of every word of the defining relation (but the empty one)."""
    masks = [sum(1 << i for i in word) | 1 << (base + at) for at, word in enumerate(words)]
    found = []
    for number in range(1, 1 << len(masks)):
        mask = 0
        for at, one in enumerate(masks):
            mask ^= one if number >> at & 1 else 0
        found.append(mask.bit_count())
    assert all(length <= count for length in found)
    return found


def resolution(count: int, base: int) -> int:
    """Of `regular_rows`: the length of the shortest word."""
    return _merit(generators(count, base), count, base)[0]


def d_efficient_rows(sizes: Sequence[int], runs: int, seed: int) -> Rows:
    """`runs` different rows, the row of zeros among them, with a large determinant."""
    draw = np.random.default_rng(seed)
    if prod(sizes) <= MOST_CANDIDATES:
        rows: Rows = list(itertools.product(*map(range, sizes)))
    else:
        drawn = {tuple(int(draw.integers(s)) for s in sizes) for _ in range(MOST_CANDIDATES)}
        rows = sorted(drawn | {tuple([0] * len(sizes))})
    model = np.array([_coded(row, sizes) for row in rows])
    best: tuple[float, list[int]] | None = None
    for _ in range(STARTS):
        found = _exchange(model, runs, draw)
        if best is None or found[0] > best[0] + 1e-9:
            best = found
    assert best is not None
    return [rows[at] for at in sorted(best[1])]


def _exchange(model: Matrix, runs: int, draw: np.random.Generator) -> tuple[float, list[int]]:
    """Swap chosen rows for others while the determinant grows; row 0 always stays."""
    others = draw.permutation(np.arange(1, len(model)))[: runs - 1]
    chosen = [0, *map(int, others)]
    ridge = 1e-6 * np.eye(model.shape[1])
    value = _log_det(model[chosen], ridge)
    improved = True
    while improved:
        improved = False
        for place in range(1, runs):
            kept = [at for at in chosen if at != chosen[place]]
            information = model[kept].T @ model[kept] + ridge
            gain = np.einsum("ri,ij,rj->r", model, np.linalg.inv(information), model)
            gain[kept] = -1  # each row once
            at = int(np.argmax(gain))
            new = float(np.linalg.slogdet(information)[1] + np.log1p(max(gain[at], 0)))
            if at != chosen[place] and new > value + 1e-9:
                chosen[place], value, improved = at, new, True
    return value, chosen


def _log_det(rows: Matrix, ridge: Matrix) -> float:
    return float(np.linalg.slogdet(rows.T @ rows + ridge)[1])


def _coded(row: Sequence[int], sizes: Sequence[int]) -> list[float]:
    """A row of the main-effects model: a one, and orthonormal contrasts for each factor."""
    coded = [1.0]
    for level, size in zip(row, sizes, strict=True):
        coded += contrasts(size)[level]
    return coded


def contrasts(size: int) -> list[list[float]]:
    """Helmert contrasts of a factor, a row for each level, scaled to mean square 1."""
    columns = []
    for k in range(1, size):
        column = np.array([1.0] * k + [-float(k)] + [0.0] * (size - k - 1))
        columns.append(column * np.sqrt(size / float(column @ column)))
    return np.array(columns).T.tolist() if columns else [[]]


def aliases_of(study: Study, cells: Sequence[Cell]) -> Iterator[str]:
    """Main effects and two-factor interactions that the cells cannot tell apart, in words.

    Of levels that have cells: what no cell holds (it is refused in all of them) is no term.
    """
    held = {
        factor.name: [one.name for one in factor.levels
                      if any(cell.levels[factor.name] == one.name for cell in cells)]
        for factor in study.factors
    }  # fmt: skip
    factors = [factor for factor in study.factors if len(held[factor.name]) > 1]
    blocks: list[tuple[tuple[str, ...], Matrix]] = []
    main = {}
    for factor in factors:
        at = {name: place for place, name in enumerate(held[factor.name])}
        table = np.array(contrasts(len(at)))
        main[factor.name] = table[[at[cell.levels[factor.name]] for cell in cells]]
        blocks.append(((factor.name,), main[factor.name]))
    for first, second in itertools.combinations(factors, 2):
        a, b = main[first.name], main[second.name]
        product = np.einsum("ri,rj->rij", a, b).reshape(len(cells), -1)
        blocks.append(((first.name, second.name), product))
    for (one, a), (other, b) in itertools.combinations(blocks, 2):
        share = _shared(a, b)
        if share > 0.999:
            yield f"{' x '.join(one)} is aliased with {' x '.join(other)}"
        elif len(one) == 1 and share > 0.01:
            yield f"{one[0]} is partly aliased with {' x '.join(other)} (correlation {share:.2f})"


def _shared(a: Matrix, b: Matrix) -> float:
    """The largest canonical correlation of two sets of columns, their means taken off."""
    spaces = []
    for columns in (a, b):
        centred = columns - columns.mean(axis=0)
        u, s, _ = np.linalg.svd(centred, full_matrices=False)
        spaces.append(u[:, s > 1e-9])
    if not all(space.shape[1] for space in spaces):
        return 0.0
    return float(np.linalg.svd(spaces[0].T @ spaces[1], compute_uv=False)[0])
