"""What a run did, in numbers: the summary of its requests and steps.

Field names are those of `vllm bench serve`, so that the same scripts read both. A figure that is
not defined is None (JSON null), never 0 and never NaN.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, Literal

from interlock.core.ledger import StepLedger
from interlock.core.request import RequestRecord, Status
from interlock.core.settings import LimitsConfig
from interlock.driver.latency import Latencies, latencies, pooled, statistics_ms

DETAILED_TOKENS = 100_000
"""A longer list of inter-token times makes a summary that nobody opens."""


def given(limits: LimitsConfig) -> dict[str, float]:
    """The limits that are set: {"ttft_ms": 500.0}."""
    return {name: limit for name, limit in vars(limits).items() if limit is not None}


def is_good(found: Latencies, limits: LimitsConfig) -> bool:
    """True when a completed request meets all limits.

    One token has no time per output token, hence meets that limit (as vLLM counts it); a request
    that gave no token meets no limit on its first one.
    """
    values = {"ttft_ms": found.ttft_s, "tpot_ms": found.tpot_s or 0.0, "e2el_ms": found.e2el_s}
    return all(
        (value := values[name]) is not None and value * 1e3 <= limit
        for name, limit in given(limits).items()
    )


def summarize(
    records: Sequence[RequestRecord],
    ledger: StepLedger,
    limits: LimitsConfig | None = None,
    clock: Literal["wall", "virtual"] = "wall",
    bytes_moved: int | None = None,
    peak_bytes_per_s: float | None = None,
    detailed: bool | None = None,
    stored_error: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """The summary of a run; `records` (one a sample) in input order, failed ones included.

    A request is completed when all its samples have finished; its prompt counts once. Latencies,
    token totals and throughput count completed requests only (`sets` names each set and its
    size), and of their samples those given out: what best_of or a beam search dropped is in
    `dropped_samples` and in the account of `tokens`. Duration runs from the first scheduled arrival
    to the last event.
    `detailed` adds the per-request lists of vLLM (seconds, input order, null where none); None
    adds them to runs of up to DETAILED_TOKENS output tokens (requests.jsonl has it all anyway).
    `stored_error`: of cached rows that are not stored exactly, the relative error by plane.
    """
    if detailed is None:
        detailed = sum(len(r.output_token_ids) for r in records) <= DETAILED_TOKENS
    limits = limits or LimitsConfig()
    status = _status(records)
    whole = [r for r in records if status[r.index] is Status.FINISHED]
    completed = [r for r in whole if not r.dropped]
    requests = len({r.index for r in whole})
    found = [latencies(r) for r in completed]
    duration_s = _duration(records, ledger)
    good = requests - len(
        {r.index for r, one in zip(completed, found, strict=True) if not is_good(one, limits)}
    )
    inputs = sum(r.num_prompt_tokens for r in whole if r.sample == 0)
    outputs = sum(len(r.output_token_ids) for r in completed)
    summary: dict[str, Any] = {
        "clock": clock,
        "duration": duration_s,
        **_counts(list(status.values())),
        "samples": len(completed),
        "dropped_samples": sum(r.dropped for r in records),
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": _ratio(requests, duration_s),
        "request_goodput": _ratio(good, duration_s) if given(limits) else None,
        "goodput_limits": given(limits),
        "good_requests": good if given(limits) else None,
        "output_throughput": _ratio(outputs, duration_s),
        "total_token_throughput": _ratio(inputs + outputs, duration_s),
        "max_concurrent_requests": max_concurrent(records),
        **_latency_statistics(found),
        **_speculation(ledger),
        **_engine(records, ledger),
        "mbu": None,
        "stored_error": dict(stored_error or {}),
    }
    if bytes_moved is not None and peak_bytes_per_s:
        summary["mbu"] = _ratio(bytes_moved, ledger.busy_s * peak_bytes_per_s)
    return summary | (request_lists(records) if detailed else {})


def request_lists(records: Sequence[RequestRecord]) -> dict[str, list[Any]]:
    """vLLM's per-request lists, one entry a request; seconds; null for a time that is none."""
    found = [latencies(r) for r in records]
    return {
        "input_lens": [r.num_prompt_tokens for r in records],
        "output_lens": [len(r.output_token_ids) for r in records],
        "ttfts": [one.ttft_s for one in found],
        "itls": [one.itl_s.tolist() for one in found],
        "start_times": [r.arrival_s for r in records],
        "errors": [r.error or "" for r in records],
    }


def max_concurrent(records: Sequence[RequestRecord]) -> int:
    """Most requests that had arrived and not ended at one moment (refused ones never count)."""
    served: dict[int, list[RequestRecord]] = {}
    for record in records:
        if record.admitted_s is not None:
            served.setdefault(record.index, []).append(record)
    ends = [[r.finished_s for r in samples] for samples in served.values()]
    events = [(samples[0].arrival_s, 1) for samples in served.values()]
    whole = [[time for time in times if time is not None] for times in ends if None not in times]
    events += [(max(times), -1) for times in whole]
    return max(accumulate(change for _, change in sorted(events)), default=0)


def _ratio(part: float, whole: float | None) -> float | None:
    return part / whole if whole else None


