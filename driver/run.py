"""One run: a workload through an engine, with progress, a report and a run folder."""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from interlock.core.assemble import build_engine
from interlock.core.clock import ReplayClock
from interlock.core.component import BuildContext
from interlock.core.engine import Engine
from interlock.core.errors import ConfigError, ContractError, InterlockError, RunFolderError
from interlock.core.metrics import summarize
from interlock.core.read_config import read_config
from interlock.core.registry import load_registry
from interlock.core.request import FinishReason, Request, RequestRecord, Status
from interlock.core.settings import EngineConfig, to_plain
from interlock.core.workload import BadRequest, Workload, WorkloadContext
from interlock.driver.activity import details, inert
from interlock.driver.interrupts import Interrupts
from interlock.driver.manifest import manifest, workload_hash
from interlock.driver.peak import measure_cpu_bandwidth
from interlock.driver.report import (
    Progress,
    ProgressView,
    ReportConsole,
    Sample,
    print_report,
)
from interlock.driver.run_folder import SavedRun, read_requests, read_run, write_run
from interlock.driver.weight_bytes import weight_bytes

Entries = list[Request | BadRequest]


def run(config: EngineConfig, run_dir: Path, overrides: Sequence[str]) -> int:
    """Serve the configured workload, write the run folder, print the report; 0 once it ended.

    Raises:
        InterlockError: it could not start (configuration, checkpoint, workload), or a component
            broke its contract on the way; the message names it.
        KeyboardInterrupt: Ctrl-C ended it early; folder and report tell what was done.
    """
    replayed = None
    if config.rerun is not None:
        _refuse_beside_rerun(overrides)
        replayed = _recorded_run(config.rerun)
        config = dataclasses.replace(recorded_config(replayed), progress=config.progress)
    console = ReportConsole()
    clock = None
    if replayed is not None:
        clock = ReplayClock([t for s in replayed.steps for t in (s.now_s, s.end_s)])
    engine = build_engine(config, clock=clock)
    entries = make_entries(config, engine)
    if replayed is not None and workload_hash(entries) != replayed.manifest.get("workload_sha256"):
        raise InterlockError(
            f"rerun={replayed.directory}: the workload is not the recorded one; its file, the "
            "model's files or the program have changed since"
        )
    steps = len(replayed.steps) if replayed else None
    with Interrupts() as interrupts:
        records = serve(engine, entries, config.progress, steps, lambda: interrupts.asked)
    Run(config, engine, entries, records, list(overrides), replayed).finish(console, run_dir)
    engine.close()
    if interrupts.asked:
        raise KeyboardInterrupt
    return 0


def _recorded_run(folder: str) -> SavedRun:
    """A run's folder, whole; ConfigError for one that is not."""
    try:
        saved = read_run(Path(folder).expanduser())
        read_requests(saved.directory)  # what the rerun will be compared with
    except RunFolderError as error:
        raise ConfigError(f"rerun={folder}: {error}") from error
    return saved


def _refuse_beside_rerun(overrides: Sequence[str]) -> None:
    """The configuration of a rerun is the recorded one: what else was asked for is not done."""
    kept = ("rerun", "progress", "hydra")
    others = [text for text in overrides if re.split(r"[=./@]", text.lstrip("+~"))[0] not in kept]
    if others:
        raise ConfigError(
            f"rerun= takes the recorded configuration and nothing else; leave out "
            f"{' '.join(others)}, or leave out rerun= for a new run"
        )


def recorded_config(saved: SavedRun) -> EngineConfig:
    """The configuration of a saved run, with the thread count it really had."""
    problems: list[str] = []
    device = saved.manifest.get("device")
    ran = device.items() if isinstance(device, dict) else ()
    threads = {key: value for key, value in ran if key == "threads"}
    config = read_config(saved.config | threads, load_registry(), problems)
    if config is None:
        raise ConfigError([f"rerun={saved.directory}: {problem}" for problem in problems])
    return config


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
    replayed: SavedRun | None

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
            found["rerun"] = self.compare(self.replayed)
        decode = codec.decode if codec else None
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
            console.print(_verdict(found["rerun"]), markup=False)

    @property
    def clock(self) -> Any:
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
                return Sample(record.index, prompt, codec.decode(record.output_token_ids))
        return None

    def compare(self, saved: SavedRun) -> dict[str, Any]:
        """Whether the replay made the recorded decisions and tokens; the first difference."""
        differing = [
            step.step
            for step, recorded in zip(self.engine.decisions, saved.steps, strict=False)
            if step.rows != recorded.rows
        ]
        tokens = {
            line.get("index"): line.get("output_token_ids")
            for line in read_requests(saved.directory)
        }
        changed = [r.index for r in self.records if r.output_token_ids != tokens.get(r.index)]
        steps_equal = not differing and len(self.engine.decisions) == len(saved.steps)
        return {
            "of": str(saved.directory),
            "same_decisions": steps_equal,
            "first_differing_step": differing[0] if differing else None,
            "same_tokens": not changed,
            "differing_requests": changed,
        }


def _verdict(comparison: dict[str, Any]) -> str:
    if comparison["same_decisions"] and comparison["same_tokens"]:
        return f"rerun of {comparison['of']}: the same decisions and the same tokens"
    return (
        f"rerun of {comparison['of']} DIFFERS: first differing step "
        f"{comparison['first_differing_step']}, requests with other tokens: "
        f"{comparison['differing_requests'] or 'none'}"
    )
