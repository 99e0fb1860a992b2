"""The folder of a run: written so that a reader finds all of a file or none of it.

requests.jsonl  one line a sample of a request, in input order, refused and failed ones included
summary.json    the figures of `driver/metrics.py`
run.json        the manifest of `driver/manifest.py`: what ran, on what, with which config
steps.jsonl     the decisions of every step, for a rerun
kv_events.jsonl what entered and left the cache, written as it runs (`driver/kv_replica.py`)
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from interlock.conf.check_retention import retention_problems
from interlock.core.batch import StepDecision
from interlock.core.errors import RunFolderError
from interlock.core.request import Request, RequestRecord, TokenLogprobs
from interlock.core.workload import BadRequest

REQUESTS, SUMMARY, RUN, STEPS = "requests.jsonl", "summary.json", "run.json", "steps.jsonl"

Rows = tuple[tuple[int, int, int], ...]
Decode = Callable[[Sequence[int], Sequence[int]], str]
"""The text that ids add to that of the ids before them: (before, ids) -> text."""


@dataclass(frozen=True)
class SavedRun:
    """A run read back: its manifest (`config` is what was resolved) and its decisions."""

    directory: Path
    manifest: dict[str, Any]
    steps: list[StepDecision]

    @property
    def config(self) -> dict[str, Any]:
        """The resolved configuration, as plain values."""
        config: dict[str, Any] = self.manifest["config"]
        return config


def write_run(
    directory: Path,
    entries: Sequence[Request | BadRequest],
    records: Sequence[RequestRecord],
    summary: Mapping[str, Any],
    manifest: Mapping[str, Any],
    steps: Iterable[StepDecision],
    decode: Decode | None = None,
) -> None:
    """Write the four files; `records` are in input order, each of the entry of its index.

    run.json goes first and comes last: a folder that has it is complete. Raises RunFolderError,
    naming the file, when the disk is full or the folder cannot be written.
    """
    _remove(directory / RUN)
    asked = {entry.index: entry for entry in entries}
    lines = (request_line(asked[record.index], record, decode) for record in records)
    write_lines(directory / REQUESTS, lines)
    write_file(directory / STEPS, _step_lines(steps))
    write_file(directory / SUMMARY, _object_lines(summary))
    write_file(directory / RUN, [json.dumps(manifest, allow_nan=False, indent=1)])


def write_replay(
    directory: Path,
    requests: Iterable[Mapping[str, Any]],
    summary: Mapping[str, Any],
    manifest: Mapping[str, Any],
) -> None:
    """As `write_run`, of a replay that took no steps: a line for the hits of each request."""
    _remove(directory / RUN)
    write_lines(directory / REQUESTS, requests)
    write_file(directory / SUMMARY, _object_lines(summary))
    write_file(directory / RUN, [json.dumps(manifest, allow_nan=False, indent=1)])


def request_line(
    entry: Request | BadRequest, record: RequestRecord, decode: Decode | None = None
) -> dict[str, Any]:
    """A line of requests.jsonl. Times are seconds on the run's clock; null where none."""
    assert entry.index == record.index, f"record {record.index} beside request {entry.index}"
    request = entry if isinstance(entry, Request) else None
    hashed = request.hashed_prompt if request else None
    chunks = [
        (at_s, size)
        for at_s, size in zip(record.chunk_times_s, record.chunk_sizes, strict=True)
        if size
    ]
    return {
        "index": record.index,
        "sample": record.sample,
        "dropped": record.dropped,
        "status": record.status.value,
        "finish_reason": record.finish_reason.value if record.finish_reason else None,
        "beam_score": record.beam_score,
        "error": record.error,
        "seed": record.seed,
        "tenant": request.tenant if request else None,
        "adapter": request.adapter if request else None,
        "priority": request.priority if request else None,
        "retention": _retention(request),
        "conversation": request.conversation if request else None,
        "turn": record.turn,
        "num_prompt_tokens": record.num_prompt_tokens,
        "prompt_token_ids": list(request.prompt_token_ids) if request and not hashed else None,
        "prompt_hash_ids": list(hashed.block_ids) if hashed else None,
        "output_token_ids": record.output_token_ids,
        "text": _text(request, record, decode),
        "stopped_by": record.stopped_by,
        "logprobs": [_logprobs_line(one) for one in record.logprobs] or None,
        "prompt_logprobs": [one and _logprobs_line(one) for one in record.prompt_logprobs] or None,
        "arrival_s": record.arrival_s,
        "admitted_s": record.admitted_s,
        "first_token_s": chunks[0][0] if chunks else None,
        "finished_s": record.finished_s,
        "chunk_times_s": [at_s for at_s, _ in chunks],
        "chunk_sizes": [size for _, size in chunks],
        "cached_tokens": record.cached_tokens,
        "shared_tokens": record.shared_tokens,
        "drafted_tokens": record.drafted_tokens,
        "accepted_tokens": record.accepted_tokens,
        "draft_rounds": record.draft_rounds,
        "recomputed_tokens": record.recomputed_tokens,
        "preemptions": record.preemptions,
    }


