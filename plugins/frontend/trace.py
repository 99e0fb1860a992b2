"""Replay of a Mooncake trace: `workload=trace workload.path=FILE`.

Format: JSON lines of {timestamp (ms), input_length, output_length, hash_ids}, a hash for each block
of 512 prompt tokens (Qin et al., FAST'25; github.com/kvcache-ai/Mooncake, FAST25-release/traces).
Other keys are ignored. Prompts stay hashes: a trace of 145 million tokens takes a few megabytes.
"""

from typing import Any

from interlock.core.component import BuildContext
from interlock.core.errors import ConfigError, WorkloadError
from interlock.core.request import HashedPrompt, Request
from interlock.core.workload import BadRequest, Workload, WorkloadContext
from interlock.plugins.frontend.configs import MOONCAKE, TraceConfig
from interlock.plugins.frontend.jsonl import read_objects

COUNTS = ("input_length", "output_length")
LAST_MS = 1e13
"""Three centuries: a clock that stands later cannot tell a step's milliseconds any more."""


class Trace(Workload):
    """The requests of a window of a trace, each running to its recorded output length."""

    def __init__(self, config: TraceConfig) -> None:
        if problems := config.missing():
            raise ConfigError(problems)
        self.config = config

    def requests(self, context: WorkloadContext) -> list[Request | BadRequest]:
        """One request a line whose timestamp lies in the window, in file order."""
        config = self.config
        end_s = float("inf") if config.duration_s is None else config.start_s + config.duration_s
        found: list[Request | BadRequest] = []
        for number, line in read_objects(config.path, MOONCAKE):
            _check(line, f"{config.path}, line {number}", config.block_tokens)
            at_s = line["timestamp"] / 1e3
            if config.start_s <= at_s < end_s:
                found.append(self._request(len(found), line, at_s, context))
            if len(found) == config.limit:
                break
        if not found:
            window = f"from {config.start_s:g} s to {end_s:g} s of the trace"
            raise WorkloadError(f"{config.path}: no request {window}")
        return found

    def _request(
        self, index: int, line: dict[str, Any], at_s: float, context: WorkloadContext
    ) -> Request:
        config, sampling = self.config, context.sampling
        prompt = HashedPrompt(tuple(line["hash_ids"]), config.block_tokens, line["input_length"])
        return Request(
            index=index,
            hashed_prompt=prompt,
            sampling=type(sampling)(
                seed=sampling.seed, max_tokens=line["output_length"], ignore_eos=True
            ),
            arrival_s=(at_s - config.start_s) / config.speed,
        )


def build(config: TraceConfig, _context: BuildContext) -> Trace:
    """The workload of a config."""
    return Trace(config)


def _check(line: dict[str, Any], place: str, block_tokens: int) -> None:
    """Refuse what is no line of such a trace, or one of another block size."""
    missing = [key for key in ("timestamp", *COUNTS, "hash_ids") if key not in line]
    if missing:
        raise WorkloadError(f"{place}: no {', '.join(missing)}; expected {MOONCAKE}")
    if type(line["timestamp"]) not in (int, float) or not 0 <= line["timestamp"] <= LAST_MS:
        raise WorkloadError(
            f"{place}: timestamp={line['timestamp']!r} is not milliseconds from 0 to 1e13"
        )
    for key in COUNTS:
        if type(line[key]) is not int or line[key] < 0:
            raise WorkloadError(f"{place}: {key}={line[key]!r} is not an integer >= 0")
    hashes = line["hash_ids"]
    if not isinstance(hashes, list) or not all(type(one) is int for one in hashes):
        raise WorkloadError(f"{place}: hash_ids is not a list of integers")
    blocks = -(-line["input_length"] // block_tokens)
    if len(hashes) != blocks:
        raise WorkloadError(
            f"{place}: {len(hashes)} hash_ids for input_length={line['input_length']}, which has "
            f"{blocks} blocks of workload.block_tokens={block_tokens}"
        )
