"""The setting `adapters`: directories as PEFT saves them, and what they are called."""

import hashlib
import os.path
from collections.abc import Sequence
from pathlib import Path

from interlock.core.adapters import FILES, Adapter
from interlock.core.errors import ConfigError


def read_adapters(stated: Sequence[str]) -> tuple[Adapter, ...]:
    """The adapters of these directories, or of NAME:DIRECTORY.

    A name holds no '/'; a directory with a ':' in its last part alone is written ./DIRECTORY. The
    name is the folder's otherwise.

    Raises:
        ConfigError: a directory without the two files, files that cannot be read, or a name that
            occurs twice or is empty.
    """
    problems: list[str] = []
    named = [_named(one) for one in stated]
    found = tuple(Adapter(name, folder, _digest(folder, problems)) for name, folder in named)
    names = [name for name, _ in named]
    problems += [
        f"adapters: two are called {name!r}; give one another name with NAME:DIRECTORY"
        for name in sorted({n for n in names if names.count(n) > 1})
    ]
    if "" in names:
        problems.append("adapters: one has no name; give it one with NAME:DIRECTORY")
    if problems:
        raise ConfigError(problems)
    return found


def _named(stated: str) -> tuple[str, Path]:
    name, colon, directory = stated.partition(":")
    if not colon or "/" in name:
        name, directory = os.path.basename(os.path.abspath(stated)), stated
    return name, Path(os.path.expanduser(directory))


def _digest(directory: Path, problems: list[str]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for file in FILES:
        try:
            with (directory / file).open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "blake2b").digest())
        except FileNotFoundError:
            problems.append(
                f"adapters: {directory / file} is missing; an adapter is a folder with "
                f"{' and '.join(FILES)}, given as DIRECTORY or NAME:DIRECTORY"
            )
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            problems.append(f"adapters: {directory / file} cannot be read: {reason}")
    return digest.digest()
