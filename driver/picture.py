"""`interlock picture RUN_DIR`: pictures of a finished run's cache."""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from interlock.core.registry import Registry
from interlock.driver.cache_pictures import draw_pictures
from interlock.driver.output import show


def main(arguments: Sequence[str], _registry: Registry) -> int:
    """Draw them and say where they are."""
    parser = argparse.ArgumentParser(
        prog="interlock picture",
        description="Draw the tree of cached prefixes and the pool over time, as PNG, from the "
        "events of a run with cache/events=jsonl.",
    )
    parser.add_argument("run_dir", type=Path, help="a run's folder, which has kv_events.jsonl")
    parser.add_argument("--out", type=Path, help="where the pictures go (default: the folder)")
    parser.add_argument("--step", type=int, help="draw the tree as it was after this step")
    asked = parser.parse_args(list(arguments))
    out = asked.out or asked.run_dir
    for path in draw_pictures(asked.run_dir, out, asked.step, partial(print, file=sys.stderr)):
        show(str(path))
    return 0