def _duration(records: Sequence[RequestRecord], ledger: StepLedger) -> float:
    if not records:
        return 0.0
    ends = [r.finished_s for r in records if r.finished_s is not None]
    start_s = min(r.arrival_s for r in records)
    return max([start_s, ledger.last_end_s, *ends]) - start_s


def _status(records: Sequence[RequestRecord]) -> dict[int, Status]:
    """A request's status by index: finished when all its samples are, else that of another."""
    status: dict[int, Status] = {}
    for record in records:
        if status.get(record.index, Status.FINISHED) is Status.FINISHED:
            status[record.index] = record.status
    return status


def _counts(statuses: Sequence[Status]) -> dict[str, int]:
    of = {status: statuses.count(status) for status in Status}
    return {
        "completed": of[Status.FINISHED],
        "failed": of[Status.FAILED],
        "aborted": of[Status.ABORTED],
        "unfinished": of[Status.WAITING] + of[Status.RUNNING] + of[Status.PREEMPTED],
    }


def _latency_statistics(found: Sequence[Latencies]) -> dict[str, Any]:
    ttft = [one.ttft_s for one in found if one.ttft_s is not None]
    tpot = [one.tpot_s for one in found if one.tpot_s is not None]
    e2el = [one.e2el_s for one in found if one.e2el_s is not None]
    itl = pooled(one.itl_s for one in found)
    gaps = pooled(one.chunk_gap_s for one in found)
    of = "completed requests"
    return {
        **statistics_ms("ttft", ttft),
        **statistics_ms("tpot", tpot),
        **statistics_ms("itl", itl),
        **statistics_ms("e2el", e2el),
        **statistics_ms("chunk_gap", gaps),
        "sets": {
            "ttft": {"of": f"{of} with a token", "count": len(ttft)},
            "tpot": {"of": f"{of} with two or more tokens", "count": len(tpot)},
            "itl": {"of": f"tokens after the first, of {of}", "count": len(itl)},
            "e2el": {"of": of, "count": len(e2el)},
            "chunk_gap": {"of": f"chunks after the first, of {of}", "count": len(gaps)},
        },
    }


def _speculation(ledger: StepLedger) -> dict[str, Any]:
    """vLLM's fields: a draft is one request's round, acceptance length counts the bonus token."""
    rounds = ledger.draft_rounds
    mean_accepted = _ratio(ledger.accepted, rounds)
    return {
        "spec_decode_num_drafts": rounds,
        "spec_decode_draft_tokens": ledger.accepted + ledger.rejected,
        "spec_decode_accepted_tokens": ledger.accepted,
        "spec_decode_acceptance_rate": _ratio(ledger.accepted, ledger.accepted + ledger.rejected),
        "spec_decode_acceptance_length": None if mean_accepted is None else 1 + mean_accepted,
        "spec_decode_per_position_acceptance_rates": [
            count / rounds for count in ledger.accepted_by_depth
        ],
        "conditional_acceptance": conditional(ledger),
        "emitted_per_round": _ratio(sum(ledger.emitted_by_depth), rounds),
        "candidates": candidates(ledger),
    }


def candidates(ledger: StepLedger) -> dict[str, Any]:
    """By depth: offered, verified and accepted candidates, and tokens that rounds gave out."""
    kinds = ("offered", "verified", "accepted", "emitted")
    found = {kind: list(getattr(ledger, f"{kind}_by_depth")) for kind in kinds}
    return {**found, "cut": ledger.cut}


def conditional(ledger: StepLedger) -> list[float | None]:
    """By depth, the share of the rounds accepted up to there that accepted one more candidate.

    A draft that ended or was cut before that depth counts as one that was refused there; how many
    were verified at each depth is in `candidates`.
    """
    before = [ledger.draft_rounds, *ledger.accepted_by_depth]
    return [_ratio(n, of) for n, of in zip(ledger.accepted_by_depth, before, strict=False)]


def _by_turn(admitted: Sequence[RequestRecord]) -> dict[str, float | None]:
    """The hit rate of every turn of conversations; empty without any."""
    turns: dict[int, list[RequestRecord]] = {}
    for record in admitted:
        if record.turn is not None:
            turns.setdefault(record.turn, []).append(record)
    return {
        str(turn): _ratio(
            sum(r.cached_tokens for r in turns[turn]), sum(r.num_prompt_tokens for r in turns[turn])
        )
        for turn in sorted(turns)
    }


def _engine(records: Sequence[RequestRecord], ledger: StepLedger) -> dict[str, Any]:
    admitted = [r for r in records if r.admitted_s is not None and not r.shared_tokens]
    return {
        "prefix_cache_hit_rate": _ratio(
            sum(r.cached_tokens for r in admitted), sum(r.num_prompt_tokens for r in admitted)
        ),
        "prefix_cache_hit_rate_by_turn": _by_turn(admitted),
        "emitted_per_pass": _ratio(
            sum(r.pass_tokens for r in records), sum(r.target_passes for r in records)
        ),
        "preemptions": sum(r.preemptions for r in records),
        "kv_usage": {
            "mean": _ratio(ledger.kv_usage_sum, ledger.steps),
            "peak": ledger.kv_usage_peak if ledger.steps else None,
        },
        "steps": ledger.steps,
        "rows": ledger.rows,
        "peak_running": ledger.peak_running,
        "peak_waiting": ledger.peak_waiting,
        "busy_s": ledger.busy_s,
        "tokens": ledger.tokens(),
    }