def _text(request: Request | None, record: RequestRecord, decode: Decode | None) -> str | None:
    """What the request was given if it asked for text, else that of its tokens."""
    if record.text is not None or decode is None:
        return record.text
    if request and request.hashed_prompt:
        return None  # nobody knows what these tokens continue
    if not record.output_token_ids:
        return ""  # a refused prompt may hold ids that no tokenizer takes
    return decode(request.prompt_token_ids if request else (), record.output_token_ids)


def _retention(request: Request | None) -> dict[str, Any] | None:
    """What was asked for; null where that was nothing, or no retention."""
    if request is None or request.retention is None or retention_problems(request.retention):
        return None
    return asdict(request.retention)


def _logprobs_line(one: TokenLogprobs) -> dict[str, Any]:
    """A token of probability 0 has logprob -inf, which JSON lacks: null."""
    top = [[token, _finite(value)] for token, value in one.top]
    return {"chosen": _finite(one.chosen), "top": top}


def _finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None


def _step_lines(steps: Iterable[StepDecision]) -> Iterator[str]:
    """A JSON object for each step. Steps that decode on share their rows, which are put into words
    once."""
    last, rows = None, ""
    for step in steps:
        if step.rows is not last:
            last, rows = step.rows, json.dumps(step.rows)
        times = f'"now_s": {float(step.now_s)!r}, "end_s": {float(step.end_s)!r}'
        yield f'{{"step": {step.step}, {times}, "rows": {rows}}}'


def _object_lines(values: Mapping[str, Any]) -> Iterator[str]:
    """A JSON object with a line for each key, long lists in one line."""
    yield "{"
    last = len(values) - 1
    for place, (key, value) in enumerate(values.items()):
        comma = "," if place < last else ""
        yield f"{json.dumps(key)}: {json.dumps(value, allow_nan=False)}{comma}"
    yield "}"


def write_lines(path: Path, values: Iterable[Any]) -> None:
    """Write JSON values, one a line, to `path`; see `write_file`."""
    write_file(path, (json.dumps(value, allow_nan=False) for value in values))


def write_file(path: Path, lines: Iterable[str]) -> None:
    """Write lines to `path`: the old file stays until the new one is whole.

    Raises RunFolderError, naming the file, for whatever the system refuses.
    """
    with _replacing(path) as file:
        file.writelines(f"{line}\n".encode() for line in lines)


def write_bytes(path: Path, content: bytes) -> None:
    """As `write_file`, of what is no text."""
    with _replacing(path) as file:
        file.write(content)


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        _remove(temporary)


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except NotADirectoryError:
        pass  # the folder is a file: writing said so
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be removed: {error.strerror or error}") from error


def read_run(directory: Path) -> SavedRun:
    """The manifest and decisions of a complete run.

    Raises RunFolderError, naming the file (and line), when one is missing or corrupt.
    """
    if not directory.is_dir():
        raise RunFolderError(f"{directory}: no such run folder; give a folder that holds {RUN}")
    manifest = read_object(directory / RUN)
    if not isinstance(manifest.get("config"), dict):
        raise RunFolderError(f"{directory / RUN}: it holds no config, so it is not a run's")
    steps: list[StepDecision] = []
    asked: Any = None
    for place, line in read_lines(directory / STEPS):
        same = steps and line.get("rows") == asked  # as `_step_lines` wrote them
        asked = line.get("rows")
        steps.append(_step(line, place, steps[-1].rows if same else None))
    return SavedRun(directory, manifest, steps)


def read_requests(directory: Path) -> list[dict[str, Any]]:
    """The lines of requests.jsonl; raises RunFolderError like `read_run`."""
    return [line for _, line in read_lines(directory / REQUESTS)]


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; raises RunFolderError, naming the file, without one."""
    return _object(_read_text(path), str(path))


def read_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Where each line is, in words, and its JSON object; raises like `read_object`."""
    for number, line in enumerate(_read_text(path).splitlines(), start=1):
        place = f"{path}, line {number}"
        yield place, _object(line, place)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise RunFolderError(f"{path}: corrupt: not UTF-8 at byte {error.start}") from error
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be read: {error.strerror or error}") from error


def _object(text: str, place: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise RunFolderError(f"{place}: corrupt: {error}") from error
    if not isinstance(value, dict):
        raise RunFolderError(f"{place}: corrupt: not a JSON object")
    return value


def _step(line: Mapping[str, Any], place: str, rows: Rows | None) -> StepDecision:
    try:
        if rows is None:
            rows = tuple((int(index), int(tokens), int(n)) for index, tokens, n in line["rows"])
        return StepDecision(int(line["step"]), float(line["now_s"]), float(line["end_s"]), rows)
    except (KeyError, TypeError, ValueError) as error:
        raise RunFolderError(
            f"{place}: corrupt: a step is {{step, now_s, end_s, rows: [[index, tokens, drafts]]}}"
        ) from error
