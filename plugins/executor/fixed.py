"""The fixed-cost executor: the real scheduler and cache on a virtual clock, without a model."""

from interlock.core.batch import Draft, RowResult, RowSampling, StepPlan, StepResult
from interlock.core.component import BuildContext
from interlock.core.executor import Executor
from interlock.core.streams import Purpose, uniform
from interlock.plugins.executor import FixedConfig


class FixedExecutor(Executor):
    """Prices steps and makes up tokens that depend only on the request's seed and the position.

    A token is never one that could stop the request early, so outputs have the asked length.
    """

    virtual = True

    def __init__(self, config: FixedConfig, vocab_size: int, stop_ids: frozenset[int]) -> None:
        self._config = config
        self._tokens = [t for t in range(min(vocab_size, 1 << 16)) if t not in stop_ids]

    def execute(self, plan: StepPlan) -> StepResult:
        """See Executor. O(rows)."""
        batch, config = plan.batch, self._config
        starts, offsets = batch.starts.tolist(), batch.row_offsets.tolist()
        wanted = batch.logit_counts.tolist()
        rows = []
        longest_draft = 0
        for r, sampling in enumerate(plan.sampling):
            if wanted[r] == 0:
                rows.append(RowResult())
                continue
            length = offsets[r + 1] - offsets[r]
            draft = batch.drafts[r].tokens
            row = self._row(sampling, starts[r] + length - len(draft), len(draft))
            longest_draft = max(longest_draft, len(row.draft.tokens))
            rows.append(row)
        duration_ms = (
            config.step_ms + config.token_ms * offsets[-1] + config.draft_ms * longest_draft
        )
        return StepResult(plan.step_id, rows, duration_s=duration_ms / 1e3)

    def _row(self, sampling: RowSampling, position: int, drafted: int) -> RowResult:
        """Tokens from `position` on: accepted candidates, one more, and the next candidates."""
        accepted = 0
        seed = sampling.seed
        while accepted < drafted and (
            uniform(seed, position + accepted, Purpose.ACCEPT) < self._config.acceptance
        ):
            accepted += 1
        limit = max(0, min(sampling.draft_limit, sampling.tokens_left - accepted - 2))
        tokens = [self._token(seed, position + i) for i in range(accepted + 1 + limit)]
        return RowResult(
            tokens=tuple(tokens[: accepted + 1]),
            kept_path=tuple(range(accepted)),
            draft=Draft(tuple(tokens[accepted + 1 :])),
        )

    def _token(self, seed: int, position: int) -> int:
        return self._tokens[int(uniform(seed, position, Purpose.TARGET) * len(self._tokens))]


def build(config: FixedConfig, context: BuildContext) -> FixedExecutor:
    """See Component."""
    return FixedExecutor(config, context.model.vocab_size, frozenset(context.model.eos_token_ids))
