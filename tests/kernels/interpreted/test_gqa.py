"""attention=gqa in Triton keeps the contract of attention backends; other sizes and types as well.

The interpreter multiplies bf16 wrongly, so that kernels widen their operands there: what bf16 gives
on a GPU is tested on a GPU alone.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.core.model import AttentionSpec
from interlock.core.planes import make_attention_batch
from interlock.core.testing.attention_contract import HEADS, SUNK_AND_CAPPED, AttentionContract
from interlock.core.testing.attention_oracle import Work
from interlock.core.testing.attention_scene import Scene
from interlock.plugins.attention.kernels import INTERPRETED
from interlock.plugins.attention.kernels.ragged import RaggedPlan
from interlock.plugins.attention.triton_gqa import TritonGqaAttention


class TestTritonGqa(AttentionContract):
    serves_softcaps = True
    serves_sinks = True
    long_chunk_tokens = 45

    def make(self):
        assert INTERPRETED
        return TritonGqaAttention()

    def specs(self):
        """Fewer models than other backends are tested with: a program takes a millisecond."""
        return [(HEADS["mqa"], replace(SUNK_AND_CAPPED, window=5))]

    @pytest.mark.parametrize("page_size", [4, 63])
    def test_ragged_steps_equal_the_formula(self, page_size):
        super().test_ragged_steps_equal_the_formula(page_size)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
    def test_narrow_dtypes_stay_within_their_rounding(self, dtype):
        super().test_narrow_dtypes_stay_within_their_rounding(dtype)


SIZES = (1, 15, 16, 17, 63, 100, 255, 256, 257)
SHAPES = {
    "group of three": AttentionSpec("heads", 3, 1, 16, 16, 0.25),
    "no group": AttentionSpec("heads", 2, 2, 16, 16, 0.25),
    "80": AttentionSpec("heads", 2, 1, 80, 80, 80**-0.5),
    "96": AttentionSpec("heads", 2, 1, 96, 96, 96**-0.5, softcap=3.0),
    "192 and 128": AttentionSpec("heads", 2, 1, 192, 128, 192**-0.5, sinks=True),
    "256": AttentionSpec("heads", 2, 1, 256, 256, 1 / 16),
    "20 of a group": AttentionSpec("heads", 20, 1, 16, 16, 0.25),
}


@settings(max_examples=20, deadline=None, derandomize=True, database=None)
@given(
    shape=st.sampled_from(list(SHAPES.values())),
    window=st.sampled_from([None, 16, 100]),
    page=st.sampled_from([1, 16, 64]),
    dtype=st.sampled_from([torch.float32, torch.float16]),
    context=st.sampled_from([0, *SIZES]),
    new=st.sampled_from(SIZES),
)
def test_rows_of_any_length_after_any_context_equal_the_formula(
    shape, window, page, dtype, context, new
):
    """A row beside a decode row, in pages of any size; then it decodes."""
    specs = (replace(shape, window=window),)
    new = min(new, 100) if shape.head_dim > 64 else new
    scene = Scene(TritonGqaAttention(), specs, (context + new + 1, 9), page, dtype)
    if context:
        fill(scene, 0, context)
    fill(scene, 1, 7)
    scene.check_step(Work(1, 1), Work(0, new))
    scene.check_step(Work(0, 1), Work(1, 1))


def fill(scene, row, entries):
    """Commit entries of a request without a backend."""
    for layer in range(len(scene.specs)):
        pages = scene.pages[scene.planes.tables[layer]][row]
        inputs = scene.inputs[layer][row]
        for name, rows in (("k", inputs.k_TKD), ("v", inputs.v_TKV)):
            plane = scene.planes.of_layer[layer][name]
            at = torch.arange(entries)
            plane[torch.tensor(pages)[at // scene.page_size], at % scene.page_size] = rows[:entries]
    scene.committed[row] = entries


def test_contexts_that_are_split_among_programs_equal_the_formula():
    specs = (SHAPES["group of three"], replace(SHAPES["192 and 128"], window=300))
    scene = Scene(TritonGqaAttention(), specs, (1030, 520, 3), 16, torch.float64)
    fill(scene, 0, 1000)
    fill(scene, 1, 511)
    scene.check_step(Work(0, 1), Work(1, 1), Work(2, 1))
    scene.check_step(Work(0, 2, (-1, -1, 0, 1, 1)), Work(1, 1), Work(2, 1))


def test_a_tree_larger_than_a_block_of_queries_sees_its_ancestors_only():
    parents = tuple((node - 1) // 2 for node in range(70))
    parents = (-1, *parents[1:])
    specs = (SHAPES["no group"], replace(SHAPES["group of three"], window=4))
    scene = Scene(TritonGqaAttention(), specs, (120, 40), 16, torch.float64)
    scene.check_step(Work(0, 20), Work(1, 33))
    scene.check_step(Work(0, 3, parents), Work(1, 1))


@pytest.mark.parametrize("architecture", [80, 90])
def test_fp8_planes_are_read_as_the_numbers_they_store(architecture):
    """Against the formula over what is stored, read in both ways; all else is NaN."""
    spec = AttentionSpec("heads", 4, 2, 24, 16, 24**-0.5)
    backend = TritonGqaAttention("fp8", architecture)
    groups = backend.cache_groups((spec,), 0)
    planes = {}
    for plane in groups[0].planes:
        dtype = getattr(torch, plane.dtype)
        planes[plane.name] = torch.full((9, 16, *plane.shape), torch.nan).to(dtype)
    table = torch.tensor([[3, 1, 5], [7, 2, 0]])
    random = torch.Generator().manual_seed(0)
    ends = [0, 0]
    for new in ((35, 3), (1, 4), (2, 1)):
        tokens = sum(new)
        q, k, v = (
            torch.randn(tokens, heads, size, generator=random)
            for heads, size in ((4, 24), (2, 24), (2, 16))
        )
        offsets = [0, new[0], tokens]
        batch = make_attention_batch(
            offsets, ends, [e + i for e, n in zip(ends, new, strict=True) for i in range(n)],
            (table,), 16, {}, torch.device("cpu"),
        )  # fmt: skip
        out = backend.attend(spec, heads_input(q, k, v), backend.plan(batch), 0, planes)
        ends = [end + n for end, n in zip(ends, new, strict=True)]
        for row in range(2):
            slots = [int(table[row, e // 16]) * 16 + e % 16 for e in range(ends[row])]
            stored = {
                name: planes[name].double().flatten(0, 1)[slots]
                * planes[f"{name}_scale"].double().flatten(0, 1)[slots][..., None]
                for name in ("k", "v")
            }
            assert (stored["k"][-new[row] :] - k[offsets[row] : offsets[row + 1]]).abs().max() < 0.2
            for i in range(new[row]):
                token, seen = offsets[row] + i, ends[row] - new[row] + i + 1
                want = naive(spec, q[token].double(), stored["k"][:seen], stored["v"][:seen])
                torch.testing.assert_close(out[token].double(), want, rtol=0, atol=1e-5)
    assert 0.01 < backend.writer.losses()["k"] < 0.05


def heads_input(q, k, v):
    from interlock.core.model import HeadsInput

    return HeadsInput(q, k, v)


def naive(spec, q_HD, k_EKD, v_EKV):
    out = []
    for head in range(spec.num_heads):
        kv_head = head * spec.num_kv_heads // spec.num_heads
        weights = torch.softmax(k_EKD[:, kv_head] @ q_HD[head] * spec.scale, 0)
        out.append(weights @ v_EKV[:, kv_head])
    return torch.stack(out)


def test_a_fused_projection_is_read_in_place():
    spec = AttentionSpec("heads", 4, 2, 16, 16, 0.25)
    fused = torch.randn(40, 8, 16)
    planes = {name: torch.zeros(4, 16, 2, 16) for name in ("k", "v")}
    batch = make_attention_batch(
        (0, 40), (0,), range(40), (torch.tensor([[2, 1, 3]]),), 16, {}, torch.device("cpu")
    )
    backend = TritonGqaAttention()
    q, k, v = fused[:, :4], fused[:, 4:6], fused[:, 6:]
    out = backend.attend(spec, heads_input(q, k, v), backend.plan(batch), 0, planes)
    for token in (0, 17, 39):
        seen = slice(0, token + 1)
        want = naive(spec, q[token].double(), k[seen].double(), v[seen].double())
        torch.testing.assert_close(out[token].double(), want, rtol=0, atol=1e-5)


def test_launches_do_not_depend_on_how_tokens_are_divided_among_short_rows():
    def plan(lengths, starts):
        offsets = np.cumsum([0, *lengths]).tolist()
        positions = [s + i for s, n in zip(starts, lengths, strict=True) for i in range(n)]
        table = torch.zeros(len(starts), 9, dtype=torch.long)
        return RaggedPlan(
            make_attention_batch(offsets, starts, positions, (table,), 16, {}, torch.device("cpu"))
        )

    first, second = plan([4, 1, 3], [9, 99, 0]), plan([2, 5, 1], [100, 3, 70])
    assert first.shape_key == second.shape_key
    assert [t.shape for t in first.tensors] == [t.shape for t in second.tensors]
    assert plan([4, 1, 4], [9, 99, 0]).shape_key != first.shape_key
    assert plan([40, 1], [9, 99]).shape_key != plan([1, 40], [9, 99]).shape_key
