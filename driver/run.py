"""One run: a workload through an engine, with progress, a report and a run folder."""

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console

from interlock.conf.read_config import to_plain
from interlock.core.assemble import build_engine
from interlock.core.component import BuildContext
from interlock.core.engine import Engine
from interlock.core.errors import ContractError
from interlock.core.registry import Chosen
from interlock.core.request import FinishReason, Request, RequestRecord, Status
from interlock.core.settings import EngineConfig
from interlock.core.workload import BadRequest, Workload, WorkloadContext
from interlock.driver.activity import details, inert
from interlock.driver.block_run import replay_run
from interlock.driver.chat_template import chat_ids
from interlock.driver.conversation import Conversation
from interlock.driver.interrupts import Interrupts
from interlock.driver.kv_memory import KVMemory
from interlock.driver.manifest import manifest
from interlock.driver.metrics import summarize
from interlock.driver.peak import measure_cpu_bandwidth
from interlock.driver.report import (
    Progress,
    ProgressView,
    ReportConsole,
    Sample,
    print_report,
)
from interlock.driver.rerun import Rerun, verdict
from interlock.driver.run_folder import write_run
from interlock.driver.speculation import StepTimesAccount
from interlock.driver.weight_bytes import bytes_moved, weight_bytes

Entries = list[Request | BadRequest]
Follow = Callable[[RequestRecord], Sequence[Request | BadRequest]]


def run(config: EngineConfig, run_dir: Path, overrides: Sequence[str]) -> int:
    """Serve the configured workload, write the run folder, print the report; 0 once it ended.

    Raises:
        InterlockError: it could not start (configuration, checkpoint, workload), or a component
            broke its contract on the way; the message names it.
        KeyboardInterrupt: Ctrl-C ended it early; folder and report tell what was done.
    """
    if config.replay.blocks == "ids":
        return replay_run(config, run_dir, overrides)
    replayed = Rerun.of(config.rerun, overrides) if config.rerun is not None else None
    if replayed is not None:
        config = dataclasses.replace(replayed.config(), progress=config.progress)
    console = ReportConsole()
    clock = replayed.clock() if replayed else None
    building = build_engine(config, clock=clock, environment=os.environ, folder=run_dir)
    with closing(building) as engine:
        workload = make_workload(config, engine)
        entries = make_entries(config, engine, workload)
        num_first = len(entries)
        if replayed is not None:
            replayed.require_same_workload(entries)
            replayed.require_same_adapters(engine.core.intake.adapters)
        steps = replayed.steps_before_stop if replayed else None
        times = StepTimesAccount(engine.core.drafts.one_pass)
        engine.watch(times)
        memory = KVMemory(engine)
        engine.watch(memory)
        with Interrupts() as interrupts:
            records = serve(
                engine, entries, config.progress, steps, lambda: interrupts.asked, workload.follow
            )
        served = Run(
            config, engine, entries, records, list(overrides), replayed, num_first, times, memory
        )
        served.finish(console, run_dir)
    if interrupts.asked:
        raise KeyboardInterrupt
    return 0


def make_workload(config: EngineConfig, engine: Engine) -> Workload:
    """The configured workload."""
    context = BuildContext(model=engine.resolution.model, seed=config.seed)
    workload = engine.resolution.build("workload", context)
    assert isinstance(workload, Workload)
    engine.classes["workload"] = type(workload)
    return workload


def make_entries(config: EngineConfig, engine: Engine, workload: Workload | None = None) -> Entries:
    """What the workload (None: the configured one) asks before anything is answered, in order."""
    workload = workload or make_workload(config, engine)
    model, codec = engine.resolution.model, engine.codec
    context = WorkloadContext(
        model=model,
        sampling=config.sampling,
        seed=config.seed,
        encode=codec.encode if codec else None,
        apply_chat_template=partial(chat_ids, codec) if codec else None,
        conversation=partial(Conversation, codec) if codec and codec.chat_template else None,
    )
    entries = workload.requests(context)
    for place, entry in enumerate(entries):
        if not isinstance(entry, Request | BadRequest) or entry.index != place:
            raise ContractError(
                f"{type(workload).__name__}.requests gave {entry!r} at place {place}, where a "
                f"Request or BadRequest of index {place} belongs"
            )
    return entries


