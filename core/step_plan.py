"""From planned rows to what an executor gets, and the checks of what comes back."""

from collections.abc import Sequence

import numpy as np

from interlock.core.batch import Batch, Draft, Ints, Pages, RowResult, RowSampling
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
        drafts=tuple(row.draft for row in rows),
        slots=np.array([_slot(row.live) for row in rows], dtype=np.int64),
        tables=tables,
        page_size=page_size,
        adapters=_adapters(rows),
        copies=tuple(copy for row in rows for copy in row.copies),
    )


def row_sampling(row: PlannedRow) -> RowSampling:
    """How the row's tokens are drawn, and what may follow them."""
    live = row.live
    end = row.start + row.tokens
    scored: Sequence[int] = ()
    if live.scores_prompt:
        scored = live.sequence.slice(row.start + 1, min(end + 1, live.sequence.num_prompt)).tolist()
    following = () if row.samples else (int(live.sequence.slice(end, end + 1)[0]),)
    return RowSampling(
        params=live.request.sampling,
        seed=live.seed,
        draft_limit=row.draft_limit,
        next_tokens=following,
        tokens_left=live.tokens_left,
        edits=live.edits.at(row.draft) if live.edits and row.samples else None,
        scored=tuple(scored),
    )


def check_draft(draft: Draft, vocab_size: int, drafter: str) -> None:
    """Raise ContractError, naming the drafter, unless this is a chain or tree of tokens."""
    parents = draft.parents
    sound = all(isinstance(t, int | np.integer) and 0 <= t < vocab_size for t in draft.tokens)
    if parents is not None:
        sound = sound and len(parents) == len(draft.tokens)
        sound = sound and all(-1 <= parent < node for node, parent in enumerate(parents))
    if not sound:
        raise ContractError(f"{drafter} proposed {draft}, which is no draft")


def check_tokens(draft: Draft, result: RowResult, vocab_size: int, verifier: str) -> None:
    """Raise ContractError, naming the verifier, unless the tokens are a path and one token more."""
    path = result.kept_path
    parents = draft.parents or tuple(range(-1, len(draft.tokens) - 1))
    expected = -1
    sound = len(result.tokens) == len(path) + 1
    for place, node in enumerate(path):
        sound = sound and 0 <= node < len(draft.tokens) and parents[node] == expected
        sound = sound and draft.tokens[node] == result.tokens[place]
        expected = node
    sound = sound and all(0 <= t < vocab_size for t in result.tokens)
    if not sound:
        raise ContractError(
            f"{verifier} gave tokens {result.tokens} along {path} for the draft {draft}"
        )


def _adapters(rows: Sequence[PlannedRow]) -> tuple[int, ...]:
    numbers = tuple(row.live.adapter for row in rows)
    return numbers if any(number >= 0 for number in numbers) else ()


def _slot(live: Live) -> int:
    assert live.holding is not None
    return live.holding.slot
