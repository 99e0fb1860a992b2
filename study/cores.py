"""Which processor cores each worker of a study has for itself."""

import os

from interlock.core.errors import ConfigError


def core_sets(jobs: int, threads: int | None) -> tuple[tuple[int, ...], ...]:
    """A set of cores for each of `jobs` workers; one worker alone has all (an empty tuple).

    `threads`: the most that a cell asks for. Raises ConfigError for more jobs x threads than there
    are cores: cells that share one measure each other.
    """
    if jobs == 1:
        return ((),)
    cores = available_cores()
    each = threads or max(1, len(cores) // jobs)
    if jobs < 1 or jobs * each > len(cores):
        fits = len(cores) // each
        raise ConfigError(
            f"--jobs {jobs}: {jobs} jobs of {each} thread{'s' * (each > 1)} need {jobs * each} "
            f"cores, of which this process may use {len(cores)}; --jobs {max(fits, 1)} fits"
        )
    return tuple(tuple(cores[at * each : (at + 1) * each]) for at in range(jobs))


def available_cores() -> list[int]:
    """Those that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))
