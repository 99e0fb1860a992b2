"""The fixed-cost executor: the real scheduler and cache on a virtual clock, without a model."""

from collections.abc import Sequence

import numpy as np

from interlock.core.batch import Draft, Ints, Seeds, StepPlan, StepResult, StepTimes
from interlock.core.component import BuildContext
from interlock.core.executor import Executor
from interlock.core.streams import Purpose, uniform, uniforms
from interlock.core.tier import KVTier, PricedTier
from interlock.core.transfers import Transfers
from interlock.plugins.executor import FixedConfig
from interlock.plugins.executor.priced_transfers import PricedTransfers
from interlock.plugins.executor.step_noise import StepNoise


class FixedExecutor(Executor):
    """Prices steps and makes up tokens that depend only on the request's seed and the position.

    A token is never one that could stop the request early, so outputs have the asked length.
    """

    virtual = True

    def __init__(
        self, config: FixedConfig, vocab_size: int, stop_ids: frozenset[int], seed: int = 0
    ) -> None:
        self._config = config
        self._noise = StepNoise(config, seed)
        self._allowed = np.array(
            [t for t in range(min(vocab_size, 1 << 16)) if t not in stop_ids], dtype=np.int64
        )

    def execute(self, plan: StepPlan) -> StepResult:
        """See Executor. O(tokens emitted and proposed), in a few array operations."""
        batch, config = plan.batch, self._config
        counts, offsets = batch.logit_counts, batch.row_offsets
        ends = batch.starts + offsets[1:] - offsets[:-1]
        emitted = np.minimum(counts, 1)
        for r, draft in batch.drafts.items():
            first = int(ends[r]) - len(draft.tokens)
            emitted[r] += self._accepted(int(plan.seeds[r]), first, len(draft.tokens))
        left = plan.tokens_left - emitted - 1
        proposed = np.minimum(plan.draft_limits, np.maximum(left, 0)) * (counts > 0)
        made = emitted + proposed
        offsets = _offsets(made)
        places = np.arange(offsets[-1]) - np.repeat(offsets[:-1], made)
        positions = np.repeat(ends - counts + 1, made) + places
        tokens = self._tokens(np.repeat(plan.seeds, made), positions)
        out = places < np.repeat(emitted, made)
        factor = self._noise.factor()
        target_s = factor * (config.step_ms + config.token_ms * batch.num_tokens) / 1e3
        draft_s = factor * config.draft_ms * int(proposed.max()) / 1e3
        return StepResult(
            step_id=plan.step_id,
            tokens=tokens[out],
            token_offsets=_offsets(emitted),
            kept_paths={r: tuple(range(int(emitted[r]) - 1)) for r in batch.drafts},
            drafts={
                r: Draft(
                    tuple(tokens[offsets[r + 1] - proposed[r] : offsets[r + 1]].tolist()),
                    confidence=(config.acceptance,) * int(proposed[r]),
                )
                for r in np.flatnonzero(proposed).tolist()
            },
            duration_s=target_s + draft_s,
            times=StepTimes(target_s=target_s, draft_s=draft_s),
        )

    def payload_bytes(self, page_size: int) -> int:
        """See Executor."""
        return self._config.kv_bytes_per_token * page_size

    def transfers(self, tiers: Sequence[KVTier], page_size: int) -> Transfers:
        """See Executor."""
        priced = [tier for tier in tiers if isinstance(tier, PricedTier)]
        return PricedTransfers(priced, self.payload_bytes(page_size))

    def _accepted(self, seed: int, position: int, drafted: int) -> int:
        """How many of `drafted` candidates are kept, of which the first is at `position`."""
        accepted = 0
        while accepted < drafted and (
            uniform(seed, position + accepted, Purpose.ACCEPT) < self._config.acceptance
        ):
            accepted += 1
        return accepted

    def _tokens(self, seeds: Seeds, positions: Ints) -> Ints:
        draws = uniforms(seeds, positions, Purpose.TARGET)
        return self._allowed[(draws * len(self._allowed)).astype(np.int64)]


def _offsets(counts: Ints) -> Ints:
    offsets = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def build(config: FixedConfig, context: BuildContext) -> FixedExecutor:
    """See Component."""
    stop_ids = frozenset(context.model.eos_token_ids)
    return FixedExecutor(config, context.model.vocab_size, stop_ids, context.seed)
