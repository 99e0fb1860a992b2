"""How outputs grow: a step's tokens up to where each ends, their text, why it ended."""

import numpy as np

from interlock.core.batch import Ints, StepResult
from interlock.core.kv_cache import Flags
from interlock.core.live import Live
from interlock.core.request import FinishReason, RequestOutput
from interlock.core.running import Running
from interlock.core.step_rows import PlannedRows


def emitted(
    rows: PlannedRows, result: StepResult, running: Running, counted: Flags, may_end: Flags
) -> tuple[Ints, list[int]]:
    """How many of its tokens each row gives out, and the rows whose request may end with them.

    Of `counted` rows those up to the first that ends the request; of others none. `may_end` has the
    tokens that end some request.
    """
    slots, offsets = rows.roster.slots, result.token_offsets
    left = running.most[slots] - running.length[slots]
    counts = np.minimum(offsets[1:] - offsets[:-1], left) * (counted & rows.samples)
    looked_at: Flags = running.special[slots]
    (ends,) = may_end.take(result.tokens, mode="clip").nonzero()
    if len(ends):
        looked_at[np.searchsorted(offsets, ends, "right") - 1] = True
    looked_at &= counts > 0
    for r in looked_at.nonzero()[0].tolist():
        counts[r] = _until_end(rows.roster.lives[r], result.tokens_of(r)[: counts[r]])
    return counts, (looked_at | (counts == left)).nonzero()[0].tolist()


def _until_end(live: Live, tokens: tuple[int, ...]) -> int:
    if live.group.searches:
        return 0
    ends = [place for place, token in enumerate(tokens) if token in live.stop_ids]
    tokens = tokens[: ends[0] + 1 if ends else None]
    return len(tokens) if live.text is None else live.text.push(tokens, live.stop_ids)


def give_out(
    rows: PlannedRows, result: StepResult, running: Running, counts: Ints, passes: Flags,
    now_s: float,
) -> list[RequestOutput]:  # fmt: skip
    """Add each row's first tokens to its record; what comes out."""
    outputs, tokens = [], tuple(result.tokens.tolist())
    make = tuple.__new__  # RequestOutput's own constructor takes twice as long
    columns = result.token_offsets[:-1], counts, passes, running.special[rows.roster.slots]
    for r, (live, begin, count, is_pass, special) in enumerate(
        zip(rows.roster.lives, *(column.tolist() for column in columns), strict=True)
    ):
        if not count:
            continue
        record, group, new = live.record, live.group, tokens[begin : begin + count]
        record.output_token_ids += new
        text = _note(live, r, new, result) if special else ""
        if not group.selects:  # with best_of nothing comes out before all have ended
            echoed = () if record.chunk_sizes else record.prompt_token_ids
            fields = group.id, record.index, new, None, text, echoed, record.sample
            outputs.append(make(RequestOutput, fields))
        record.chunk_times_s.append(now_s)
        record.chunk_sizes.append(count)
        if is_pass:
            record.target_passes += 1
            record.pass_tokens += count
    return outputs


def _note(live: Live, r: int, tokens: tuple[int, ...], result: StepResult) -> str:
    """What else is to be kept of new tokens; the text that became final with them."""
    if live.edits is not None:
        live.edits.commit(tokens)
    live.record.logprobs.extend(result.logprobs.get(r, ())[: len(tokens)])
    return live.text.take() if live.text is not None else ""


def finish_reason(live: Live) -> FinishReason | None:
    """Why its newest token ends the request, if it does."""
    output = live.record.output_token_ids
    if (output and output[-1] in live.stop_ids) or (live.text and live.text.stopped_by):
        return FinishReason.STOP
    return FinishReason.LENGTH if live.tokens_left <= 0 else None


def end_text(live: Live) -> str:
    """Complete the record's text, for it ended; what of it became final just now."""
    if live.text is None:
        return ""
    live.record.text, live.record.stopped_by = live.text.end(), live.text.stopped_by
    return live.text.take()
