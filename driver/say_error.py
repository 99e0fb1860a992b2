"""What stops a program or keeps it from starting, as its user reads it: one problem a line."""

import sys
from collections.abc import Iterable

from interlock.core.errors import (
    ConfigError,
    ContractError,
    InterlockError,
    RankError,
    RunFolderError,
)


def say_error(error: InterlockError) -> int:
    """Print it to standard error; 1, the status of a program that ends so."""
    stopped = isinstance(error, ContractError | RankError | RunFolderError)
    return say_problems(f"Interlock {'stopped' if stopped else 'cannot start'}", problems_in(error))


def say_problems(what: str, problems: Iterable[str]) -> int:
    """Print a heading and the problems below it to standard error; 1."""
    print(f"{what}:", file=sys.stderr)
    for problem in problems:
        print(f"- {problem}", file=sys.stderr)
    return 1


def problems_in(error: InterlockError) -> list[str]:
    """Everything that is wrong."""
    return error.problems if isinstance(error, ConfigError) else [str(error)]
