"""Registers and shared memory of every Triton kernel, compiled for GPUs that need not be there.

python -m benchmarks.kernel_table --page docs/kernels.md
"""

import argparse
import importlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from interlock.core.testing.kernel_case import (
    ARCHITECTURES,
    SHARED_LIMIT_BYTES,
    Compiled,
    KernelCase,
    compiled,
)

MODULES = (
    "interlock.plugins.attention.kernels.cases",
    "interlock.plugins.models.kernels.cases",
    "interlock.plugins.attention.kernels.mla_cases",
)
"""Each has a function `cases() -> list[KernelCase]`."""
BEGIN, END = "<!-- kernels -->", "<!-- end of kernels -->"


def all_cases() -> list[KernelCase]:
    """Every kernel that Interlock has, in the table's order."""
    found = [case for name in MODULES for case in importlib.import_module(name).cases()]
    assert len({case.name for case in found}) == len(found), "names are unique"
    return found


def table(cases: list[KernelCase]) -> Iterator[str]:
    """One line a kernel, one column a GPU: registers a thread, KiB of shared memory."""
    header = [f"sm_{number} ({gpu})" for number, gpu in ARCHITECTURES.items()]
    yield f"| kernel | {' | '.join(header)} |"
    yield "|---" * (1 + len(header)) + "|"
    for case in cases:
        cells = [_cell(case, number) for number in ARCHITECTURES]
        yield f"| {case.name} | {' | '.join(cells)} |"


def _cell(case: KernelCase, number: int) -> str:
    if number not in case.architectures:
        return "-"
    used = compiled(case, number)
    print(f"{case.name}: sm_{number} {used}", file=sys.stderr, flush=True)
    return cell(used) + _faults(used, number)


def cell(used: Compiled) -> str:
    """A cell of the table without faults."""
    return f"{used.registers} regs, {used.shared_bytes / 1024:.1f} KiB"


def _faults(used: Compiled, number: int) -> str:
    spilled = f", SPILLS {used.spilled_bytes} B" if used.spilled_bytes else ""
    return spilled + (", TOO MUCH" if used.shared_bytes > SHARED_LIMIT_BYTES[number] else "")


def renewed(page: str, lines: Iterator[str]) -> str:
    """The page's text with the table between its markers."""
    text = "\n".join((BEGIN, *lines, END))
    return re.sub(f"{BEGIN}.*{END}", lambda _: text, page, flags=re.DOTALL)


def names_in(page: str) -> list[str]:
    """The kernels that a page's table lists."""
    rows = page.partition(BEGIN)[2].partition(END)[0].strip().splitlines()[2:]
    return [row.split("|")[1].strip() for row in rows]


def main() -> None:
    """Compile everything and renew the page, or print the table of some kernels."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", type=Path, help="renew the table in this file")
    parser.add_argument("--only", default="", help="kernels whose name contains this text")
    options = parser.parse_args()
    cases = [case for case in all_cases() if options.only in case.name]
    if options.page is None:
        print("\n".join(table(cases)))
    else:
        assert not options.only, "a page lists all kernels"
        options.page.write_text(renewed(options.page.read_text("utf-8"), table(cases)), "utf-8")


if __name__ == "__main__":
    if os.environ.get("TRITON_INTERPRET", "0") != "0":
        sys.exit("TRITON_INTERPRET is set: unset it, since interpreted kernels cannot be compiled")
    main()
