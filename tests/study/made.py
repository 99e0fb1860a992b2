"""Studies made of numbers, for tests of their analysis."""

from itertools import product

import numpy as np

from interlock.study.spec import Cell, Factor, Level, Metric, Observation, Study

TIME = Metric("time")


def factors(**levels):
    return tuple(Factor(name, tuple(Level(x) for x in of.split())) for name, of in levels.items())


def grid(of, keep=lambda levels: True):
    """All cells of these factors that `keep` wants."""
    names = [factor.name for factor in of]
    found = []
    for combination in product(*([level.name for level in f.levels] for f in of)):
        levels = dict(zip(names, combination, strict=True))
        if keep(levels):
            found.append(Cell(",".join(f"{k}={v}" for k, v in levels.items()), levels, ()))
    return found


def study(of, repeats=3, metrics=(TIME,), **more):
    return Study("made", of, "full_factorial", metrics=metrics, repeats=repeats, **more)


def observe(made, cells, mean, sigma=0.01, seed=0, aa=False, **more):
    """Times exp(mean(levels) + block + noise); `more` are functions of (cell, repeat) by field."""
    rng = np.random.default_rng(seed)
    found = []
    for repeat in range(made.repeats):
        shift = np.random.default_rng(repeat).normal() * 0.2
        runs = [(cell, 0) for cell in cells] + ([(cells[0], 1)] if aa else [])
        for number in rng.permutation(len(runs)).tolist():
            cell, replica = runs[number]
            value = float(np.exp(mean(cell.levels) + shift + sigma * rng.normal()))
            extra = {key: of(cell, repeat) for key, of in more.items()}
            values = {metric.key: value for metric in made.metrics}
            found.append(
                Observation(cell.id, repeat, len(found), 0.0, values, replica=replica, **extra)
            )
    return found