def serve(
    engine: Engine,
    entries: Entries,
    progress: bool = True,
    most_steps: int | None = None,
    stop: Callable[[], bool] = lambda: False,
    follow: Follow = lambda _record: (),
) -> list[RequestRecord]:
    """Run all entries to their end; their records in index order, then by sample.

    What `follow` says comes after a request that ended is added to `entries` and served as well.
    `stop`, asked after every step, ends the run early: what was done so far is kept, the rest is
    recorded as unfinished. `most_steps` ends a replay of a run that was stopped.
    """
    records = {(entry.index, 0): _accept(engine, entry) for entry in entries}
    ended = {entry.index for entry in entries if isinstance(entry, BadRequest)}
    leads = _Leads()
    with ProgressView(progress) as view:
        while engine.has_work and (most_steps is None or len(engine.decisions) < most_steps):
            for output in engine.step():
                if output.finished is not None:
                    records[output.index, output.sample] = output.finished
                    ended.add(output.index)
                    if not leads.take(output.finished):
                        continue
                    for entry in _followers(follow, output.finished, records):
                        entries.append(entry)
                        records[entry.index, 0] = _accept(engine, entry)
                        if isinstance(entry, BadRequest):
                            ended.add(entry.index)
            if stop():
                break
            if view.due:
                done = len(ended - {record.index for record in engine.core.unfinished()})
                view.update(_progress(engine, done, len(entries)))
    for record in engine.core.unfinished():
        records[record.index, record.sample] = record
    entries.sort(key=lambda entry: entry.index)
    return [records[key] for key in sorted(records)]


class _Leads:
    """Which sample of a request a workload goes on from: the first, or the first not dropped."""

    def __init__(self) -> None:
        self._dropped: set[int] = set()

    def take(self, record: RequestRecord) -> bool:
        """True for one record of a request at most, as they come."""
        if record.sample == 0 and record.dropped:
            self._dropped.add(record.index)
            return False
        if record.sample > 0 and (record.dropped or record.index not in self._dropped):
            return False
        self._dropped.discard(record.index)
        return True


def _accept(engine: Engine, entry: Request | BadRequest) -> RequestRecord:
    """Submit an entry; its record so far."""
    if isinstance(entry, Request):
        engine.submit(entry)
        return RequestRecord(index=entry.index)
    return RequestRecord(
        index=entry.index,
        status=Status.FAILED,
        finish_reason=FinishReason.ERROR,
        error=entry.reason,
    )


def _followers(
    follow: Follow, record: RequestRecord, known: Mapping[tuple[int, int], RequestRecord]
) -> Iterator[Request | BadRequest]:
    """What comes after this record. Raises ContractError for what the workload may not give."""
    for entry in follow(record):
        sound = isinstance(entry, Request | BadRequest) and (entry.index, 0) not in known
        if not sound or (isinstance(entry, Request) and entry.arrival_s < (record.finished_s or 0)):
            raise ContractError(
                f"the workload's follow gave {entry!r:.200} after request {record.index}, where a "
                f"Request or BadRequest belongs, of a new index and not before {record.finished_s}"
            )
        yield entry


def _progress(engine: Engine, done: int, total: int) -> Progress:
    core = engine.core
    pool = core.cache.pools[0]
    return Progress(
        now_s=core.ledger.last_end_s,
        done=done,
        total=total,
        running=core.num_running,
        waiting=core.num_waiting,
        output_tokens=core.num_emitted,
        kv_usage=pool.held / pool.num_pages,
    )


