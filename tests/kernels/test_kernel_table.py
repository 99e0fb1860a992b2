"""Kernels compile for GPUs that are not here, within their limits; the table lists them all."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "kernels.md").read_text("utf-8")
COMPILED = (
    "gqa write, head size 80, bf16 to fp8",
    "gqa prefill 128x32 x8, head size 128, bf16",
    "gqa prefill 128x64 x8, head size 128, bf16",
    "gqa decode 16x64 x4, head size 128, bf16, fp8 natively",
    "gqa verification 64x32 x8, head size 128, bf16",
    "grouped product, contiguous, gate and up, biased, bf16",
    "mla absorbed 16x32 x8, 16 heads with trees, bf16, fp8 latents",
)
"""Kernels that are compiled here; the rest is what the page says."""
SCRIPT = """
import json, sys
from benchmarks.kernel_table import all_cases, names_in
from interlock.core.testing.kernel_case import compiled
page, wanted = sys.argv[1], sys.argv[2:]
found = {case.name: case for case in all_cases()}
used = [(name, a, compiled(found[name], a)) for name in wanted for a in found[name].architectures]
print(json.dumps({
    "all": list(found), "listed": names_in(open(page, encoding="utf-8").read()),
    "used": [(name, a, u.spilled_bytes, u.shared_bytes) for name, a, u in used],
}))
"""


@pytest.fixture(scope="module")
def told() -> dict:
    pytest.importorskip("triton")
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    page = str(ROOT / "docs" / "kernels.md")
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, page, *COMPILED],
        cwd=ROOT, env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_the_table_lists_exactly_the_kernels_there_are(told: dict) -> None:
    assert told["listed"] == told["all"], "renew docs/kernels.md with its command"


def test_kernels_compile_for_every_architecture_without_spills(told: dict) -> None:
    from interlock.core.testing.kernel_case import SHARED_LIMIT_BYTES

    assert {name for name, *_ in told["used"]} == set(COMPILED)
    for name, architecture, spilled, shared in told["used"]:
        assert spilled == 0, name
        assert shared <= SHARED_LIMIT_BYTES[architecture], name


def test_no_kernel_of_the_table_spills_or_needs_more_than_there_is() -> None:
    assert re.search(r"\d+ regs, [\d.]+ KiB", PAGE)
    assert "SPILLS" not in PAGE
    assert "TOO MUCH" not in PAGE
