"""What an engine's prefix index holds, by walking it; and a consumer of its events beside it."""

import json
from collections import defaultdict

from interlock.driver.kv_replica import Replica


def walked(engine):
    """The rows of every indexed page's whole prefix, a set for each salt, in no order."""
    spaces = defaultdict(set)

    def path(run):
        rows = [tuple(row) for row in run.rows.tolist()]
        return (path(run.parent) if run.parent else ()) + tuple(rows)

    for run in engine.core.cache.index.runs():
        rows = path(run)
        for end in range(len(rows) - len(run.pages) + 1, len(rows) + 1):
            spaces[run.salt].add(rows[:end])
    return sorted(map(sorted, spaces.values()))


def drained(engine):
    """The salt and rows of each page in the order in which this engine evicts them."""
    order, runs = [], engine.core.cache.runs
    while True:
        paths = {}
        for run in runs.index.runs():
            rows, node = [], run
            while node is not None:
                rows, node = node.rows.tolist() + rows, node.parent
            paths[int(run.pages[-1])] = (run.salt, rows)
        gone = runs.evict(1)
        if not len(gone):
            return order
        order.append(paths[int(gone[0])])


def companions(engine):
    """For each window the rows of the pages that have a companion, in the order of `anchors`."""
    rows_of = {}
    for run in engine.core.cache.index.runs():
        rows, node = [], run
        while node is not None:
            rows, node = node.rows.tolist() + rows, node.parent
        for place, page in enumerate(run.pages, start=1):
            rows_of[int(page)] = (run.salt, rows[: len(rows) - len(run.pages) + place])
    windows = engine.core.cache.windows.values()
    return [[rows_of[anchor] for anchor in window.anchors.tolist()] for window in windows]


def rebuilt(replica):
    """The same of a replica, by following parents."""
    spaces = defaultdict(set)
    for key, page in replica.pages.items():
        spaces[page.namespace].add(tuple(one.row for one in replica.prefix(key)))
    return sorted(map(sorted, spaces.values()))


class Follower:
    """A consumer that sees an engine's events as JSON alone, and compares after every batch."""

    def __init__(self, engine, compare=True):
        self.engine, self.compare = engine, compare
        events = engine.watches["cache/events"]
        self.replica = Replica(json.loads(json.dumps(events.header())))
        self.batches = []
        events.subscribe(self.take)

    def take(self, batch):
        line = json.loads(json.dumps(batch.line(), allow_nan=False))
        self.batches.append(line)
        self.replica.apply(line)
        cleared = [e for e in line["events"] if e["event"] == "removed" and e["keys"] is None]
        if self.compare and not cleared:
            self.same()

    def same(self):
        assert rebuilt(self.replica) == walked(self.engine)
        assert len(self.replica.pages) == self.engine.core.cache.index.num_pages()

    def kinds(self):
        return {event["event"] for batch in self.batches for event in batch["events"]}

    def events(self, kind):
        return [e for batch in self.batches for e in batch["events"] if e["event"] == kind]
