"""The conformance kit of the attention seam: subclass, define `make()`, run with pytest.

class TestMine(AttentionContract):
    forms = ("heads",)

    def make(self) -> AttentionBackend:
        return MyAttention()
"""

from dataclasses import replace
from itertools import pairwise
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.core.attention import AttentionBackend
from interlock.core.cache_spec import Window
from interlock.core.model import AttentionForm, AttentionSpec
from interlock.core.testing.attention_oracle import Work
from interlock.core.testing.attention_scene import Scene

PAGE_SIZES = (1, 4, 16, 63)
WINDOWS = (None, 5, 8)
TREES = (
    (),
    (-1,),
    (-1, -1, 0, 1, 2, 2),
    (-1, 0, 1, 2),
    (-1, -1, -1, 2, 3, 4, 5, 6, 7),  # deeper than a window, and entries are not positions
    (-1, -1, -1, 2, 0),
)

CHUNK = st.one_of(st.integers(1, 3), st.integers(1, 40))

HEADS = {
    "mha": AttentionSpec("heads", 2, 2, 8, 8, 8**-0.5),
    "gqa": AttentionSpec("heads", 4, 2, 8, 8, 0.3),
    "mqa": AttentionSpec("heads", 3, 1, 6, 6, 6**-0.5),
    "small values": AttentionSpec("heads", 4, 2, 8, 5, 8**-0.5),
    "large values": AttentionSpec("heads", 2, 1, 4, 6, 0.5),
}
CAPPED = {
    "softcap": AttentionSpec("heads", 4, 2, 6, 6, 0.5, softcap=1.5),
    "softcap and small values": AttentionSpec("heads", 3, 1, 8, 5, 0.5, softcap=4.0),
}
SUNK = {
    "sinks": AttentionSpec("heads", 6, 2, 12, 12, 0.3, sinks=True),
    "sinks and large values": AttentionSpec("heads", 2, 2, 4, 6, 0.5, sinks=True),
}
SUNK_AND_CAPPED = AttentionSpec("heads", 4, 2, 8, 7, 0.4, softcap=2.0, sinks=True)
LATENT = {
    "wide": AttentionSpec("latent", 3, 1, 6, 4, 6**-0.5, None, 8, 4, 2),
    "narrow": AttentionSpec("latent", 2, 1, 10, 8, 0.3, None, 4, 6, 4),
}


