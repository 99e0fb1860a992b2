"""The objects of a JSON-lines file, each with its line number."""

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from interlock.core.errors import WorkloadError


def read_objects(
    path: str, what: str, list_key: str | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number from 1, object) of every line that is not blank.

    Raises WorkloadError, naming file and line, for a file that cannot be read, bytes that are not
    UTF-8, invalid JSON (NaN and Infinity included) and values that are not objects. `what` says
    which file was expected. With `list_key`, a list stands for an object that has it as that key.
    """
    try:
        file_path = Path(path).expanduser()
        with gzip.open(file_path) if path.endswith(".gz") else file_path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, _parse(line, f"{path}, line {number}", list_key)
    except (OSError, EOFError, zlib.error, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise WorkloadError(
            f"workload.path={path!r} cannot be read: {reason}; expected {what}"
        ) from error


def _parse(line: bytes, place: str, list_key: str | None) -> dict[str, Any]:
    try:
        text = line.decode("utf-8-sig").rstrip()
        value = json.loads(
            text, parse_constant=_refuse_constant, object_pairs_hook=_refuse_repeated_keys
        )
    except UnicodeDecodeError as error:
        raise WorkloadError(f"{place}: not UTF-8 (byte {error.start + 1} of the line)") from error
    except json.JSONDecodeError as error:
        at = f"character {error.pos + 1} of {len(text)}"
        if error.pos >= len(text):
            at = f"the end of the line, after its {len(text)} characters: is it cut off?"
        raise WorkloadError(f"{place}: not valid JSON: {error.msg} at {at}") from error
    except (ValueError, RecursionError) as error:
        raise WorkloadError(f"{place}: not valid JSON: {error}") from error
    if list_key is not None and isinstance(value, list):
        return {list_key: value}
    if not isinstance(value, dict):
        raise WorkloadError(f"{place}: a JSON object is needed, found {line.strip()[:40]!r}")
    return value


def _refuse_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    found = dict(pairs)
    if len(found) < len(keys):
        repeated = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {repeated!r} is there twice")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