@dataclass
class Run:
    """A finished run, to be written and reported."""

    config: EngineConfig
    engine: Engine
    entries: Entries
    records: list[RequestRecord]
    overrides: list[str]
    replayed: Rerun | None
    num_first: int | None = None
    """Leading entries that the workload gave before anything was answered; None: all."""

    times: StepTimesAccount | None = None
    memory: KVMemory | None = None
    """What watched its steps."""

    def finish(self, console: Console, run_dir: Path) -> None:
        """Write the run folder, then print the report."""
        engine, codec = self.engine, self.engine.codec
        engine.core.ledger.check()
        summary = self.summary()
        found = manifest(
            components=engine.classes,
            config=to_plain(engine.resolution.config),
            overrides=self.overrides,
            seed=self.config.seed,
            entries=self.entries[: self.num_first],
            model=engine.resolution.model,
            device=torch.device(self.config.device),
            clock=self.clock,
            counters=details(engine, self.entries),
            inert=inert(engine, self.entries),
            adapters=engine.core.intake.adapters,
        )
        found |= {
            "num_requests": len(self.entries),
            "exact_times": self.engine.executor.virtual and not self.engine.executor.unsteady,
            "ranks": engine.ranks,
            "stored_error": engine.losses(),
        }
        if self.replayed is not None:
            found["rerun"] = self.replayed.compare(engine.decisions, self.records)
        decode = codec.continuation if codec else None
        write_run(run_dir, self.entries, self.records, summary, found, engine.decisions, decode)
        try:
            self._print(console, summary, found)
            console.print(f"run folder: {run_dir}", markup=False, highlight=False, soft_wrap=True)
        except (OSError, UnicodeError) as error:
            problem = f"the report cannot be printed ({error}); the run is in {run_dir}"
            Console(stderr=True).print(problem, markup=False, highlight=False, soft_wrap=True)

    def _print(
        self, console: Console, summary: Mapping[str, Any], found: Mapping[str, Any]
    ) -> None:
        chosen = self.engine.resolution.chosen
        parts = {seam: self._named(seam, choice) for seam, choice in chosen.items()}
        stated = found["adapters"].items()
        print_report(
            console,
            summary,
            parts
            | {f"adapter {name}": entry["directory"] for name, entry in stated}
            | self._quantised(),
            inert=found["inert"],
            failures=[(r.index, r.error) for r in self.records if r.error is not None],
            sample=self.sample(),
        )
        if self.replayed is not None:
            console.print(verdict(found["rerun"]), markup=False)

    def _named(self, seam: str, choice: Chosen) -> str:
        """The component's name; beside how the model is split, over how many ranks."""
        ranks, name = self.engine.ranks, choice.component.name
        if seam != "parallel" or ranks["world_size"] == 1:
            return name
        parts = ", ".join(f"{size / 2**20:,.1f}" for size in ranks["weight_bytes"])
        return f"{name}: {ranks['world_size']} ranks ({ranks['backend']}), {parts} MiB of weights"

    def _quantised(self) -> dict[str, str]:
        """What quantised weights are beside those stored: relative rms error by kind of matrix."""
        errors = self.engine.ranks["weight_errors"].items()
        stated = ", ".join(f"{kind} {error:.2%}" for kind, error in errors)
        return {f"weights ({self.config.weights}, lossy)": f"rms error {stated}"} if stated else {}

    @property
    def clock(self) -> Literal["wall", "virtual"]:
        """Which clock the times are on."""
        return "virtual" if self.engine.executor.virtual else "wall"

    def summary(self) -> dict[str, Any]:
        """The figures; memory bandwidth use only where a peak can be measured here."""
        ledger, model = self.engine.core.ledger, self.engine.resolution.model
        moved = peak = None
        planes = self.engine.planes
        here = self.config.device == "cpu" and self.engine.ranks["world_size"] == 1
        if planes is not None and here and self.replayed is None:
            weights = weight_bytes(model, self.engine.dtype)
            if weights is not None and self.config.weights != "auto":
                weights = self.engine.ranks["weight_bytes"][0]
            if weights is not None:
                per_token = planes.layout.bytes_per_token(self.engine.dtype.itemsize)
                moved = bytes_moved(ledger, weights, per_token)
                peak = measure_cpu_bandwidth(weights)
        summary = summarize(
            self.records, ledger, self.config.limits, self.clock,
            bytes_moved=moved, peak_bytes_per_s=peak, stored_error=self.engine.losses(),
        )  # fmt: skip
        if self.times is not None and self.engine.core.drafts.num_drafts:
            summary["speculation"] = self.times.summary(summary["emitted_per_pass"])
        if self.memory is not None:
            summary["kv_memory"] = self.memory.summary()
        return summary

    def sample(self) -> Sample | None:
        """The first request with something to show, as text: all its samples."""
        codec = self.engine.codec
        if codec is None or self.engine.planes is None:
            return None
        given = [r for r in self.records if r.status is Status.FINISHED and not r.dropped]
        if not given:
            return None
        entry = next(one for one in self.entries if one.index == given[0].index)
        assert isinstance(entry, Request)
        ids = entry.prompt_token_ids
        outputs = [
            codec.continuation(ids, r.output_token_ids) for r in given if r.index == entry.index
        ]
        return Sample(entry.index, entry.prompt_text or codec.decode(ids), outputs)