class AttentionContract:
    """Every promise of `AttentionBackend`, against a dense float64 formula.

    Each step that a test runs (`Scene.check_step`) also checks that nothing outside the step's own
    rows is read (it is NaN) or written (its bits are compared), in layers of several windows that
    share one plan.
    """

    forms: ClassVar[tuple[AttentionForm, ...]] = ("heads",)
    serves_windows: ClassVar[bool] = True
    serves_trees: ClassVar[bool] = True
    serves_softcaps: ClassVar[bool] = False
    serves_sinks: ClassVar[bool] = False
    device: ClassVar[str] = "cpu"
    long_chunk_tokens: ClassVar[int] = 560
    """Size of the largest chunk: more than any tile of the backend."""

    def make(self) -> AttentionBackend:
        """A new instance of the backend under test."""
        raise NotImplementedError("the subclass returns its backend")

    def specs(self) -> list[tuple[AttentionSpec, ...]]:
        """Models to serve: for each shape, one layer of each window that the backend serves."""
        shapes = [s for form in self.forms for s in (HEADS if form == "heads" else LATENT).values()]
        shapes += CAPPED.values() if self.serves_softcaps else ()
        shapes += SUNK.values() if self.serves_sinks else ()
        shapes += [SUNK_AND_CAPPED] if self.serves_softcaps and self.serves_sinks else []
        windows = WINDOWS if self.serves_windows else (None,)
        return [tuple(replace(shape, window=w) for w in windows) for shape in shapes]

    def scene(
        self, specs: tuple[AttentionSpec, ...], lengths: tuple[int, ...], **options: Any
    ) -> Scene:
        """A scene for a new backend on this class's device."""
        return Scene(self.make(), specs, lengths, device=self.device, **options)

    @pytest.mark.parametrize("page_size", PAGE_SIZES)
    def test_ragged_steps_equal_the_formula(self, page_size: int) -> None:
        """Prompts, chunks and decode tokens of requests of any length, mixed in any order."""

        @settings(max_examples=6, deadline=None, derandomize=True, database=None)
        @given(data=st.data())
        def check(data: st.DataObject) -> None:
            specs = data.draw(st.sampled_from(self.specs()))
            chunks = data.draw(
                st.lists(st.lists(CHUNK, min_size=1, max_size=4), min_size=1, max_size=3)
            )
            scene = self.scene(specs, tuple(map(sum, chunks)), page_size=page_size)
            rows = data.draw(st.permutations(range(len(chunks))))
            for step in range(max(map(len, chunks))):
                scene.check_step(*(Work(r, chunks[r][step]) for r in rows if step < len(chunks[r])))

        check()

    def test_draft_trees_see_their_ancestors_only(self) -> None:
        """Trees beside chains, after any context, with several lead tokens and with no candidate.

        A rejected draft leaves nothing behind: the next step overwrites its entries.
        """
        if not self.serves_trees:
            pytest.skip("declares no draft trees")
        for at, specs in enumerate(self.specs()):
            for page_size in PAGE_SIZES[at % 2 :: 2]:
                scene = self.scene(specs, (30, 30, 30), page_size=page_size)
                scene.check_step(Work(0, 3), Work(1, 14))
                for tree, other in pairwise((*TREES, TREES[at % len(TREES)])):
                    scene.check_step(Work(1, 1, tree), Work(2, 2, other), Work(0, 1))

    def test_blocks_see_both_ways(self) -> None:
        """Blocks of any size, beside chains and trees, with and without lead tokens and context."""
        if not self.serves_trees:
            pytest.skip("declares no draft trees")
        for at, specs in enumerate(self.specs()):
            scene = self.scene(specs, (50, 60, 60), page_size=PAGE_SIZES[at % 4])
            scene.check_step(Work(0, 0, block=5), Work(1, 2), Work(2, 2, block=3))
            scene.check_step(Work(2, 3, (-1, -1, 0)), Work(1, 0, block=1), Work(0, 42))
            scene.check_step(Work(1, 0, block=40), Work(0, 1), Work(2, 3, block=8))

    def test_rows_without_new_tokens_change_nothing(self) -> None:
        """Requests that are in the step and bring nothing, with and without a context."""
        for specs in self.specs():
            scene = self.scene(specs, (9, 4, 7))
            scene.check_step(Work(1, 0), Work(0, 8), Work(2, 3))
            scene.check_step(Work(2, 0), Work(0, 1), Work(1, 0))
            scene.check_step(Work(0, 0), Work(2, 1), Work(1, 4))
            scene.check_step(Work(2, 0), Work(1, 0))

    def test_rows_that_are_only_stored_are_seen_later(self) -> None:
        """Chunks and single tokens that nobody reads the answers of, between steps as usual."""
        for specs in self.specs():
            scene = self.scene(specs, (60, 12, 9))
            scene.check_step(Work(0, 44), Work(1, 1), Work(2, 2), store_only=True)
            scene.check_step(Work(2, 3), Work(0, 1), Work(1, 4))
            scene.check_step(Work(1, 3), Work(0, 0), Work(2, 1), store_only=True)
            scene.check_step(Work(0, 2), Work(1, 2), Work(2, 1))

    def test_a_captured_plan_serves_every_step_of_its_shape(self) -> None:
        """Decode steps and verifications of growing requests, beside a row of one token."""
        if not self.make().capturable:
            pytest.skip("declares no plans that can be captured")
        draft = (-1, 0, 1) if not self.serves_trees else (-1, -1, 0)
        for specs in self.specs():
            scene = self.scene(specs, (40, 30, 40), page_size=4)
            scene.table_pages = 10
            scene.check_step(Work(0, 17), Work(1, 2), Work(2, 9))
            for _ in range(4):
                scene.check_step(Work(1, 1), Work(0, 1), Work(2, 1))
                scene.check_step(Work(0, 1, draft), Work(2, 1, draft), Work(1, 1), Work(1, 0))
            assert scene.replayed >= 6, "shape keys depend on lengths"

    def test_chunked_prefill_equals_the_whole_prompt(self) -> None:
        """Any cut of a prompt gives the same outputs."""
        for specs in self.specs():
            whole = self.scene(specs, (23,)).check_step(Work(0, 23))
            for cut in ((1, 1, 1, 20), (7, 16), (4, 15, 4), (22, 1)):
                scene = self.scene(specs, (23,))
                steps = [scene.check_step(Work(0, chunk)) for chunk in cut]
                for layer, output in enumerate(whole):
                    joined = torch.cat([step[layer] for step in steps])
                    torch.testing.assert_close(joined, output, rtol=0, atol=scene.tolerance)

    def test_page_numbers_do_not_matter(self) -> None:
        """The same step over other pages gives the same outputs."""
        for specs in self.specs():
            outputs = []
            for page_seed in (1, 2):
                scene = self.scene(specs, (21, 9), page_seed=page_seed)
                scene.check_step(Work(0, 20), Work(1, 5))
                outputs.append(scene.check_step(Work(1, 4), Work(0, 1)))
            for first, second in zip(*outputs, strict=True):
                torch.testing.assert_close(first, second, rtol=0, atol=scene.tolerance)

    def test_a_backend_keeps_nothing_between_steps(self) -> None:
        """One instance serves two caches in turn, with steps of equal shape over other pages."""
        for specs in self.specs():
            backend = self.make()
            scenes = [
                Scene(backend, specs, (9, 4), device=self.device, page_seed=seed) for seed in (1, 2)
            ]
            for scene in scenes:
                scene.check_step(Work(0, 8), Work(1, 3))
            for scene in scenes:
                scene.check_step(Work(0, 1), Work(1, 1))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_narrow_dtypes_stay_within_their_rounding(self, dtype: torch.dtype) -> None:
        """Inputs of fp32 and bf16, accumulated in at least fp32."""
        for specs in self.specs():
            scene = self.scene(specs, (70, 40), dtype=dtype, page_size=16)
            scene.check_step(Work(0, 60), Work(1, 4))
            scene.check_step(Work(0, 1), Work(1, 35))
            scene.check_step(Work(0, 3), Work(1, 1))

    def test_large_scores_do_not_overflow(self) -> None:
        """Scores far beyond the range of exp give the most similar entry."""
        for specs in self.specs():
            steep = tuple(replace(spec, scale=2e4) for spec in specs)
            scene = self.scene(steep, (12, 40), dtype=torch.float64)
            scene.tolerance = 1e-7  # one rounding of a score of 1e5 moves its weight by 1e-11
            scene.check_step(Work(0, 11), Work(1, 40))
            scene.check_step(Work(0, 1))

    def test_long_chunks_equal_the_formula(self) -> None:
        """A chunk of hundreds of tokens after hundreds of others, beside a decode token."""
        kinds = {(s[0].form, s[0].softcap is None, s[0].sinks): s[0] for s in self.specs()}
        for spec in kinds.values():
            wide = replace(spec, window=100) if self.serves_windows else spec
            chunk = self.long_chunk_tokens
            scene = self.scene((spec, wide), (151 + chunk, 3), page_size=16)
            scene.check_step(Work(0, 150), Work(1, 2))
            scene.check_step(Work(1, 1), Work(0, chunk))
            scene.check_step(Work(0, 1))

    def test_cache_groups_cover_every_layer_once_with_its_lifetime(self) -> None:
        """Layers are numbered from first_layer; a window layer may keep everything."""
        for specs in self.specs():
            groups = self.make().cache_groups(specs, 5)
            layers = [layer for group in groups for layer in group.layers]
            assert sorted(layers) == [5 + at for at in range(len(specs))]
            for group in groups:
                if isinstance(group.lifetime, Window):
                    windows = {specs[layer - 5].window for layer in group.layers}
                    assert windows == {group.lifetime.tokens}
