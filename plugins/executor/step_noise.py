"""Unsteady time for a virtual clock: what a study's analysis has to see through."""

import math

import numpy as np

from interlock.plugins.executor import FixedConfig


class StepNoise:
    """Factors of the times of a run's steps, all 1 unless the config asks for noise.

    A factor is exp(jitter * z + wander * w + drift * noise_run): z is drawn for each step, w once,
    both standard normal from the run's seed and `noise_run`.
    """

    def __init__(self, config: FixedConfig, seed: int) -> None:
        self._rng = np.random.Generator(np.random.Philox(_key(seed, config.noise_run)))
        self._jitter = config.jitter
        self.unsteady = bool(config.jitter or config.wander or config.drift)
        shift = config.wander * float(self._rng.standard_normal())
        self._level = shift + config.drift * config.noise_run

    def factor(self) -> float:
        """The next step's."""
        noise = self._jitter * float(self._rng.standard_normal()) if self._jitter else 0.0
        return math.exp(self._level + noise)


def _key(seed: int, noise_run: int) -> np.random.SeedSequence:
    return np.random.SeedSequence((abs(seed), int(seed < 0), noise_run))
