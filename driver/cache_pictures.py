"""Pictures of a run's cache, from its events: the tree of prefixes, and the pool over time."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from interlock.core.errors import ConfigError, RunFolderError
from interlock.driver.cache_tree import TreeRun, collapsed, tree_of
from interlock.driver.kv_replica import DEVICE, EVENTS, Replica, read_events

MOST_LANES = 48
"""Leaves of a tree that are drawn one by one."""
LABEL_SHARE = 0.0065
"""Of the picture's width that a letter takes."""
STATES = ("free", "cached", "held", "in transit")
COLOURS = ("#e8eaed", "#8ab6d6", "#2f6690", "#e07a5f")


def draw_pictures(
    run_dir: Path, out: Path, step: int | None = None, tell: Callable[[str], None] = print
) -> list[Path]:
    """Write `cache_tree.png` (after `step`; None: the last one) and `cache_pool.png` into `out`.

    `tell` is told of a last event that is cut off, and left out.

    Raises:
        RunFolderError: the run left no events, or they are corrupt; names the file.
        ConfigError: matplotlib is not installed, the run has no such step, `out` is no folder.
    """
    plt = _pyplot()
    replica, batches = _replayed(run_dir / EVENTS, step, tell)
    paths = [out / "cache_tree.png", out / "cache_pool.png"]
    try:
        out.mkdir(parents=True, exist_ok=True)
        _draw_tree(plt, replica, paths[0])
        _draw_pool(plt, replica.header, batches, paths[1])
    except OSError as error:
        raise ConfigError(
            f"{error.filename or out}: no pictures can be written there ({error.strerror}); "
            "--out FOLDER puts them elsewhere"
        ) from error
    return paths


def _replayed(
    path: Path, step: int | None, tell: Callable[[str], None]
) -> tuple[Replica, list[dict[str, Any]]]:
    """What was cached after this step, and the batches of all steps."""
    header, *lines = read_events(path, tell)
    with _at(path, 1):
        replica, media = Replica(header), [m for m in header["media"] if m != DEVICE]
        tables = len(header["pool_pages"])
    batches = []
    for number, batch in enumerate(lines, start=2):
        with _at(path, number):
            _require_numbers(batch, media, tables)
            if batch["step"] is not None:
                batches.append((number, batch))
    _require_step(step, [batch["step"] for _, batch in batches])
    for number, batch in batches:
        if step is None or batch["step"] <= step:
            with _at(path, number):
                replica.apply(batch)
    return replica, [batch for _, batch in batches]


