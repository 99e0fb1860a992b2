"""Training text: Python source of the standard library, or any folder of text files.

A file belongs to the held-out part when a hash of its relative path says so, so the split is the
same on every machine and a file never moves between the parts.
"""

import hashlib
import sysconfig
from dataclasses import dataclass
from pathlib import Path

HELD_OUT_SHARE = 0.05
_SKIPPED_FOLDERS = frozenset(
    {"test", "tests", "idle_test", "site-packages", "__pycache__", "encodings", "pydoc_data"}
)


@dataclass(frozen=True)
class Corpus:
    """Documents of the two parts, each in path order."""

    train: list[str]
    held_out: list[str]


def is_held_out(relative_path: str) -> bool:
    """True for the fixed pseudo-random share of paths that training never sees."""
    first_four_bytes = hashlib.sha256(relative_path.encode()).digest()[:4]
    return int.from_bytes(first_four_bytes, "big") < HELD_OUT_SHARE * 2**32


def read_corpus(folder: Path | None = None, pattern: str = "*.py") -> Corpus:
    """All files under `folder` that match `pattern` (default: this Python's standard library).

    Raises:
        FileNotFoundError: no file matched.
    """
    root = folder or Path(sysconfig.get_path("stdlib"))
    corpus = Corpus(train=[], held_out=[])
    seen: set[bytes] = set()
    for path in sorted(root.rglob(pattern)):
        relative = path.relative_to(root)
        if folder is None and _SKIPPED_FOLDERS & set(relative.parts):
            continue
        text = path.read_text(encoding="utf-8", errors="ignore")
        digest = hashlib.sha256(text.encode()).digest()
        if not text.strip() or digest in seen:
            continue
        seen.add(digest)
        part = corpus.held_out if is_held_out(relative.as_posix()) else corpus.train
        part.append(text)
    if not corpus.train:
        raise FileNotFoundError(f"no file matching {pattern!r} under {root}")
    return corpus
