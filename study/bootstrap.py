"""Intervals of comparisons: Student's t with moderated errors, widened by a studentised bootstrap.

A percentile bootstrap of 3 to 10 repeats is too narrow (Hesterberg, "What Teachers Should Know
About the Bootstrap", 2015, section 4), and a sign-flip test of R repeats has no p value below
2 / 2**R. What is resampled here is the studentised difference (Hall, "The Bootstrap and Edgeworth
Expansion", 1992; Efron and Tibshirani, "An Introduction to the Bootstrap", 12.5): residuals of all
cells, in units of their cell's deviation and with random signs (the difference of two equal
compositions is as likely up as down), make studies without any effect, whose t values show how wide
an interval must be. It is never narrower than Student's.

Shapes: N runs, K comparisons, D draws, C cells.
"""

import math
from dataclasses import dataclass

import numpy as np

from interlock.study.layout import Floats
from interlock.study.noise import Noise
from interlock.study.special import t_quantile, t_two_sided

DRAWS = 2000
LEAST_FREEDOM = 8.0
"""Residual degrees of freedom below which there is too little to resample: Student's t alone."""
BUDGET = 20_000_000
"""Numbers held at once: a larger study's draws are made in parts."""


@dataclass(frozen=True)
class Measured:
    """One comparison on its scale."""

    value: float
    low: float
    high: float
    p: float


def measure(
    values_N: Floats, noise: Noise, weights_KN: Floats, confidence: float, rng: np.random.Generator
) -> list[Measured]:
    """Each comparison `weights @ values` with its interval and two-sided p value.

    The weights of every comparison sum to zero in each block. p is below 1 - confidence just when
    the interval leaves zero out.
    """
    estimate_K = weights_KN @ values_N
    error_K = np.sqrt(noise.weights_by_cell(weights_KN) @ noise.cell_variances)
    degrees_K = noise.degrees(weights_KN)
    wider_K = widening(values_N, noise, weights_KN, confidence, rng)
    known = zip(
        estimate_K.tolist(), error_K.tolist(), degrees_K.tolist(), wider_K.tolist(), strict=True
    )
    return [_measured(value, error * wider, df, confidence) for value, error, df, wider in known]


def _measured(value: float, error: float, df: float, confidence: float) -> Measured:
    if error <= 1e-14:
        return without_noise(value)
    half = t_quantile(confidence, df) * error
    return Measured(value, value - half, value + half, t_two_sided(value / error, df))


def without_noise(value: float, size: float = 1.0) -> Measured:
    """A comparison that nothing blurs: its interval is its value. `size` is that of what was
    compared, of which a 1e-12th part is rounding."""
    value = 0.0 if abs(value) < 1e-12 * size else value
    return Measured(value, value, value, float(value == 0))


def widening(
    values_N: Floats, noise: Noise, weights_KN: Floats, confidence: float, rng: np.random.Generator
) -> Floats:
    """By how much the bootstrap's quantile of |t| is beyond Student's, at least 1, [K]."""
    num_runs = len(values_N)
    ones = np.ones(len(weights_KN))
    if noise.freedom < LEAST_FREEDOM or noise.pooled == 0 or not len(weights_KN):
        return ones
    scale_N = np.sqrt(noise.cell_variances)[noise.cell_N]
    leverage_N = (noise.basis_NM**2).sum(axis=1)
    spread_N = scale_N * np.sqrt(np.maximum(1 - leverage_N, 1e-12))
    usable = (spread_N > 0) & (1 - leverage_N > 1e-6)
    pool = noise.residuals(values_N)[usable] / spread_N[usable]
    pool = pool / math.sqrt(float(np.mean(pool**2)))
    square_KC = noise.weights_by_cell(weights_KN)
    sizes: list[int] = []
    parts: list[Floats] = []
    while sum(sizes) < DRAWS:
        sizes.append(min(DRAWS - sum(sizes), max(1, BUDGET // num_runs)))
    for size in sizes:
        drawn_DN = rng.choice(pool, (size, num_runs)) * rng.choice([-1.0, 1.0], (size, num_runs))
        drawn_DN *= scale_N
        residual_DN = noise.residuals(drawn_DN)
        pooled_D = (residual_DN**2).sum(axis=1) / noise.freedom
        common_D = pooled_D * (noise.common / noise.pooled)
        variance_DC = noise.moderated(noise.own(residual_DN), common_D[:, None])
        error_DK = np.sqrt(variance_DC @ square_KC.T)
        parts.append(np.abs(drawn_DN @ weights_KN.T) / np.maximum(error_DK, 1e-300))
    reached_K = np.quantile(np.concatenate(parts), confidence, axis=0)
    plain_K = [t_quantile(confidence, df) for df in noise.degrees(weights_KN)]
    wider_K: Floats = np.maximum(ones, reached_K / np.array(plain_K))
    return wider_K
