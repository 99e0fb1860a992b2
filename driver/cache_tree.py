"""The cached pages of a run as a tree of runs, small enough to draw."""

from dataclasses import dataclass, field

from interlock.driver.kv_replica import Page, Replica


@dataclass
class TreeRun:
    """Pages that follow each other without a branch, all used as often."""

    tokens: int
    uses: int
    last_used_s: float
    depth: int
    """Tokens before it."""
    children: list["TreeRun"] = field(default_factory=list)
    merged: int = 0
    """Leaves that it stands for, if it stands for more than itself."""
    lanes: int = 1

    @property
    def subtree_tokens(self) -> int:
        """Of the run and all that follow it."""
        total, waiting = 0, [self]
        while waiting:
            run = waiting.pop()
            total += run.tokens
            waiting += run.children
        return total


def tree_of(replica: Replica) -> list[TreeRun]:
    """The first runs of all prompts, those with most tokens behind them first."""
    following: dict[str | None, list[Page]] = {}
    for page in replica.pages.values():
        following.setdefault(page.parent, []).append(page)
    roots: list[TreeRun] = []
    waiting = [(page, roots, 0) for page in following.get(None, [])]
    while waiting:
        page, siblings, depth = waiting.pop()
        run = TreeRun(0, page.uses, page.last_used_s, depth)
        siblings.append(run)
        while True:
            run.tokens += page.tokens
            after = following.get(page.key, [])
            if len(after) != 1 or after[0].uses != run.uses:
                break
            page = after[0]
        waiting += [(one, run.children, depth + run.tokens) for one in after]
    return roots


def collapsed(roots: list[TreeRun], most_lanes: int) -> list[TreeRun]:
    """The same tree with at most about so many leaves: small siblings become one run.

    Each level shares its lanes out to the largest subtrees; the rest is one run as long as its
    prompts are on average, with their most uses and how many leaves it stands for.
    """
    waiting = [(roots, most_lanes)]
    while waiting:
        siblings, lanes = waiting.pop()
        siblings.sort(key=lambda run: -run.subtree_tokens)
        kept = siblings if len(siblings) <= lanes else siblings[: max(1, lanes) - 1]
        rest = siblings[len(kept) :]
        total = sum(run.subtree_tokens for run in kept) or 1
        spare = max(0, lanes - len(kept) - bool(rest))
        for run in kept:
            waiting.append((run.children, 1 + spare * run.subtree_tokens // total))
        if rest:
            siblings[len(kept) :] = [_merged(rest)]
    _count_lanes(roots)
    return roots


def _merged(runs: list[TreeRun]) -> TreeRun:
    ends = [end for run in runs for end in _ends(run)]
    return TreeRun(
        max(1, sum(ends) // len(ends) - runs[0].depth),
        max(run.uses for run in runs), max(run.last_used_s for run in runs),
        runs[0].depth, merged=len(ends),
    )  # fmt: skip


def _ends(root: TreeRun) -> list[int]:
    """How many tokens each prompt under a run has."""
    ends, waiting = [], [root]
    while waiting:
        run = waiting.pop()
        if not run.children:
            ends.append(run.depth + run.tokens)
        waiting += run.children
    return ends


def _count_lanes(roots: list[TreeRun]) -> None:
    order, waiting = list[TreeRun](), list(roots)
    while waiting:
        run = waiting.pop()
        order.append(run)
        waiting += run.children
    for run in reversed(order):
        run.lanes = sum(child.lanes for child in run.children) or 1
