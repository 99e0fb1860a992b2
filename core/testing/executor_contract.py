"""The contract of `Executor`, checked step by step under a real engine."""

from collections.abc import Sequence

from interlock.core.assemble import assemble
from interlock.core.batch import StepPlan, StepResult
from interlock.core.engine import Engine
from interlock.core.request import Request, RequestRecord, SamplingParams, Status

PROMPTS = (5, 1, 17, 40)
MAX_TOKENS = 9


class ExecutorContract:
    """Every promise of `Executor`; `overrides` choose the executor (and what it needs)."""

    overrides: Sequence[str] = ()

    def engine(self, *more: str) -> Engine:
        """A fresh engine with a budget that cuts the longest prompt into chunks."""
        return assemble([*self.overrides, "scheduler.budget_tokens=24", "threads=1", *more])

    def served(self, *more: str) -> tuple[list[RequestRecord], list[tuple[StepPlan, StepResult]]]:
        """Records in index order, and every step with its answer."""
        engine = self.engine(*more)
        steps: list[tuple[StepPlan, StepResult]] = []
        execute = engine.executor.execute

        def watched(plan: StepPlan) -> StepResult:
            result = execute(plan)
            steps.append((plan, result))
            return result

        engine.executor.execute = watched  # type: ignore[method-assign]
        for index, length in enumerate(PROMPTS):
            prompt = tuple(3 + (7 * i + index) % 50 for i in range(length))
            sampling = SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True, temperature=index % 2)
            engine.submit(Request(index, prompt, sampling))
        ended = {o.index: o.finished for o in engine.outputs() if o.finished}
        engine.close()
        return [ended[index] for index in sorted(ended)], steps

    def test_every_request_gets_its_tokens(self) -> None:
        records, _ = self.served()
        assert [r.status for r in records] == [Status.FINISHED] * len(PROMPTS)
        assert [len(r.output_token_ids) for r in records] == [MAX_TOKENS] * len(PROMPTS)

    def test_an_answer_has_the_step_and_a_row_for_each_row(self) -> None:
        for plan, result in self.served()[1]:
            assert result.step_id == plan.step_id
            assert len(result.token_offsets) == plan.batch.num_rows + 1
            assert (result.token_offsets[0], result.token_offsets[-1]) == (0, len(result.tokens))

    def test_only_rows_that_want_logits_give_tokens(self) -> None:
        chunked = 0
        for plan, result in self.served()[1]:
            assert not result.errors
            for r, wanted in enumerate(plan.batch.logit_counts.tolist()):
                tokens, path = result.tokens_of(r), result.kept_paths.get(r, ())
                assert (len(tokens) > 0) == (wanted > 0)
                assert len(tokens) == len(path) + (wanted > 0)
                assert len(tokens) <= max(wanted, 0)
                chunked += wanted == 0
        assert chunked, "no prompt was cut into chunks"

    def test_proposals_stay_within_the_limit(self) -> None:
        for plan, result in self.served()[1]:
            for r, draft in result.drafts.items():
                assert len(draft.tokens) <= plan.draft_limits[r]

    def test_durations_are_given_exactly_on_a_virtual_clock(self) -> None:
        engine = self.engine()
        for _, result in self.served()[1]:
            assert (result.duration_s is not None) == engine.executor.virtual
            assert result.duration_s is None or result.duration_s >= 0

    def test_two_runs_give_the_same_tokens(self) -> None:
        first, second = self.served()[0], self.served()[0]
        assert [r.output_token_ids for r in first] == [r.output_token_ids for r in second]
