"""C++ sources as libraries, compiled once for a machine and kept for later runs.

torch's own OpenMP threads run it: two thread pools on the same cores would wait for each other.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import torch  # noqa: F401  its OpenMP runtime must be loaded before the library

COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fopenmp", "-fPIC", "-Wno-psabi")
"""psabi warns of vectors that are wider than the processor's; here none crosses files."""
TIMEOUT_S = 300


class NativeError(Exception):
    """Why compiled code cannot run here."""


def native_library(source: Path) -> ctypes.CDLL:
    """The loaded library of one C++ file; NativeError says what this machine lacks.

    The first use on a machine compiles for a few seconds. Only this user can write the folder that
    keeps the result. What fails is not tried again in this process.
    """
    made = tried(source)
    if isinstance(made, str):
        raise NativeError(made)
    return made


@cache
def tried(source: Path) -> ctypes.CDLL | str:
    """The library, or why there is none."""
    compiler = next((found for name in COMPILERS if (found := shutil.which(name))), None)
    if compiler is None:
        return f"no C++ compiler ({', '.join(COMPILERS)}) is on the path"
    try:
        with TemporaryDirectory(prefix="interlock-") as private:
            return ctypes.CDLL(str(_compiled(compiler, source, _folder() or Path(private))))
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        return f"{compiler} gave no library: {said.strip()[-500:]}"


def _compiled(compiler: str, source: Path, folder: Path) -> Path:
    """A file that was cut or changed since is compiled again: loading it might end the process."""
    begin = f"{source.stem}-{_key(compiler, source)}-"
    for kept in folder.glob(f"{begin}*.so"):
        if kept.stem == begin + _digest(kept.read_bytes()):
            return kept
    with TemporaryDirectory(dir=folder) as work:
        made = Path(work, "made.o"), Path(work, "made.so")
        _run(compiler, *FLAGS, "-c", str(source), "-o", str(made[0]))
        # Without -fopenmp the names of the OpenMP runtime stay open, and torch's are taken.
        _run(compiler, "-shared", str(made[0]), "-o", str(made[1]))
        # Another process that compiles the same thing does no harm.
        return made[1].replace(folder / f"{begin}{_digest(made[1].read_bytes())}.so")


def _run(*command: str) -> str:
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=TIMEOUT_S)
    return done.stdout


def _key(compiler: str, source: Path) -> str:
    """Changes with source, headers beside it, flags, compiler and what `native` means here."""
    target = _run(compiler, *FLAGS, "-E", "-dM", "-x", "c++", os.devnull)
    files = (source, *sorted(source.parent.glob("*.h")))
    parts = (*(file.read_text("utf-8") for file in files), *FLAGS, platform.machine(), target)
    return _digest("\0".join(parts).encode())


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:24]


def _folder() -> Path | None:
    """Below the home folder, where libraries are kept; None: no folder is this user's alone."""
    try:
        folder = Path.home() / ".cache" / "interlock"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = folder.stat()
        ours = facts.st_uid == os.getuid() and not facts.st_mode & 0o022
        return folder if ours and os.access(folder, os.W_OK | os.X_OK) else None
    except (OSError, RuntimeError):
        return None
