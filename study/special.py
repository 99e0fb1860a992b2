"""Student's t and the functions that moderated variances need, from numpy alone.

The incomplete beta function is Lentz's continued fraction (Numerical Recipes, section 6.4); digamma
and trigamma are their recurrences and asymptotic series (Abramowitz and Stegun, 6.3 and 6.4).
"""

import math
from functools import lru_cache
from statistics import NormalDist

_TINY = 1e-300
_ROUNDS = 500


def t_two_sided(t: float, df: float) -> float:
    """The probability that |T| >= |t| for Student's t of `df` degrees of freedom (may be inf)."""
    if math.isnan(t):
        return 1.0
    if math.isinf(t):
        return 0.0
    if math.isinf(df):
        return math.erfc(abs(t) / math.sqrt(2))
    return beta_part(df / 2, 0.5, df / (df + t * t))


@lru_cache(maxsize=4096)
def t_quantile(confidence: float, df: float) -> float:
    """The t that |T| stays below with this probability: 0.95 of inf degrees gives 1.96.

    Newton's method: the tail is convex, so from the normal quantile every step stays below.
    """
    t = NormalDist().inv_cdf((1 + confidence) / 2)
    if math.isinf(df):
        return t
    log_top = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - math.log(df * math.pi) / 2
    for _ in range(200):
        density = 2 * math.exp(log_top - (df + 1) / 2 * math.log1p(t * t / df))
        step = (t_two_sided(t, df) - (1 - confidence)) / density
        t += step
        if abs(step) < 1e-12 * t:
            break
    return t


def f_upper(ratio: float, first: float, second: float) -> float:
    """The probability that F of these degrees of freedom is at least `ratio`."""
    if math.isinf(ratio):
        return 0.0
    return beta_part(second / 2, first / 2, second / (second + first * ratio))


def beta_part(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b), a and b > 0, 0 <= x <= 1."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - beta_part(b, a, 1 - x)
    front = a * math.log(x) + b * math.log1p(-x)
    front += math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    return math.exp(front) * _fraction(a, b, x) / a


def _fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of the incomplete beta function."""
    c, d = 1.0, _reciprocal(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, _ROUNDS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = _reciprocal(1 + term * d)
            c = _kept(1 + term / c)
            value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return value


def _kept(x: float) -> float:
    return x if abs(x) > _TINY else _TINY


def _reciprocal(x: float) -> float:
    return 1 / _kept(x)


def digamma(x: float) -> float:
    """The derivative of log gamma, x > 0."""
    shift = 0.0
    while x < 8:
        shift -= 1 / x
        x += 1
    r = 1 / (x * x)
    series = r * (1 / 12 - r * (1 / 120 - r * (1 / 252 - r * (1 / 240 - r / 132))))
    return shift + math.log(x) - 0.5 / x - series


def trigamma(x: float) -> float:
    """The second derivative of log gamma, x > 0."""
    shift = 0.0
    while x < 8:
        shift += 1 / (x * x)
        x += 1
    r = 1 / (x * x)
    series = r * (1 / 6 - r * (1 / 30 - r * (1 / 42 - r * (1 / 30 - r * 5 / 66))))
    return shift + 1 / x + r / 2 + series / x


def trigamma_inverse(value: float) -> float:
    """The x with this trigamma, value > 0, by bisection on its logarithm."""
    low, high = -40.0, 40.0
    for _ in range(100):
        middle = (low + high) / 2
        if trigamma(math.exp(middle)) > value:
            low = middle
        else:
            high = middle
    return math.exp(high)
