"""How much runs of one composition differ: residuals of blocks, A/A pairs, and what they allow.

Every value is modelled as block + cell + noise (a randomised complete block design; Box, Hunter
and Hunter, "Statistics for Experimenters", chapter 4). A cell's own variance rests on few repeats,
so it is moderated: drawn towards the study's common variance by as much as the cells' variances
agree with one common value (Smyth, "Linear models and empirical Bayes methods", SAGMB 3 (2004),
sections 3 to 6.2). With two cells this is the paired t test.

Shapes: N runs, C cells, K comparisons, D draws.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from interlock.study.layout import Floats, Ints, Layout
from interlock.study.special import (
    digamma,
    f_upper,
    t_quantile,
    t_two_sided,
    trigamma,
    trigamma_inverse,
)

LEAST_KNOWN = 2.0
"""Degrees of freedom below which no floor is stated: with one, Student's 95 % are 12.7 deviations,
and the logarithms of times make percentages of millions of that."""
LEAST_SHARE = 1e-5
"""Variances below this share of the median are as good as this share: logarithms are taken."""


@dataclass(frozen=True)
class Noise:
    """The variances of a layout's cells and how much is known of them."""

    basis_NM: Floats
    """Orthonormal columns that span blocks and cells."""
    cell_N: Ints
    freedom_C: Floats
    """Residual degrees of freedom of each cell; they add up to `freedom`."""
    freedom: float
    prior_C: Floats
    """Degrees of freedom that the common variance is worth to each cell."""
    common: float
    """The common variance, of one run."""
    pooled: float
    """The mean square of all residuals."""
    own_C: Floats

    @property
    def cell_variances(self) -> Floats:
        """Of one run of each cell, moderated."""
        return self.moderated(self.own_C, self.common)

    def moderated(self, own_C: Floats, common: "float | Floats") -> Floats:
        """Each cell's own variance drawn towards the common one (Smyth's formula 4)."""
        weighted = self.prior_C * common + self.freedom_C * own_C
        return np.asarray(weighted / (self.prior_C + self.freedom_C), np.float64)

    def residuals(self, values_DN: Floats) -> Floats:
        """What is left of values when blocks and cells are taken out; any leading shape."""
        left_DN: Floats = values_DN - (values_DN @ self.basis_NM) @ self.basis_NM.T
        return left_DN

    def own(self, residuals_DN: Floats) -> Floats:
        """The variance of each cell by its own residuals, [D, C]; 0 where it has none."""
        cells = np.arange(len(self.freedom_C))
        members_NC = (self.cell_N[:, None] == cells).astype(np.float64)
        sums_DC = (residuals_DN**2) @ members_NC
        return np.asarray(sums_DC / np.maximum(self.freedom_C, 1e-12), np.float64)

    def weights_by_cell(self, weights_KN: Floats) -> Floats:
        """Sums of squares of the weights of each cell's runs, [K, C]."""
        cells = np.arange(len(self.freedom_C))
        squares_KC: Floats = (weights_KN**2) @ (self.cell_N[:, None] == cells).astype(np.float64)
        return squares_KC

    def degrees(self, weights_KN: Floats) -> Floats:
        """Degrees of freedom of each comparison's standard error (Satterthwaite, 1946)."""
        shares_KC = self.weights_by_cell(weights_KN) * self.cell_variances
        each_C = np.minimum(self.prior_C + self.freedom_C, self.freedom)
        spread_K = (shares_KC**2 / np.maximum(each_C, 1e-12)).sum(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            found_K = shares_KC.sum(axis=1) ** 2 / spread_K
        kept_K: Floats = np.minimum(np.nan_to_num(found_K, nan=self.freedom), self.freedom)
        return kept_K


def noise_of(layout: Layout) -> Noise | None:
    """The noise of a layout; None where no cell was repeated."""
    num_cells, num_blocks = len(layout.cells), len(layout.blocks)
    design_NM = np.hstack([
        (layout.cell_N[:, None] == np.arange(num_cells)).astype(np.float64),
        (layout.block_N[:, None] == np.arange(num_blocks)).astype(np.float64),
    ])  # fmt: skip
    left_NM, sizes_M, _ = np.linalg.svd(design_NM, full_matrices=False)
    basis_NM = left_NM[:, sizes_M > 1e-9 * max(sizes_M, default=1.0)]
    leverage_N = (basis_NM**2).sum(axis=1)
    freedom_C: Floats = np.bincount(layout.cell_N, 1 - leverage_N, num_cells).astype(np.float64)
    freedom = float(freedom_C.sum())
    if freedom < 0.5:
        return None
    bare = Noise(basis_NM, layout.cell_N, freedom_C, freedom, freedom_C, 0.0, 0.0, freedom_C)
    residual_N = bare.residuals(layout.values_N)
    residual_N[np.abs(residual_N) < 1e-12 * np.abs(layout.values_N).max(initial=0.0)] = 0.0
    own_C = bare.own(residual_N)
    pooled = float((residual_N**2).sum() / freedom)
    prior, common = _prior(own_C, freedom_C, pooled)
    prior_C = min(prior, freedom) * _agreement(own_C, freedom_C)
    return Noise(basis_NM, layout.cell_N, freedom_C, freedom, prior_C, common, pooled, own_C)


def _agreement(own_C: Floats, freedom_C: Floats) -> Floats:
    """How well each cell goes with the others, 1 to 0: a loud one is judged by itself.

    From the F test of its variance against theirs, as in Phipson, Lee, Majewski, Alexander and
    Smyth, "Robust hyperparameter estimation protects against hypervariable genes", Ann. Appl. Stat.
    10 (2016), where an outlier has prior degrees of freedom of its own.
    """
    sums_C = own_C * freedom_C
    rest_C, rest_freedom_C = sums_C.sum() - sums_C, freedom_C.sum() - freedom_C
    found = np.ones(len(own_C))
    for c in range(len(own_C)):
        if min(freedom_C[c], rest_freedom_C[c]) > 1e-6 and own_C[c] > 0:
            rest = rest_C[c] / rest_freedom_C[c]
            ratio = own_C[c] / rest if rest > 1e-12 * own_C[c] else math.inf
            found[c] = min(1.0, 2 * f_upper(ratio, freedom_C[c], rest_freedom_C[c]))
    return found


def _prior(own_C: Floats, freedom_C: Floats, pooled: float) -> tuple[float, float]:
    """Degrees of freedom and value of the common variance (Smyth, section 6.2)."""
    known = freedom_C > 1e-6
    if pooled == 0 or known.sum() < 3:
        return math.inf, pooled
    own, freedom = own_C[known], freedom_C[known]
    own = np.maximum(own, LEAST_SHARE * (np.median(own) or pooled))
    expected = np.array([digamma(f / 2) - math.log(f / 2) for f in freedom])
    logs = np.log(own) - expected
    by_chance = float(np.mean([trigamma(f / 2) for f in freedom]))
    extra = float(np.var(logs, ddof=1)) - by_chance
    if extra <= 0:
        return math.inf, pooled
    prior = 2 * trigamma_inverse(extra)
    common = math.exp(float(np.mean(logs)) + digamma(prior / 2) - math.log(prior / 2))
    return prior, common


@dataclass(frozen=True)
class Floor:
    """Within what the study's own comparison of two equal compositions lies, on the scale."""

    half_width: float
    """Of the mean of `repeats` differences, 95 % of the time; infinite if too little is known."""
    one_pair: float
    """Of a single pair."""
    num_pairs: int
    source: str


EXACT = Floor(
    0.0, 0.0, 1, "the baseline, which ran twice in virtual time and gave the same: no noise"
)


def are_equal(aa: Sequence[float]) -> bool:
    """Whether there are A/A pairs, and none differs."""
    return len(aa) > 0 and not any(aa)


def floor_of(layout: Layout, noise: Noise | None, repeats: int, level: float = 0.95) -> Floor:
    """The noise floor: A/A pairs and residuals pooled, or A/A pairs alone where they say more.

    A/A pairs see what residuals miss if what runs within a block shifts them apart; by how much
    they may differ by chance is judged by an F test at 1 %.
    """
    num_aa = len(layout.aa)
    from_aa = sum(d * d for d in layout.aa) / (2 * num_aa) if num_aa else 0.0
    freedom, from_blocks = (noise.freedom, noise.pooled) if noise else (0.0, 0.0)
    if not num_aa + freedom:
        return Floor(math.inf, math.inf, 0, "no cell was run twice: nothing is known of the noise")
    words = [f"{num_aa} A/A pair{'s' * (num_aa != 1)}"] if num_aa else []
    degrees = f"{freedom:.0f} degree{'s' * (round(freedom) != 1)} of freedom"
    words += [f"residuals of blocks ({degrees})"] if freedom else []
    total = num_aa + freedom
    if total < LEAST_KNOWN - 1e-9:
        few = f"too few pairs: all that is known of the noise are {' and '.join(words)}"
        return Floor(math.inf, math.inf, num_aa, few)
    variance = (num_aa * from_aa + freedom * from_blocks) / total
    if num_aa >= 2 and freedom and from_aa > from_blocks and f_upper(
        from_aa / from_blocks if from_blocks else math.inf, num_aa, freedom
    ) < 0.01:  # fmt: skip
        words, total, variance = (
            [f"{num_aa} A/A pairs, which differ more than blocks do"],
            num_aa,
            from_aa,
        )
    one_pair = t_quantile(level, total) * math.sqrt(2 * variance)
    half_width = one_pair / math.sqrt(max(repeats, 1))
    return Floor(half_width, one_pair, num_aa, " and ".join(words))


def drift_of(layout: Layout) -> tuple[float, float] | None:
    """Change a run on the layout's scale, and its p value, blocks and cells taken out.

    The order within a block is random, so a steady drift shows within blocks as it does over the
    study; workloads differ between blocks. None with fewer than 3 degrees of freedom.
    """
    noise = noise_of(layout)
    if noise is None or noise.freedom < 4:
        return None
    place_N = noise.residuals(layout.place_N)
    value_N = noise.residuals(layout.values_N)
    square = float(place_N @ place_N)
    if square < 1e-9:
        return None
    slope = float(place_N @ value_N) / square
    left_N = value_N - slope * place_N
    freedom = noise.freedom - 1
    error = math.sqrt(float(left_N @ left_N) / freedom / square)
    if error <= 1e-15:
        return slope, float(abs(slope) < 1e-12)
    return slope, t_two_sided(slope / error, freedom)
