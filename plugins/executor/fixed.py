"""The fixed-cost executor: the real scheduler and cache on a virtual clock, without a model."""

from collections.abc import Sequence

import numpy as np

from interlock.core.batch import Draft, Ints, Seeds, StepPlan, StepResult, StepTimes
from interlock.core.component import BuildContext
from interlock.core.executor import Executor
from interlock.core.streams import Purpose, uniform
from interlock.core.tier import KVTier, PricedTier
from interlock.core.transfers import Transfers
from interlock.plugins.executor import FixedConfig
from interlock.plugins.executor.priced_transfers import PricedTransfers
from interlock.plugins.executor.step_noise import StepNoise

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


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
        self.unsteady = self._noise.unsteady
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
            begin = int(ends[r]) - len(draft.tokens)
            emitted[r] += self._accepted(int(plan.seeds[r]), begin, len(draft.tokens))
        given = _offsets(emitted)
        first = ends - counts + 1
        tokens = self._tokens(plan.seeds, first, emitted, given)
        factor = self._noise.factor()
        target_s = factor * (config.step_ms + config.token_ms * batch.num_tokens) / 1e3
        drafts = self._drafts(plan, first + emitted, emitted) if plan.draft_limits.any() else {}
        longest = max((len(draft.tokens) for draft in drafts.values()), default=0)
        draft_s = factor * config.draft_ms * longest / 1e3
        return StepResult(
            step_id=plan.step_id,
            tokens=tokens,
            token_offsets=given,
            kept_paths={r: tuple(range(int(emitted[r]) - 1)) for r in batch.drafts},
            drafts=drafts,
            duration_s=target_s + draft_s,
            times=StepTimes(target_s=target_s, draft_s=draft_s),
        )

    def _drafts(self, plan: StepPlan, first: Ints, emitted: Ints) -> dict[int, Draft]:
        """Candidates for the positions from first[r] on of each row that may have some."""
        left = np.maximum(plan.tokens_left - emitted - 1, 0)
        proposed = np.minimum(plan.draft_limits, left) * (plan.batch.logit_counts > 0)
        offsets = _offsets(proposed)
        tokens = self._tokens(plan.seeds, first, proposed, offsets).tolist()
        return {
            r: Draft(
                tuple(tokens[offsets[r] : offsets[r + 1]]),
                confidence=(self._config.acceptance,) * int(proposed[r]),
            )
            for r in proposed.nonzero()[0].tolist()
        }

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

    def _tokens(self, seeds: Seeds, first: Ints, counts: Ints, offsets: Ints) -> Ints:
        """counts[r] tokens of each row, for the positions from first[r] on."""
        if offsets[-1] != len(counts) or not counts.all():  # else one each
            first = (first - offsets[:-1]).repeat(counts) + np.arange(offsets[-1])
            seeds = seeds.repeat(counts)
        numbers = mixed(seeds + first.astype(np.uint64) * GOLDEN)
        return self._allowed[(numbers % np.uint64(len(self._allowed))).astype(np.intp)]


def mixed(words: Seeds) -> Seeds:
    """The output function of SplitMix64, whose states are steps of `GOLDEN` apart.

    Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014, figure 17,
    with the constants of Vigna's splitmix64.c. Ten times faster than what laws are drawn with,
    and good enough for tokens that mean nothing.
    """
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _offsets(counts: Ints) -> Ints:
    offsets = np.zeros(len(counts) + 1, dtype=np.int64)
    counts.cumsum(out=offsets[1:])
    return offsets


def build(config: FixedConfig, context: BuildContext) -> FixedExecutor:
    """See Component."""
    stop_ids = frozenset(context.model.eos_token_ids)
    return FixedExecutor(config, context.model.vocab_size, stop_ids, context.seed)
