"""The logits of every committed position that an engine computes, for comparison bit by bit."""

from typing import Any

from torch import Tensor

from interlock.core.batch import StepPlan, StepResult
from interlock.core.engine import Engine

Place = tuple[int, int]
"""(request id, position)."""


class LogitBits:
    """Watches an engine that runs a model; `rows` holds each place's logits, once a computation.

    Positions of rejected candidates are left out. Logits are computed for every token of every
    step, so this is for small models.
    """

    def __init__(self, engine: Engine) -> None:
        self.rows: dict[Place, list[Tensor]] = {}
        self.shared_steps = 0
        """Steps with more than one request."""
        decoder: Any = engine.executor._decoder  # type: ignore[attr-defined]  # the torch executor's
        forward, logits = decoder.forward, decoder.logits

        def watched(*inputs: Any) -> Tensor:
            features_TE: Tensor = forward(*inputs)
            self._logits_TV = logits(features_TE)
            return features_TE

        decoder.forward = watched
        engine.watch(self._take)

    def _take(self, plan: StepPlan, result: StepResult) -> None:
        batch = plan.batch
        self.shared_steps += batch.num_rows > 1
        for r, request_id in enumerate(batch.request_ids):
            first, end = batch.row_offsets[r : r + 2].tolist()
            lead = end - len(batch.draft(r).tokens)
            for at in range(first, lead):
                self._add((request_id, int(batch.positions[at])), at)
            for depth, node in enumerate(result.kept_paths.get(r, ())):
                self._add((request_id, int(batch.positions[lead - 1]) + 1 + depth), lead + node)

    def _add(self, place: Place, row: int) -> None:
        self.rows.setdefault(place, []).append(self._logits_TV[row].clone())
