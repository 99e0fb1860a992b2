"""When requests arrive."""

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray


def stream(seed: int, purpose: int) -> Generator:
    """The random stream of one purpose: changing how one is used leaves the others alone."""
    return Generator(np.random.PCG64([seed, purpose]))


def arrival_times(
    process: str, count: int, rate: float, burstiness: float, rng: Generator
) -> NDArray[np.float64]:
    """`count` times in seconds, ascending, the first at 0.

    `at_once`: all 0. Else gaps of mean 1 / rate: `constant`; `poisson` (exponential); `gamma` of
    shape `burstiness`, whose coefficient of variation is 1 / sqrt(burstiness) (1: Poisson).
    """
    gaps = np.zeros(count)
    if process == "constant":
        gaps[1:] = 1 / rate
    elif process == "poisson":
        gaps[1:] = rng.exponential(1 / rate, count - 1)
    elif process == "gamma":
        gaps[1:] = rng.gamma(burstiness, 1 / (rate * burstiness), count - 1)
    return np.cumsum(gaps)