@contextmanager
def _at(path: Path, number: int) -> Iterator[None]:
    """Name this line of the events in whatever is wrong with it."""
    try:
        yield
    except RunFolderError as error:
        raise RunFolderError(f"{path}, line {number}: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        what = f"{type(error).__name__}: {error}"
        raise RunFolderError(f"{path}, line {number}: corrupt: no events ({what})") from error


def _require_numbers(batch: Mapping[str, Any], media: Sequence[str], tables: int) -> None:
    """Some TypeError, KeyError or IndexError where one that is drawn is not there."""
    pools = [batch["pools"][table][state] for table in range(tables) for state in range(4)]
    sum([batch["time_s"], batch["step"] or 0, *pools, *(batch["tiers"][m] for m in media)])


def _require_step(step: int | None, steps: Sequence[int]) -> None:
    if step is None or (steps and steps[0] <= step <= steps[-1]):
        return
    there = (
        f"the steps with events are {steps[0]} to {steps[-1]}" if steps else "no step has events"
    )
    raise ConfigError(f"--step={step}: {there}")


def _pyplot() -> Any:
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise ConfigError(
            f"pictures need matplotlib ({error}): pip install 'interlock[plot]'"
        ) from error
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    return plt


def _draw_tree(plt: Any, replica: Replica, path: Path) -> None:
    """Runs as boxes: as wide as they have tokens, one above the other where prompts part."""
    from matplotlib.colors import LogNorm

    pages = len(replica.pages)
    roots = collapsed(tree_of(replica), MOST_LANES)
    lanes = max(1, sum(run.lanes for run in roots))
    figure, axis = plt.subplots(figsize=(11, 1.6 + 0.2 * lanes), layout="constrained")
    most = max((page.uses for page in replica.pages.values()), default=0)
    norm, colours = LogNorm(1, max(2, most + 1)), plt.get_cmap("YlGnBu")
    reach = _reach(roots)
    waiting: list[tuple[TreeRun, int]] = []
    lane = 0
    for root in roots:
        waiting.append((root, lane))
        lane += root.lanes
    while waiting:
        run, low = waiting.pop()
        _draw_box(axis, run, low, colours(norm(run.uses + 1)), reach)
        for child in run.children:
            waiting.append((child, low))
            low += child.lanes
    axis.set(xlim=(0, reach * 1.06), ylim=(lanes, 0), yticks=[])
    axis.set_xlabel("tokens from the beginning of the prompt")
    spaces = len({page.namespace for page in replica.pages.values()})
    axis.set_title(
        f"{pages:,} cached pages of {replica.page_size} tokens, {spaces} namespaces"
        if spaces > 1
        else f"{pages:,} cached pages of {replica.page_size} tokens"
    )
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
    bar = figure.colorbar(plt.cm.ScalarMappable(norm, colours), ax=axis, pad=0.01, fraction=0.03)
    ticks = sorted({0, *(2**n - 1 for n in range(1, 20) if 2**n - 1 <= most)})
    bar.set_ticks([tick + 1 for tick in ticks], labels=[str(tick) for tick in ticks], minor=False)
    bar.minorticks_off()
    bar.set_label("requests that started on it")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _reach(roots: Sequence[TreeRun]) -> int:
    """Tokens of the longest prompt."""
    reach, waiting = 1, list(roots)
    while waiting:
        run = waiting.pop()
        reach = max(reach, run.depth + run.tokens)
        waiting += run.children
    return reach


def _draw_box(axis: Any, run: TreeRun, low: int, colour: Any, reach: int) -> None:
    """A run, with its tokens in it; beside it where they do not fit and nothing follows."""
    hatch = "////" if run.merged else None
    axis.barh(
        low + run.lanes / 2, run.tokens, left=run.depth, height=run.lanes - 0.12, color=colour,
        edgecolor="white" if not run.merged else "#9aa5b1", linewidth=0.6, hatch=hatch,
    )  # fmt: skip
    text = f"{run.merged} more" if run.merged else f"{run.tokens:,}"
    fits = run.tokens / reach > LABEL_SHARE * len(text)
    if not fits and run.children:
        return
    dark = fits and sum(colour[:3]) < 1.4
    axis.text(
        run.depth + (run.tokens / 2 if fits else run.tokens), low + run.lanes / 2,
        text if fits else f" {text}", ha="center" if fits else "left", va="center", fontsize=7,
        color="white" if dark else "#333333", clip_on=True,
    )  # fmt: skip


def _draw_pool(
    plt: Any, header: Mapping[str, Any], batches: Sequence[Mapping[str, Any]], path: Path
) -> None:
    """For each page table who has its pages, over time; the bytes of tiers beneath."""
    tables, tiers = len(header["pool_pages"]), [m for m in header["media"] if m != "device"]
    rows = tables + bool(tiers)
    figure, axes = plt.subplots(
        rows, 1, figsize=(9, 0.8 + 2.6 * rows), sharex=True, squeeze=False, layout="constrained"
    )
    times = [batch["time_s"] for batch in batches]
    for table in range(tables):
        axis, base = axes[table, 0], [0] * len(times)
        for state, colour in reversed(list(zip(range(4), COLOURS, strict=True))):
            tops = [
                low + batch["pools"][table][state] for low, batch in zip(base, batches, strict=True)
            ]
            axis.fill_between(
                times, base, tops, step="post", color=colour, label=STATES[state], linewidth=0
            )
            base = tops
        axis.set_ylabel("pages" if tables == 1 else f"pages of table {table}")
        axis.set_ylim(0, header["pool_pages"][table])
        if len(times) > 1:
            axis.set_xlim(times[0], times[-1])
    axes[0, 0].legend(loc="lower right", ncols=4, fontsize=8, bbox_to_anchor=(1, 1), frameon=False)
    if tiers:
        for tier in tiers:
            mib = [batch["tiers"][tier] / 2**20 for batch in batches]
            axes[-1, 0].step(times, mib, where="post", label=tier)
        axes[-1, 0].set_ylabel("MiB in tiers")
        axes[-1, 0].set_ylim(bottom=0)
        axes[-1, 0].legend(fontsize=8, frameon=False)
    axes[-1, 0].set_xlabel("seconds of the run")
    figure.savefig(path, dpi=120)
    plt.close(figure)
