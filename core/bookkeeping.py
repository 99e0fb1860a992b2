"""Books what a row of a finished step computed: in the run's ledger and in the request's record."""

from collections.abc import Sequence

from interlock.core.ledger import StepLedger
from interlock.core.live import PlannedRow
from interlock.core.request import TokenLogprobs


def book_row(row: PlannedRow, ledger: StepLedger) -> bool:
    """Book the row's tokens by kind; True for a decode or verify pass."""
    live = row.live
    again = max(0, min(row.start + row.tokens, live.high_water) - row.start)
    fresh = row.tokens - again
    is_pass = row.tokens == 1 and row.start >= live.sequence.num_prompt and fresh == 1
    live.record.recomputed_tokens += again
    ledger.ran(
        prompt=0 if is_pass else fresh,
        recomputed=again,
        decode=int(is_pass),
        drafted=len(row.draft.tokens),
        context=row.start,
    )
    return is_pass


def book_prompt(row: PlannedRow, found: Sequence[TokenLogprobs]) -> None:
    """Note the laws of the prompt tokens after the row's, in so far as they were not known."""
    record = row.live.record
    if not record.prompt_logprobs:
        record.prompt_logprobs.append(None)
    record.prompt_logprobs.extend(found[len(record.prompt_logprobs) - row.start - 1 :])


def book_pass(row: PlannedRow, accepted: int, emitted: int, ledger: StepLedger) -> None:
    """Book what a decode or verify pass gave, and its draft round if it had a draft."""
    drafted = len(row.draft.tokens)
    record = row.live.record
    record.target_passes += 1
    record.pass_tokens += emitted
    if drafted:
        ledger.verified(drafted, accepted)
        record.draft_rounds += 1
        record.drafted_tokens += drafted
        record.accepted_tokens += accepted
