"""The contract of `FeatureDrafter`, checked call by call under a real engine in fp64."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from interlock.core.assemble import assemble
from interlock.core.batch import Draft
from interlock.core.drafter import DraftContext, DraftRows, FeatureDrafter
from interlock.core.engine import Engine
from interlock.core.executor import Executor
from interlock.core.registry import load_registry
from interlock.core.request import Request, SamplingParams
from interlock.core.testing.tiny import TinyKind, write_tiny_checkpoint

PROMPTS = (6, 1, 13, 30)


class FeatureDrafterContract:
    """Every promise of `FeatureDrafter`.

    `overrides(model)` chooses the drafter for the tiny model directory `model`, writing what it
    loads; `drafter(executor)` finds the instance in the executor.
    """

    kind: TinyKind = "gqa"

    def overrides(self, model: Path) -> list[str]:
        """Overrides such as ["spec=eagle"]."""
        raise NotImplementedError

    def drafter(self, executor: Executor) -> FeatureDrafter:
        """The drafter that the executor calls."""
        raise NotImplementedError

    @pytest.fixture
    def engine(self, tmp_path: Path) -> Engine:
        """An engine over a random model, with chunked prompts and a prefix index."""
        families = list(load_registry().families.values())
        model = write_tiny_checkpoint(tmp_path / self.kind, self.kind, families)
        settings = ["dtype=float64", "threads=1", "cache.page_size=4", "scheduler.budget_tokens=12"]
        return assemble([f"model={model}", *settings, *self.overrides(model)])

    def calls(self, engine: Engine) -> list[tuple[DraftRows, DraftContext, list[Draft]]]:
        """Every call of `propose` while some requests are served, each made twice."""
        drafter = self.drafter(engine.executor)
        seen: list[tuple[DraftRows, DraftContext, list[Draft]]] = []
        propose = drafter.propose

        def watched(rows: DraftRows, context: DraftContext) -> list[Draft]:
            first = propose(rows, context)
            assert propose(rows, context) == first, "the same rows gave other drafts"
            seen.append((rows, context, first))
            return first

        drafter.propose = watched  # type: ignore[method-assign]
        for index, length in enumerate(PROMPTS):
            prompt = tuple(3 + (7 * i + index) % 50 for i in range(length))
            engine.submit(Request(index, prompt, SamplingParams(max_tokens=8, ignore_eos=True)))
        list(engine.outputs())
        assert seen
        return seen

    def test_the_same_rows_give_the_same_drafts(self, engine: Engine) -> None:
        self.calls(engine)

    def test_a_draft_keeps_to_its_limit_and_to_num_drafts(self, engine: Engine) -> None:
        drafter = self.drafter(engine.executor)
        for rows, _, drafts in self.calls(engine):
            assert len(drafts) == len(rows.limits)
            for limit, draft in zip(rows.limits, drafts, strict=True):
                assert len(draft.tokens) <= min(limit, drafter.num_drafts)

    def test_candidates_are_tokens_with_parents_before_children(self, engine: Engine) -> None:
        vocabulary = range(engine.resolution.model.vocab_size)
        for _, _, drafts in self.calls(engine):
            for draft in drafts:
                assert all(token in vocabulary for token in draft.tokens)
                parents: Sequence[int] = draft.parents or ()
                assert all(-1 <= parent < node for node, parent in enumerate(parents))

    def test_cache_rows_are_the_drafters_own_layers(self, engine: Engine) -> None:
        first = engine.resolution.model.num_layers
        own = self.drafter(engine.executor).attention
        assert engine.planes is not None
        assert list(engine.planes.of_layer) == [*range(first + len(own))]

    def test_the_engine_drafts_with_it(self, engine: Engine) -> None:
        self.calls(engine)
        assert engine.core.ledger.drafted > 0
