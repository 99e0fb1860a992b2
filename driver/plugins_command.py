"""`interlock plugins`: what is installed, and whether it keeps its contracts."""

import argparse
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from interlock.core.errors import ConfigError
from interlock.core.hooks import CONTRACT
from interlock.core.registry import Registry
from interlock.core.seams import SEAMS
from interlock.driver.output import show
from interlock.driver.plugin_check import (
    FAILED,
    PASSED,
    SKIPPED,
    Checked,
    check,
    components_called,
)


def main(arguments: Sequence[str], registry: Registry) -> int:
    """List plugins, or check some; 0 when all is well, 1 when a test failed or could not run."""
    parsed = _parser().parse_args(arguments)
    if parsed.command == "check":
        return _check(parsed, registry)
    show(json.dumps(listing(registry), indent=2) if parsed.json else listing_text(registry))
    return 0


def listing(registry: Registry) -> dict[str, Any]:
    """Seams with their components and where each came from; what else plugins bring; the broken."""
    return {
        "contract": CONTRACT,
        "plugins": [
            {"distribution": origin.distribution, "version": origin.version, "contract": contract}
            for origin, contract in registry.contracts.items()
        ],
        "components": [
            {
                "seam": seam,
                "name": name,
                "summary": registry.components[seam, name].summary,
                "distribution": registry.origins[seam, name].distribution,
                "version": registry.origins[seam, name].version,
                "contract": registry.contracts[registry.origins[seam, name]],
            }
            for seam in SEAMS
            for name in sorted(n for key, n in registry.components if key == seam)
        ],
        "model_families": sorted(registry.families),
        "model_formats": sorted(registry.formats),
        "broken": [
            {
                "distribution": plugin.origin.distribution,
                "version": plugin.origin.version,
                "entry_point": plugin.entry_point,
                "cause": plugin.cause,
                "offered": sorted(f"{seam}={name}" for seam, name in plugin.offered),
            }
            for plugin in registry.broken
        ],
    }


def listing_text(registry: Registry) -> str:
    """The same as a table."""
    return "\n".join(_lines(listing(registry)))


def _lines(found: dict[str, Any]) -> Iterator[str]:
    yield f"plugin contract {found['contract']}"
    for plugin in found["plugins"]:
        yield f"  {plugin['distribution']} {plugin['version']} (contract {plugin['contract']})"
    columns = ("seam", "name", "distribution", "version", "contract")
    titles: tuple[str, ...] = ("seam", "component", *columns[2:])
    rows = [titles, *(tuple(str(c[column]) for column in columns) for c in found["components"])]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    yield ""
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()
    yield ""
    yield f"model families: {', '.join(found['model_families'])}"
    yield f"model formats: {', '.join(found['model_formats'])}"
    for plugin in found["broken"]:
        offered = f" (offered {', '.join(plugin['offered'])})" if plugin["offered"] else ""
        name = f"{plugin['distribution']} {plugin['version']}".strip()
        yield f"BROKEN: {name}, {plugin['entry_point']}{offered}: {plugin['cause']}"


def _check(parsed: argparse.Namespace, registry: Registry) -> int:
    declared = dict(_declared(text) for text in parsed.declare)
    keys = components_called(parsed.name, registry)
    if len(keys) > 1 and (parsed.option or declared):
        listed = ", ".join(f"{seam}/{name}" for seam, name in keys)
        raise ConfigError(f"{parsed.name!r} is several components; name one of {listed}")
    results = []
    for key in keys:
        results.append(check(registry, key, parsed.option, declared))
        show("\n".join(_shown(results[-1], parsed.full)))
    good = sum(result.passed for result in results)
    if len(results) > 1:
        show(f"\n{good} of {len(results)} components keep their contract")
    return 0 if good == len(results) else 1


def _declared(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    if not value:
        return name, True
    return name, json.loads(value) if re.fullmatch(r"true|false|\d+", value) else value


def _shown(result: Checked, full: bool) -> Iterator[str]:
    yield f"{result.component} ({result.origin})"
    if result.refused:
        yield f"  NOT CHECKED: {result.refused}"
        return
    for test in result.tests:
        why = f": {test.why}" if test.why else ""
        yield f"  {test.outcome:<7} {test.test}{why}"
        if full and test.details:
            yield from (f"          {line}" for line in test.details.splitlines())
    counts = {kind: sum(t.outcome == kind for t in result.tests)
              for kind in (PASSED, FAILED, SKIPPED)}  # fmt: skip
    verdict = "keeps its contract" if result.passed else "does NOT keep its contract"
    yield f"  {verdict}: " + ", ".join(f"{n} {kind.lower()}" for kind, n in counts.items())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="interlock plugins", description="List what is installed, or run the conformance kit."
    )
    parser.add_argument("--json", action="store_true", help="the list for programs")
    commands = parser.add_subparsers(dest="command")
    checking = commands.add_parser(
        "check",
        help="run the contract tests of a seam on a component",
        description="Run the contract tests on a component, or on all of a distribution. "
        "Exit status 1: a test failed, or there was none to run.",
    )
    checking.add_argument("name", help="component, seam/component, or distribution")
    checking.add_argument(
        "option", nargs="*", help="options of the component, as for `interlock run`; {scratch} in "
        "a value is a new empty folder for each instance",
    )  # fmt: skip
    checking.add_argument(
        "--declare", action="append", default=[], metavar="ATTRIBUTE[=VALUE]",
        help="of the contract class, where no capability tells (spec: remembers)",
    )  # fmt: skip
    checking.add_argument("--full", action="store_true", help="failed tests with their tracebacks")
    return parser
