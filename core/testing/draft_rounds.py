"""Several rounds of drafting and verification with one set of numbers: what is read twice shows.

Legend: M points, D numbers.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from interlock.core.batch import Draft
from interlock.core.streams import Purpose
from interlock.core.testing.draft_cases import GivenRows, Laws, Prefix, inverse, keys_of, paths_of
from interlock.core.testing.exact_laws import Points, outcome_laws
from interlock.core.verifier import Verdict, Verifier

_Trace = tuple[tuple[Prefix, Verdict], ...]
"""Drafts and verdicts of the rounds: outcomes that tell every branch apart."""

DraftKey = Callable[[int, int], tuple[int, int]]
"""(tokens before the draft, place of the candidate in it) -> which number it is drawn with."""


def own_numbers(anchor: int, place: int) -> tuple[int, int]:
    """Each round has numbers of its own, as `DraftContext.draw` gives them."""
    return anchor, place


def rounds_law(
    verifier: Verifier,
    target: Laws,
    drafts: Laws,
    num_drafts: int,
    length: int,
    draft_key: DraftKey = own_numbers,
) -> dict[Prefix, float]:
    """The law of the first `length` tokens when chains are drawn from `drafts` round after round.

    The verifier's numbers belong to (purpose, sample, position): a number that decides two tokens
    distorts the law.
    """
    keys = dict(keys_of(length))
    draws = {
        key: len(keys) + i
        for i, key in enumerate(
            dict.fromkeys(draft_key(a, i) for a in range(length) for i in range(num_drafts))
        )
    }

    def play(_cases: NDArray[np.int64], numbers: Points) -> list[_Trace]:
        outputs: list[Prefix] = [()] * len(numbers)
        traces: list[_Trace] = [()] * len(numbers)
        while active := [m for m, output in enumerate(outputs) if len(output) < length]:
            chains = {m: outputs[m] for m in active}
            for place in range(num_drafts):
                wanting = [m for m in active if len(outputs[m]) + place + 1 < length]
                if wanting:
                    laws = np.stack([drafts[chains[m]] for m in wanting])
                    columns = [draws[draft_key(len(outputs[m]), place)] for m in wanting]
                    for m, token in zip(
                        wanting, inverse(laws, numbers[wanting, columns]), strict=True
                    ):
                        chains[m] = (*chains[m], token)
            made = [_draft(drafts, outputs[m], chains[m]) for m in active]
            rows = _rows(target, [outputs[m] for m in active], made, active, keys, numbers)
            for m, draft, verdict in zip(active, made, verifier.accept(made, rows), strict=True):
                accepted = [draft.tokens[node] for node in verdict.path]
                outputs[m] = (*outputs[m], *accepted, verdict.token)
                traces[m] = (*traces[m], (draft.tokens, verdict))
        return traces

    (found,) = outcome_laws(play, 1, len(keys) + len(draws))
    law: dict[Prefix, float] = {}
    for trace, chance in found.items():
        output = _output(trace)[:length]
        law[output] = law.get(output, 0.0) + chance
    return law


def _output(trace: Any) -> Prefix:
    return tuple(
        token
        for tokens, verdict in trace
        for token in (*(tokens[node] for node in verdict.path), verdict.token)
    )


def _draft(laws: Laws, before: Prefix, chain: Prefix) -> Draft:
    rows = [laws[chain[:i]] for i in range(len(before), len(chain))]
    return Draft(chain[len(before) :], laws=torch.from_numpy(np.stack(rows)) if rows else None)


def _rows(
    target: Laws,
    outputs: Sequence[Prefix],
    drafts: Sequence[Draft],
    owners: Sequence[int],
    keys: Mapping[tuple[Purpose, int, int], int],
    numbers: Points,
) -> GivenRows:
    laws, positions, owned = [], [], []
    for output, draft, owner in zip(outputs, drafts, owners, strict=True):
        for path in paths_of(draft):
            laws.append(target[(*output, *path)])
            positions.append(len(output) + len(path))
            owned.append(owner)
    return GivenRows(np.stack(laws), owned, positions, keys, numbers)
