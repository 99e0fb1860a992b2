"""Kernels in Triton's interpreter, which a process has from its start or not at all.

TRITON_INTERPRET=1 python -m pytest tests/kernels/interpreted
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted((Path(__file__).parent / "interpreted").glob("test_*.py"))


@pytest.mark.timeout(1200)  # a whole file, of which each test has the usual limit
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_kernels_pass_their_tests_in_the_interpreter(file: Path) -> None:
    pytest.importorskip("triton")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    result = subprocess.run(
        [*command, str(file)],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert " passed" in result.stdout
