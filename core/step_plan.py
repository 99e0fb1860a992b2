"""From planned rows to what an executor gets, and the checks of what comes back."""

from collections.abc import Sequence
from itertools import chain

import numpy as np

from interlock.core.batch import Batch, Draft, Pages, StepPlan, StepResult
from interlock.core.errors import ContractError
from interlock.core.live import Live
from interlock.core.running import Running
from interlock.core.step_rows import PlannedRows


def make_batch(
    rows: PlannedRows, running: Running, tables: tuple[Pages, ...], page_size: int
) -> Batch:
    """The batch of these rows. O(new tokens)."""
    slots, lives, starts = rows.roster.slots, rows.roster.lives, rows.starts
    lengths = rows.tokens + rows.drafted
    offsets = np.zeros(len(slots) + 1, dtype=np.int64)
    lengths.cumsum(out=offsets[1:])
    total, chunks = int(offsets[-1]), (rows.tokens > 1) | ~rows.samples
    positions = starts.copy()
    if total > len(slots):
        positions = np.arange(total) + (starts - offsets[:-1]).repeat(lengths)
    tokens = np.empty(total, dtype=np.int64)
    tokens[offsets[:-1]] = running.last[slots]
    for r in chunks.nonzero()[0].tolist():
        at, start, count = int(offsets[r]), int(starts[r]), int(rows.tokens[r])
        tokens[at : at + count] = lives[r].sequence.slice(start, start + count)
    for r, draft in rows.drafts.items():
        end = int(offsets[r + 1])
        begin = end - len(draft.tokens)
        tokens[begin:end] = draft.tokens
        positions[begin:end] = positions[begin - 1] + np.array(draft.depths())
    return Batch(
        request_ids=rows.roster.ids, tokens=tokens, positions=positions, row_offsets=offsets,
        starts=starts, logit_counts=(1 + rows.drafted) * rows.samples, drafts=rows.drafts,
        slots=slots, tables=tables, page_size=page_size, adapters=rows.roster.adapters,
        copies=rows.copies,
    )  # fmt: skip


def make_plan(
    step_id: int, rows: PlannedRows, batch: Batch, running: Running, now_s: float
) -> StepPlan:
    """The plan that runs these rows."""
    roster, slots, samples = rows.roster, rows.roster.slots, rows.samples
    lives, ends = roster.lives, rows.starts + rows.tokens
    edits = {}
    for r in (running.special[slots] & samples).nonzero()[0].tolist():
        changes = lives[r].edits
        edit = changes.at(batch.draft(r)) if changes else None
        if edit is not None:
            edits[r] = edit
    return StepPlan(
        step_id=step_id,
        batch=batch,
        now_s=now_s,
        params=roster.params,
        seeds=roster.seeds,
        tokens_left=running.most[slots] - running.length[slots],
        draft_limits=rows.draft_limits,
        draft_ends=rows.draft_ends,
        next_tokens={
            r: int(lives[r].sequence.slice(int(ends[r]), int(ends[r]) + 1)[0])
            for r in (~samples).nonzero()[0].tolist()
        },
        edits=edits,
        scored={
            r: _scored(lives[r], int(rows.starts[r]), int(ends[r]))
            for r in (rows.starts < running.prompt[slots]).nonzero()[0].tolist()
            if lives[r].scores_prompt
        },
    )


def _scored(live: Live, start: int, end: int) -> tuple[int, ...]:
    sequence = live.sequence
    return tuple(sequence.slice(start + 1, min(end + 1, sequence.num_prompt)).tolist())


def check_draft(draft: Draft, vocab_size: int, drafter: str) -> None:
    """Raise ContractError, naming the drafter, unless this is a chain or tree of tokens.

    Laws and estimates, where there are some, must be one a candidate.
    """
    parents = draft.parents
    sound = all(isinstance(t, int | np.integer) and 0 <= t < vocab_size for t in draft.tokens)
    laws, rated = draft.laws, len(draft.confidence)
    sound = sound and (laws is None or tuple(laws.shape) == (len(draft.tokens), vocab_size))
    sound = sound and rated in (0, len(draft.tokens))
    if parents is not None:
        sound = sound and len(parents) == len(draft.tokens)
        sound = sound and all(-1 <= parent < node for node, parent in enumerate(parents))
    if not sound:
        raise ContractError(f"{drafter} proposed {draft}, which is no draft")


def check_result(plan: StepPlan, result: StepResult, executor: str) -> None:
    """Raise ContractError, naming the executor, unless this answers every row of the plan."""
    offsets, rows = result.token_offsets, plan.batch.num_rows
    if result.step_id != plan.step_id or len(offsets) != rows + 1:
        raise ContractError(
            f"{executor} answered step {result.step_id} with {len(offsets) - 1} rows; "
            f"step {plan.step_id} has {rows}"
        )
    by_row = result.kept_paths, result.drafts, result.errors, result.logprobs
    sound = np.int64 == getattr(offsets, "dtype", None) == getattr(result.tokens, "dtype", None)
    sound = sound and offsets[0] == 0 and offsets[-1] == len(result.tokens)
    sound = sound and bool(np.logical_and.reduce(offsets[1:] >= offsets[:-1]))
    if not sound or any(not 0 <= r < rows for r in chain(*by_row, result.prompt_logprobs)):
        raise ContractError(f"{executor} gave {result}, which is no answer to {rows} rows")
    for r, wanted in plan.scored.items():
        given = len(result.prompt_logprobs.get(r, ()))
        if given != len(wanted) and r not in result.errors:
            raise ContractError(f"{executor} scored {given} of {len(wanted)} prompt tokens")


def check_answers(batch: Batch, result: StepResult, vocab_size: int, verifier: str) -> None:
    """Raise ContractError unless each row that wants a token gave one behind a path of its draft.

    The others' tokens, and those of rows with an error, are not looked at.
    """
    doubtful = result.token_offsets[1:] - result.token_offsets[:-1] != 1
    (strange,) = (result.tokens.view(np.uint64) >= vocab_size).nonzero()  # negative ones as well
    if len(strange):
        doubtful[np.searchsorted(result.token_offsets, strange, "right") - 1] = True
    if batch.drafts or result.kept_paths:
        doubtful[[*batch.drafts, *result.kept_paths]] = True
    if result.errors:
        doubtful[list(result.errors)] = False
    for r in (doubtful & (batch.logit_counts > 0)).nonzero()[0].tolist():
        path = result.kept_paths.get(r, ())
        check_tokens(batch.draft(r), result.tokens_of(r), path, vocab_size, verifier)


def check_tokens(
    draft: Draft, tokens: Sequence[int], path: Sequence[int], vocab_size: int, verifier: str
) -> None:
    """Raise ContractError, naming the verifier, unless the tokens are a path and one token more."""
    parents = draft.parents or tuple(range(-1, len(draft.tokens) - 1))
    expected = -1
    sound = len(tokens) == len(path) + 1
    for place, node in enumerate(path):
        sound = sound and 0 <= node < len(draft.tokens) and parents[node] == expected
        sound = sound and draft.tokens[node] == tokens[place]
        expected = node
    sound = sound and all(0 <= t < vocab_size for t in tokens)
    if not sound:
        raise ContractError(f"{verifier} gave tokens {tokens} along {path} for the draft {draft}")
