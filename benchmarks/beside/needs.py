"""What a benchmark needs and does not find: it says so and ends with 2."""

import contextlib
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

ABSENT = 2
"""The exit status: nothing was measured, because something is absent."""


def absent(what: str) -> NoReturn:
    """End with the name of the benchmark and what it lacks."""
    print(f"{Path(sys.argv[0]).stem}: {what}", file=sys.stderr)
    sys.exit(ABSENT)


def packages(extra: str, *names: str) -> None:
    """End where one of these packages is not installed; `extra` installs them."""
    missing = [
        name
        for name in names
        if sys.modules.get(name) is None and (name in sys.modules or find_spec(name) is None)
    ]
    if missing:
        absent(f"{' and '.join(missing)} is not installed: pip install 'interlock[{extra}]'")


@contextlib.contextmanager
def model() -> Iterator[None]:
    """End with the reason where the model that is asked for is not there."""
    from interlock.core.errors import CheckpointError

    try:
        yield
    except CheckpointError as error:
        absent(str(error))
