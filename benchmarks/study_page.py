"""The page of a study of 100 cells: its size, the time to write it, and how soon a browser has it.

python -m benchmarks.study_page --json docs/results/study_page.json

The study is synthetic (10 metrics, 3 repeats, requests and steps of every run): what the page shows
is made up, how much it has to show is not. Opening is from navigation to the load event, in a
headless browser that has opened another page before.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1]))  # started as a file or as a module

from benchmarks.beside.needs import absent
from interlock.study.report.page import page_of
from interlock.study.report.plots import plots_of
from tests.study.report.browser import NAMES, Browser, installed
from tests.study.report.conftest import make, write_runs

FACTORS = {
    "cache": ["none", "radix", "block_hash", "trie", "exact"],
    "spec": ["none", "eagle", "ngram", "medusa", "suffix"],
    "order": ["fcfs", "shortest", "priority", "fair"],
}
LOADED = "performance.getEntriesByType('navigation')[0].loadEventEnd"


def main() -> None:
    """Measure, print and perhaps keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--times", type=int, default=9, help="how often it is opened")
    parser.add_argument("--levels", type=int, default=5, help="of each factor, at most")
    asked = parser.parse_args()
    path = installed()
    if path is None:
        absent(f"no browser: none of {', '.join(NAMES)} is installed")
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # browsers write on for a while
        found = measured(Path(folder), path, asked.times, asked.levels)
    print(json.dumps(found, indent=1))
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1) + "\n")


def measured(folder: Path, browser: str, times: int, most: int) -> dict[str, object]:
    """Everything that is said of the page."""
    results = write_runs(make({n: levels[:most] for n, levels in FACTORS.items()}), folder / "runs")
    start_s = time.perf_counter()
    text = page_of(results, plots_of(results))
    written_s = time.perf_counter() - start_s
    page, other = folder / "report.html", folder / "other.html"
    page.write_text(text, encoding="utf-8")
    other.write_text("<!doctype html><title>another</title>", encoding="utf-8")
    opened = Browser(browser, folder / "profile")
    try:
        opened.open(other)
        taken_s = []
        for _ in range(times):
            opened.open(page)
            taken_s.append(opened.value(LOADED) / 1e3)
        kind = opened.ask("Browser.getVersion")["product"]
    finally:
        opened.close()
    return {
        "cells": len(results.cells),
        "runs": len(results.observations),
        "metrics": len(results.study.metrics),
        "bytes": page.stat().st_size,
        "written_s": round(written_s, 2),
        "opened_s": {
            "median": round(statistics.median(taken_s), 3),
            "worst": round(max(taken_s), 3),
            "times": times,
        },
        "browser": kind,
        "machine": {"platform": platform.platform(), "cores": os.cpu_count()},
    }


if __name__ == "__main__":
    main()
