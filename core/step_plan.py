"""From planned rows to what an executor gets, and the checks of what comes back."""

from collections.abc import Sequence

import numpy as np

from interlock.core.batch import Batch, Draft, Ints, Pages, StepPlan, StepResult
from interlock.core.errors import ContractError
from interlock.core.live import Live, PlannedRow


def make_batch(rows: Sequence[PlannedRow], tables: tuple[Pages, ...], page_size: int) -> Batch:
    """The batch of these rows. O(new tokens), apart from a constant a row."""
    tokens: list[Ints] = []
    positions: list[Ints] = []
    for row in rows:
        end = row.start + row.tokens
        tokens.append(row.live.sequence.slice(row.start, end))
        positions.append(np.arange(row.start, end, dtype=np.int64))
        if row.draft.tokens:
            tokens.append(np.array(row.draft.tokens, dtype=np.int64))
            positions.append(end - 1 + np.array(row.draft.depths(), dtype=np.int64))
    lengths = [row.tokens + len(row.draft.tokens) for row in rows]
    return Batch(
        request_ids=tuple(row.live.id for row in rows),
        tokens=np.concatenate(tokens),
        positions=np.concatenate(positions),
        row_offsets=np.concatenate([[0], np.cumsum(lengths)]),
        starts=np.array([row.start for row in rows], dtype=np.int64),
        logit_counts=np.array(
            [1 + len(row.draft.tokens) if row.samples else 0 for row in rows], dtype=np.int64
        ),
        drafts={r: row.draft for r, row in enumerate(rows) if row.draft.tokens},
        slots=np.array([_slot(row.live) for row in rows], dtype=np.int64),
        tables=tables,
        page_size=page_size,
        adapters=_adapters(rows),
        copies=tuple(copy for row in rows for copy in row.copies),
    )


def make_plan(step_id: int, rows: Sequence[PlannedRow], batch: Batch, now_s: float) -> StepPlan:
    """The plan that runs these rows."""
    lives = [row.live for row in rows]
    edits = {
        r: row.live.edits.at(row.draft)
        for r, row in enumerate(rows)
        if row.live.edits and row.samples
    }
    return StepPlan(
        step_id=step_id,
        batch=batch,
        now_s=now_s,
        params=tuple(live.request.sampling for live in lives),
        seeds=np.array([live.seed for live in lives], dtype=np.uint64),
        tokens_left=np.array([live.tokens_left for live in lives], dtype=np.int64),
        draft_limits=np.array([row.draft_limit for row in rows], dtype=np.int64),
        next_tokens={r: _next_token(row) for r, row in enumerate(rows) if not row.samples},
        edits={r: edit for r, edit in edits.items() if edit is not None},
        scored={r: _scored(row) for r, row in enumerate(rows) if row.live.scores_prompt},
    )


def _next_token(row: PlannedRow) -> int:
    end = row.start + row.tokens
    return int(row.live.sequence.slice(end, end + 1)[0])


def _scored(row: PlannedRow) -> tuple[int, ...]:
    sequence = row.live.sequence
    end = min(row.start + row.tokens + 1, sequence.num_prompt)
    return tuple(sequence.slice(row.start + 1, end).tolist())


def check_draft(draft: Draft, vocab_size: int, drafter: str) -> None:
    """Raise ContractError, naming the drafter, unless this is a chain or tree of tokens."""
    parents = draft.parents
    sound = all(isinstance(t, int | np.integer) and 0 <= t < vocab_size for t in draft.tokens)
    if parents is not None:
        sound = sound and len(parents) == len(draft.tokens)
        sound = sound and all(-1 <= parent < node for node, parent in enumerate(parents))
    if not sound:
        raise ContractError(f"{drafter} proposed {draft}, which is no draft")


def check_result(plan: StepPlan, result: StepResult, executor: str) -> None:
    """Raise ContractError, naming the executor, unless this answers every row of the plan."""
    rows = len(result.token_offsets) - 1
    if result.step_id != plan.step_id or rows != plan.batch.num_rows:
        raise ContractError(
            f"{executor} answered step {result.step_id} with {rows} rows; "
            f"step {plan.step_id} has {plan.batch.num_rows}"
        )
    for r, wanted in plan.scored.items():
        given = len(result.prompt_logprobs.get(r, ()))
        if given != len(wanted) and r not in result.errors:
            raise ContractError(f"{executor} scored {given} of {len(wanted)} prompt tokens")


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


def _adapters(rows: Sequence[PlannedRow]) -> tuple[int, ...]:
    numbers = tuple(row.live.adapter for row in rows)
    return numbers if any(number >= 0 for number in numbers) else ()


def _slot(live: Live) -> int:
    assert live.holding is not None
    return live.holding.slot
