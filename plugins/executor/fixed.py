"""The fixed-cost executor: the real scheduler and cache on a virtual clock, without a model."""

from typing import NamedTuple

import numpy as np

from interlock.core.batch import NO_DRAFT, Draft, RowResult, RowSampling, StepPlan, StepResult
from interlock.core.component import BuildContext
from interlock.core.executor import Executor
from interlock.core.streams import Purpose, uniform, uniforms
from interlock.plugins.executor import FixedConfig


class FixedExecutor(Executor):
    """Prices steps and makes up tokens that depend only on the request's seed and the position.

    A token is never one that could stop the request early, so outputs have the asked length.
    """

    virtual = True

    def __init__(self, config: FixedConfig, vocab_size: int, stop_ids: frozenset[int]) -> None:
        self._config = config
        self._allowed = np.array(
            [t for t in range(min(vocab_size, 1 << 16)) if t not in stop_ids], dtype=np.int64
        )

    def execute(self, plan: StepPlan) -> StepResult:
        """See Executor. O(tokens emitted and proposed), in a few array operations."""
        batch, config = plan.batch, self._config
        starts, offsets = batch.starts.tolist(), batch.row_offsets.tolist()
        counts = batch.logit_counts.tolist()
        made: list[_Row] = []
        seeds: list[int] = []
        positions: list[int] = []
        for r, sampling in enumerate(plan.sampling):
            if counts[r] == 0:
                continue
            position = starts[r] + offsets[r + 1] - offsets[r] - counts[r] + 1
            row = self._row(sampling, r, position, drafted=counts[r] - 1)
            made.append(row)
            seeds += [sampling.seed] * (row.emitted + row.proposed)
            positions += range(position, position + row.emitted + row.proposed)
        rows = [RowResult() for _ in counts]
        tokens = self._tokens(seeds, positions)
        used = 0
        for row in made:
            last = used + row.emitted
            rows[row.place] = RowResult(
                tokens=tuple(tokens[used:last]),
                kept_path=tuple(range(row.emitted - 1)),
                draft=Draft(tuple(tokens[last : last + row.proposed]))
                if row.proposed
                else NO_DRAFT,
            )
            used = last + row.proposed
        longest_draft = max((row.proposed for row in made), default=0)
        ms = config.step_ms + config.token_ms * offsets[-1] + config.draft_ms * longest_draft
        return StepResult(plan.step_id, rows, duration_s=ms / 1e3)

    def _row(self, sampling: RowSampling, place: int, position: int, drafted: int) -> "_Row":
        """How many tokens the row emits from `position` on, and how many it proposes after them."""
        accepted = 0
        while accepted < drafted and (
            uniform(sampling.seed, position + accepted, Purpose.ACCEPT) < self._config.acceptance
        ):
            accepted += 1
        proposed = max(0, min(sampling.draft_limit, sampling.tokens_left - accepted - 2))
        return _Row(place, accepted + 1, proposed)

    def _tokens(self, seeds: list[int], positions: list[int]) -> list[int]:
        draws = uniforms(seeds, positions, Purpose.TARGET)
        tokens: list[int] = self._allowed[(draws * len(self._allowed)).astype(np.int64)].tolist()
        return tokens


class _Row(NamedTuple):
    place: int
    emitted: int
    proposed: int


def build(config: FixedConfig, context: BuildContext) -> FixedExecutor:
    """See Component."""
    return FixedExecutor(config, context.model.vocab_size, frozenset(context.model.eos_token_ids))
