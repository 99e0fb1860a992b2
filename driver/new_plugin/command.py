"""`interlock new-plugin NAME --seam SEAM`: a distribution that installs and passes the kit."""

import argparse
import keyword
import re
import sys
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path

from interlock.core.errors import ConfigError
from interlock.core.registry import Registry
from interlock.core.seams import SEAMS
from interlock.core.settings import AUTO
from interlock.driver.new_plugin.distribution import Names, distribution_files
from interlock.driver.new_plugin.template import seam_called, template_of
from interlock.driver.output import show


def main(arguments: Sequence[str], registry: Registry) -> None:
    """Write the distribution and say what to type next. ConfigError for what cannot be."""
    parsed = _parser().parse_args(arguments)
    folder = write_plugin(parsed.name, parsed.seam, Path(parsed.out), registry)
    name, seam = Names(parsed.name).choice, template_of(seam_called(parsed.seam)).seam
    show(
        f"wrote {folder}: {seam}={name}\n\nnext:\n"
        f"  pip install -e '{folder}[test]'\n"
        f"  interlock plugins check {seam}/{name}\n"
        f"  interlock run {seam}={name}"
    )


def write_plugin(name: str, seam: str, out: Path, registry: Registry) -> Path:
    """The folder of a new distribution `name` below `out`, with a component of a seam.

    ConfigError, and nothing is written, for a name that cannot be that of a distribution, a module
    and a choice, for one that is taken, and for a folder that is there.
    """
    template = template_of(seam_called(seam))
    names = Names(name)
    problems = [*_name_problems(names), *_taken(names, template.seams, registry)]
    folder = out / name
    if folder.exists() or folder.is_symlink():
        problems.append(
            f"{folder} is there already; nothing is overwritten: choose --out or a name"
        )
    if problems:
        raise ConfigError(problems)
    for path, text in distribution_files(names, template).items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, "utf-8")
    return folder


def _name_problems(names: Names) -> Iterable[str]:
    module = names.module
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9]*([-_.][A-Za-z0-9]+)*", names.distribution):
        yield (
            f"{names.distribution!r} is no name of a distribution here: letters, digits and single "
            "-, _ or . between them, a letter first, like my-drafter"
        )
    elif keyword.iskeyword(module) or module in sys.stdlib_module_names or module == AUTO:
        yield f"{names.distribution!r}: a module {module!r} would hide one of Python's own"


def _taken(names: Names, seams: Sequence[str], registry: Registry) -> Iterable[str]:
    for seam in seams:
        origin = registry.origins.get((seam, names.choice))
        if origin is not None:
            yield f"{seam}={names.choice} is offered by {origin}; choose another name"
            return
    if names.module.isidentifier() and find_spec(names.module) is not None:
        yield f"a module {names.module!r} is installed already; choose another name"


def _parser() -> argparse.ArgumentParser:
    seams = "\n".join(f"  {key:<22} {seam.summary}" for key, seam in SEAMS.items())
    parser = argparse.ArgumentParser(
        prog="interlock new-plugin",
        description="Write a complete distribution with a component of one seam.",
        epilog=f"seams:\n{seams}\n\nAlso by interface: drafter, eviction-policy, prefix-index ...",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", help="of the distribution, like my-drafter")
    parser.add_argument("--seam", required=True, help="what the component decides; see below")
    parser.add_argument("--out", default=".", help="the folder to write it into (default: here)")
    return parser
