"""The C++ beside this file as a library, compiled once for a machine and kept for later runs.

torch's own OpenMP threads run it: two thread pools on the same cores would wait for each other.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import torch  # noqa: F401  its OpenMP runtime must be loaded before the library

SOURCE = Path(__file__).with_name("short_rows.cpp")
COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fopenmp", "-fPIC", "-Wall", "-Wextra", "-Werror")
TIMEOUT_S = 300


class NativeError(Exception):
    """Why the kernel cannot run here."""


@cache
def library() -> ctypes.CDLL:
    """The loaded library; NativeError says what this machine lacks.

    The first use on a machine compiles for a few seconds. Only this user can write the folder that
    keeps the result.
    """
    compiler = next((found for name in COMPILERS if (found := shutil.which(name))), None)
    if compiler is None:
        raise NativeError(f"no C++ compiler ({', '.join(COMPILERS)}) is on the path")
    try:
        return ctypes.CDLL(str(_compiled(compiler)))
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        raise NativeError(f"{compiler} gave no library: {said.strip()[-500:]}") from error


def _compiled(compiler: str) -> Path:
    kept = _folder() / f"short_rows-{_key(compiler)}.so"
    if kept.exists():
        return kept
    with tempfile.TemporaryDirectory(dir=kept.parent) as work:
        made = Path(work, "short_rows.o"), Path(work, "short_rows.so")
        _run(compiler, *FLAGS, "-c", str(SOURCE), "-o", str(made[0]))
        # Without -fopenmp here the names of the OpenMP runtime stay open, and torch's are taken.
        _run(compiler, "-shared", str(made[0]), "-o", str(made[1]))
        made[1].replace(kept)  # another process that compiles the same thing does no harm
    return kept


def _run(*command: str) -> str:
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=TIMEOUT_S)
    return done.stdout


def _key(compiler: str) -> str:
    """Changes with the source, the flags, the compiler and what `native` means here."""
    target = _run(compiler, *FLAGS, "-E", "-dM", "-x", "c++", os.devnull)
    parts = (SOURCE.read_text(encoding="utf-8"), *FLAGS, platform.machine(), target)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def _folder() -> Path:
    """Where compiled libraries are kept: below the home folder, else a new private one."""
    try:
        folder = Path.home() / ".cache" / "interlock"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.access(folder, os.W_OK) and not folder.stat().st_mode & 0o022:
            return folder
    except (OSError, RuntimeError):
        pass
    return Path(tempfile.mkdtemp(prefix="interlock-"))
