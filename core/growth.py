"""How an output grows: the tokens of a step up to where it ends, their text, why it ended."""

from interlock.core.live import Live
from interlock.core.request import FinishReason, TokenLogprobs


def extend(
    live: Live, given: tuple[int, ...], logprobs: tuple[TokenLogprobs, ...], now_s: float
) -> tuple[tuple[int, ...], str]:
    """Add a row's tokens up to the first that ends the request.

    Those tokens, and the text that became final with them.
    """
    tokens = given[: live.tokens_left]
    ends = [place for place, token in enumerate(tokens) if token in live.stop_ids]
    tokens, text = tokens[: ends[0] + 1 if ends else None], ""
    if live.text is not None:
        tokens = tokens[: live.text.push(tokens, live.stop_ids)]
        text = live.text.take()
    live.sequence.append(tokens)
    if live.edits is not None:
        live.edits.commit(tokens)
    live.record.output_token_ids.extend(tokens)
    live.record.logprobs.extend(logprobs[: len(tokens)])
    live.record.chunk_times_s.append(now_s)
    return tokens, text


def finish_reason(live: Live) -> FinishReason | None:
    """Why its newest token ends the request, if it does."""
    if live.sequence.last() in live.stop_ids or (live.text and live.text.stopped_by):
        return FinishReason.STOP
    return FinishReason.LENGTH if live.tokens_left <= 0 else None


def end_text(live: Live) -> str:
    """Complete the record's text, for it ended; what of it became final just now."""
    if live.text is None:
        return ""
    live.record.text, live.record.stopped_by = live.text.end(), live.text.stopped_by
    return live.text.take()
