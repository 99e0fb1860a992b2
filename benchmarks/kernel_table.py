"""Registers and shared memory of every Triton kernel, compiled for GPUs that need not be there.

python -m benchmarks.kernel_table --page docs/kernels.md
"""

import argparse
import importlib
import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict
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


def compile_all(cases: list[KernelCase]) -> dict[str, dict[int, Compiled]]:
    """What each kernel uses, by name and architecture."""
    found: dict[str, dict[int, Compiled]] = {}
    for case in cases:
        for number in case.architectures:
            used = found.setdefault(case.name, {})[number] = compiled(case, number)
            print(f"{case.name}: sm_{number} {used}", file=sys.stderr, flush=True)
    return found


def table(found: dict[str, dict[int, Compiled]]) -> Iterator[str]:
    """One line a kernel, one column a GPU: registers a thread, KiB of shared memory."""
    header = [f"sm_{number} ({gpu})" for number, gpu in ARCHITECTURES.items()]
    yield f"| kernel | {' | '.join(header)} |"
    yield "|---" * (1 + len(header)) + "|"
    for name, used in found.items():
        cells = [
            cell(used[number]) + _faults(used[number], number) if number in used else "-"
            for number in ARCHITECTURES
        ]
        yield f"| {name} | {' | '.join(cells)} |"


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
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    options = parser.parse_args()
    if options.page and options.only:
        parser.error("--page lists all kernels: leave out --only")
    cases = [case for case in all_cases() if options.only in case.name]
    if not cases:
        parser.error(f"--only {options.only}: no kernel's name contains it; without --only all run")
    found = compile_all(cases)
    if options.page:
        options.page.write_text(renewed(options.page.read_text("utf-8"), table(found)), "utf-8")
    else:
        print("\n".join(table(found)))
    if options.json:
        numbers = {
            name: {f"sm_{number}": asdict(one) for number, one in used.items()}
            for name, used in found.items()
        }
        options.json.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if os.environ.get("TRITON_INTERPRET", "0") != "0":
        sys.exit("TRITON_INTERPRET is set: unset it, since interpreted kernels cannot be compiled")
    main()
