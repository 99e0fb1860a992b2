"""Books what the rows of a finished step computed: in the run's ledger and in the records."""

from collections.abc import Sequence

import numpy as np

from interlock.core.batch import Ints, StepResult
from interlock.core.draft_length import DraftRound, StepOutcome
from interlock.core.kv_cache import Flags
from interlock.core.ledger import StepLedger
from interlock.core.request import RequestRecord, TokenLogprobs
from interlock.core.running import Running
from interlock.core.step_rows import PlannedRows


def book_rows(rows: PlannedRows, running: Running, ledger: StepLedger) -> Flags:
    """Book the rows' tokens by kind; which rows are decode or verify passes."""
    slots = rows.roster.slots
    known = running.high_water[slots]
    passes: Flags = (rows.tokens == 1) & (rows.starts >= np.maximum(running.prompt[slots], known))
    num_passes, recomputed = int(np.count_nonzero(passes)), 0
    for r in (known > rows.starts).nonzero()[0].tolist():
        again = min(int(rows.tokens[r]), int(known[r] - rows.starts[r]))
        rows.roster.lives[r].record.recomputed_tokens += again
        recomputed += again
    ledger.ran(
        prompt=int(rows.tokens.sum()) - recomputed - num_passes, recomputed=recomputed,
        decode=num_passes, drafted=int(rows.drafted.sum()), context=int(rows.starts.sum()),
    )  # fmt: skip
    return passes


def book_prompt(record: RequestRecord, start: int, found: Sequence[TokenLogprobs]) -> None:
    """Note the laws of the prompt tokens after `start`, in so far as they were not known."""
    if not record.prompt_logprobs:
        record.prompt_logprobs.append(None)
    record.prompt_logprobs.extend(found[len(record.prompt_logprobs) - start - 1 :])


def book_drafts(
    rows: PlannedRows, counted: Flags, accepted: Ints, counts: Ints, ledger: StepLedger
) -> None:
    """Book the draft rounds of the rows that count, which gave `counts` tokens out."""
    for r, draft in rows.drafts.items():
        if counted[r]:
            drafted, kept = len(draft.tokens), int(accepted[r])
            record = rows.roster.lives[r].record
            ledger.verified(draft, kept, int(counts[r]))
            record.draft_rounds += 1
            record.drafted_tokens += drafted
            record.accepted_tokens += kept


def outcome(
    rows: PlannedRows, result: StepResult, verified: Sequence[int], accepted: Ints, seconds: float
) -> StepOutcome:
    """What a length policy learns from a step whose rows `verified` had a draft that counts."""
    proposed = [len(draft.tokens) for draft in result.drafts.values()]
    params = rows.roster.params
    return StepOutcome(
        decodes=int(np.count_nonzero(rows.samples)),
        prompt_tokens=int(rows.tokens[rows.tokens > 1].sum()),
        rounds=[
            DraftRound(
                rows.drafts[r],
                result.kept_paths.get(r, ())[: int(accepted[r])],
                params[r].temperature,
            )
            for r in verified
        ],
        drafting=rows.made.requests or len(proposed),
        proposed=rows.made.longest or max(proposed, default=0),
        times=result.times,
        seconds=seconds,
    )
