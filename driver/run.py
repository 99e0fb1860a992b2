"""One run: a workload through an engine, with progress, a report and a run folder."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console

from interlock.core.assemble import build_engine
from interlock.core.component import BuildContext
from interlock.core.engine import Engine
from interlock.core.errors import ContractError
from interlock.core.request import FinishReason, Request, RequestRecord, Status
from interlock.core.settings import EngineConfig, to_plain
from interlock.core.workload import BadRequest, Workload, WorkloadContext
from interlock.driver.activity import details, inert
from interlock.driver.interrupts import Interrupts
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
from interlock.driver.weight_bytes import weight_bytes

Entries = list[Request | BadRequest]


def run(config: EngineConfig, run_dir: Path, overrides: Sequence[str]) -> int:
    """Serve the configured workload, write the run folder, print the report; 0 once it ended.

    Raises:
        InterlockError: it could not start (configuration, checkpoint, workload), or a component
            broke its contract on the way; the message names it.
        KeyboardInterrupt: Ctrl-C ended it early; folder and report tell what was done.
    """
    replayed = Rerun.of(config.rerun, overrides) if config.rerun is not None else None
    if replayed is not None:
        config = dataclasses.replace(replayed.config(), progress=config.progress)
    console = ReportConsole()
    engine = build_engine(config, clock=replayed.clock() if replayed else None)
    entries = make_entries(config, engine)
    if replayed is not None:
        replayed.require_same_workload(entries)
    steps = replayed.steps_before_stop if replayed else None
    with Interrupts() as interrupts:
        records = serve(engine, entries, config.progress, steps, lambda: interrupts.asked)
    Run(config, engine, entries, records, list(overrides), replayed).finish(console, run_dir)
    engine.close()
    if interrupts.asked:
        raise KeyboardInterrupt
    return 0


def make_entries(config: EngineConfig, engine: Engine) -> Entries:
    """The requests of the configured workload, in index order."""
    model, codec = engine.resolution.model, engine.codec
    workload = engine.resolution.build("workload", BuildContext(model=model, seed=config.seed))
    assert isinstance(workload, Workload)
    engine.classes["workload"] = type(workload)
    context = WorkloadContext(
        model=model,
        sampling=config.sampling,
        seed=config.seed,
        encode=codec.encode if codec else None,
        apply_chat_template=codec.encode_chat if codec else None,
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
) -> list[RequestRecord]:
    """Run all entries to their end; one record each, in index order.

    `stop`, asked after every step, ends the run early: what was done so far is kept, the rest is
    recorded as unfinished. `most_steps` ends a replay of a run that was stopped.
    """
    records = {entry.index: RequestRecord(index=entry.index) for entry in entries}
    for entry in entries:
        if isinstance(entry, BadRequest):
            records[entry.index] = RequestRecord(
                index=entry.index,
                status=Status.FAILED,
                finish_reason=FinishReason.ERROR,
                error=entry.reason,
            )
        else:
            engine.submit(entry)
    done = sum(isinstance(entry, BadRequest) for entry in entries)
    with ProgressView(progress) as view:
        while engine.has_work and (most_steps is None or len(engine.decisions) < most_steps):
            for output in engine.step():
                if output.finished is not None:
                    records[output.index] = output.finished
                    done += 1
            if stop():
                break
            if view.due:
                view.update(_progress(engine, done, len(entries)))
    for record in engine.core.unfinished():
        records[record.index] = record
    return [records[entry.index] for entry in entries]


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
            entries=self.entries,
            model=engine.resolution.model,
            device=torch.device(self.config.device),
            clock=self.clock,
            counters=details(engine),
            inert=inert(engine),
        )
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
        print_report(
            console,
            summary,
            {seam: choice.component.name for seam, choice in chosen.items()},
            inert=found["inert"],
            failures=[(r.index, r.error) for r in self.records if r.error is not None],
            sample=self.sample(),
        )
        if self.replayed is not None:
            console.print(verdict(found["rerun"]), markup=False)

    @property
    def clock(self) -> Literal["wall", "virtual"]:
        """Which clock the times are on."""
        return "virtual" if self.engine.executor.virtual else "wall"

    def summary(self) -> dict[str, Any]:
        """The figures; memory bandwidth use only where a peak can be measured here."""
        ledger, model = self.engine.core.ledger, self.engine.resolution.model
        moved = peak = None
        planes = self.engine.planes
        if planes is not None and self.config.device == "cpu" and self.replayed is None:
            weights = weight_bytes(model, self.engine.dtype)
            if weights is not None:
                per_token = planes.layout.bytes_per_token(self.engine.dtype.itemsize)
                moved = ledger.bytes_moved(weights, per_token)
                peak = measure_cpu_bandwidth(weights)
        return summarize(
            self.records, ledger, self.config.limits, self.clock,
            bytes_moved=moved, peak_bytes_per_s=peak,
        )  # fmt: skip

    def sample(self) -> Sample | None:
        """The first finished request as text."""
        codec = self.engine.codec
        if codec is None or self.engine.planes is None:
            return None
        for entry, record in zip(self.entries, self.records, strict=True):
            if isinstance(entry, Request) and record.status is Status.FINISHED:
                prompt = entry.prompt_text or codec.decode(entry.prompt_token_ids)
                output = codec.continuation(entry.prompt_token_ids, record.output_token_ids)
                return Sample(record.index, prompt, output)
        return None
