"""Latent attention kernels against the formula in float64, over pages poisoned with NaN."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.core.model import AttentionSpec
from interlock.core.planes import make_attention_batch
from interlock.plugins.attention.fp8 import quantised
from interlock.plugins.attention.kernels import INTERPRETED
from interlock.plugins.attention.kernels.mla import (
    MOST_SPLITS,
    Expanded,
    Tile,
    absorbed_attention,
    expanded_attention,
    splits_for,
)
from interlock.plugins.attention.kernels.ragged import RaggedPlan

SIZES = (1, 15, 16, 17, 63, 100, 255, 256, 257)
TOLERANCES = {
    # Results are averages of numbers of order 1.
    torch.float64: 1e-12,  # 2^-53 times a few thousand
    torch.float32: 1e-5,  # 2^-24 times a few hundred
    torch.float16: 4e-3,  # 2^-11 times 8: weights and the result are rounded
}


def rows_of(news, ends, page, trees=()):
    """A plan of rows with so many new tokens and entries, over scattered pages."""
    random = np.random.default_rng(len(ends))
    needed = [-(-end // page) for end in ends]
    ids = 1 + random.permutation(sum(needed) + 2)[: sum(needed)]
    table = random.integers(0, sum(needed) + 3, (len(ends), max(needed) + 1))
    for row, pages in enumerate(np.split(ids, np.cumsum(needed)[:-1])):
        table[row, : len(pages)] = pages
    starts = [end - new for new, end in zip(news, ends, strict=True)]
    masks, positions = {}, []
    for row, (new, start) in enumerate(zip(news, starts, strict=True)):
        depths = list(range(new))
        if row in trees:  # token i follows token (i - 1) // 2
            mask = torch.eye(new, dtype=torch.bool)
            for token in range(1, new):
                mask[token] |= mask[(token - 1) // 2]
                depths[token] = depths[(token - 1) // 2] + 1
            masks[row] = mask
        positions += [start + depth for depth in depths]
    batch = make_attention_batch(
        row_offsets=np.cumsum([0, *news]).tolist(),
        starts=starts,
        positions=positions,
        page_tables=(torch.from_numpy(table),),
        page_size=page,
        tree_masks=masks,
        device=torch.device("cpu"),
    )
    slots = [
        [int(table[row, entry // page]) * page + entry % page for entry in range(end)]
        for row, end in enumerate(ends)
    ]
    return RaggedPlan(batch), slots, sum(needed) + 3


def seen_by(batch, row, window):
    """For each new token of a row the entries that it sees, from the definition."""
    first, end = batch.row_offsets[row], batch.row_offsets[row + 1]
    start, positions = batch.starts[row], batch.positions[first:end]
    mask = batch.tree_masks.get(row)
    for token in range(end - first):
        others = range(token + 1) if mask is None else mask[token].nonzero().flatten().tolist()
        places = [(entry, entry) for entry in range(start)]
        places += [(start + other, positions[other]) for other in others]
        yield [
            entry for entry, position in places
            if window is None or position > positions[token] - window
        ]  # fmt: skip


def formula(plan, spec, q_THD, keys, values):
    """[T, H, V] in float64; `keys` and `values` [entries, H, ...] for each row."""
    found = []
    for row in range(plan.batch.num_rows):
        first = plan.batch.row_offsets[row]
        for token, seen in enumerate(seen_by(plan.batch, row, spec.window)):
            scores_HE = np.einsum("hd,ehd->he", q_THD[first + token], keys[row][seen]) * spec.scale
            weights_HE = np.exp(scores_HE - scores_HE.max(1, keepdims=True))
            weights_HE /= weights_HE.sum(1, keepdims=True)
            found.append(np.einsum("he,ehv->hv", weights_HE, values[row][seen]))
    return torch.from_numpy(np.stack(found))


def wide(x):
    """The numbers that a tensor holds, in float64."""
    return x.double().numpy()


def case(rank=24, rope=8, heads=3, window=None, scale=0.3):
    """A layer; its head parts are of no matter to absorbed queries."""
    return AttentionSpec("latent", heads, 1, 6 + rope, 5, scale, window, rank, 6, rope)


def check_absorbed(spec, news, ends, page, dtype, trees=(), fp8=False, **cut):
    """Run the kernel over pages that are NaN but for the rows' own entries, and compare."""
    assert INTERPRETED
    plan, slots, pages = rows_of(news, ends, page, trees)
    torch.manual_seed(0)
    rank, rope, heads, tokens = spec.latent_rank, spec.rope_dim, spec.num_heads, sum(news)
    q_THC = torch.randn(tokens, heads, rank).to(dtype) * rank**-0.5 * 4
    q_THP = torch.randn(tokens, heads, rope).to(dtype)
    own = [slot for row in slots for slot in row]
    new_SL = torch.randn(len(own), rank + rope).to(dtype)
    planes, stored_SL = stored(spec, new_SL, own, pages, page, fp8)
    out_THC = absorbed_attention(spec, plan, 0, q_THC, q_THP, planes, **cut)
    keys = np.split(wide(stored_SL), np.cumsum(ends)[:-1])
    keys = [np.repeat(k[:, None], heads, 1) for k in keys]
    q_THL = np.concatenate((wide(q_THC), wide(q_THP)), axis=-1)
    want = formula(plan, spec, q_THL, keys, [k[..., :rank] for k in keys])
    torch.testing.assert_close(out_THC.double(), want, rtol=0, atol=TOLERANCES[dtype])


def stored(spec, new_SL, own, pages, page, fp8):
    """Planes with these rows in slots `own`, NaN elsewhere; and the rows as they read back."""
    rank, rope = spec.latent_rank, spec.rope_dim
    if not fp8:
        plane = torch.full((pages, page, rank + rope), float("nan"), dtype=new_SL.dtype)
        plane.flatten(0, 1)[own] = new_SL
        return {"latent": plane}, new_SL
    parts = -(-rank // 128)
    codes_SGN, scale_SG = quantised(new_SL[:, :rank].reshape(-1, parts, rank // parts))
    latent = torch.full((pages, page, rank), 0x7F, dtype=torch.uint8)
    latent.flatten(0, 1)[own] = codes_SGN.flatten(1).view(torch.uint8)
    planes = {
        "latent": latent.view(torch.float8_e4m3fn),
        "latent_scale": torch.full((pages, page, parts), float("nan")),
        "rope": torch.full((pages, page, rope), float("nan"), dtype=new_SL.dtype),
    }
    planes["latent_scale"].flatten(0, 1)[own] = scale_SG
    planes["rope"].flatten(0, 1)[own] = new_SL[:, rank:]
    read_SC = (codes_SGN.double() * scale_SG.double()[..., None]).flatten(1)
    return planes, torch.cat((read_SC, new_SL[:, rank:].double()), dim=1)


@pytest.mark.parametrize(
    ("page", "rank", "rope", "heads", "window", "splits", "dtype"),
    [
        (1, 16, 4, 1, None, 1, torch.float32),
        (16, 24, 8, 3, None, 3, torch.float16),
        (64, 40, 4, 17, None, 2, torch.float32),
        (16, 40, 8, 2, 16, 2, torch.float64),
        (64, 16, 8, 16, 1, 1, torch.float16),
        (1, 24, 4, 5, 100, 4, torch.float32),
    ],
)
def test_decode_tokens_of_rows_of_any_length(page, rank, rope, heads, window, splits, dtype):
    spec = case(rank, rope, heads, window)
    check_absorbed(spec, [1] * len(SIZES), SIZES, page, dtype, splits=splits)


@pytest.mark.parametrize(("window", "splits"), [(None, 3), (3, 1), (40, 2)])
def test_trees_chains_chunks_and_rows_without_tokens_in_one_step(window, splits):
    news, ends = [7, 0, 1, 33, 16, 2], [40, 9, 17, 100, 16, 2]
    spec = case(window=window)
    check_absorbed(spec, news, ends, 16, torch.float32, trees=(0, 4), splits=splits)


@settings(max_examples=12, deadline=None, derandomize=True, database=None)
@given(
    news=st.lists(st.sampled_from([0, 1, 2, 5, 16, 17]), min_size=1, max_size=5).filter(any),
    before=st.lists(st.integers(0, 80), min_size=5, max_size=5),
    heads=st.sampled_from([1, 3, 4, 16, 20]),
    queries=st.sampled_from([16, 32, 64]),
    tree=st.booleans(),
)
def test_every_division_of_tokens_into_tiles_gives_every_query(news, before, heads, queries, tree):
    ends = [new + start for new, start in zip(news, before, strict=False)]
    trees = [row for row, new in enumerate(news) if tree and new > 1]
    tile = Tile(queries, 32, 4, 2)
    check_absorbed(case(16, 4, heads), news, ends, 4, torch.float64, trees, tile=tile)


@pytest.mark.parametrize(
    ("rank", "dtype"),
    [(24, torch.float16), (160, torch.float32), (256, torch.float16), (256, torch.float64)],
)
def test_fp8_latents_are_read_as_they_are_stored(rank, dtype):
    check_absorbed(case(rank), [1, 3, 1], [40, 19, 1], 16, dtype, fp8=True, splits=2)


def test_scores_far_beyond_the_range_of_exp_do_not_overflow():
    check_absorbed(case(scale=2e4), [1, 2], [60, 19], 16, torch.float64, splits=2)


def expand(spec, latents_SL, up_k_HNC, up_v_HVC, dtype):
    """Keys and values of every head, in `dtype`."""
    latent_SC = latents_SL[:, : spec.latent_rank]
    k_SHN = torch.einsum("sc,hnc->shn", latent_SC, up_k_HNC).to(dtype)
    v_SHV = torch.einsum("sc,hvc->shv", latent_SC, up_v_HVC).to(dtype)
    return Expanded(k_SHN, latents_SL[:, spec.latent_rank :].to(dtype), v_SHV)


@pytest.mark.parametrize(
    ("nope", "rope", "value", "window", "trees", "dtype"),
    [
        (6, 4, 5, None, (), torch.float64),
        (24, 8, 16, None, (1,), torch.float32),
        (40, 8, 40, 9, (1,), torch.float16),
        (16, 4, 24, 100, (), torch.float32),
    ],
)
def test_expanded_rows_of_any_length(nope, rope, value, window, trees, dtype):
    news, ends = [63, 5, 100, 17, 1], [63, 38, 257, 33, 16]
    heads, rank = 3, 16
    spec = AttentionSpec("latent", heads, 1, nope + rope, value, 0.3, window, rank, nope, rope)
    plan, _, _ = rows_of(news, ends, 16, trees)
    torch.manual_seed(0)
    q_THN = torch.randn(sum(news), heads, nope + 3).to(dtype)[..., :nope].contiguous()
    q_THP = torch.randn(sum(news), heads, rope).to(dtype)
    up_k_HNC, up_v_HVC = (torch.randn(heads, n, rank) * rank**-0.5 for n in (nope, value))
    entries = expand(spec, torch.randn(sum(ends), rank + rope), up_k_HNC, up_v_HVC, dtype)
    base_R = torch.tensor(np.cumsum([0, *ends])[:-1], dtype=torch.int32)
    out_THV = torch.full((sum(news), heads, value), float("nan"), dtype=dtype)
    expanded_attention(spec, plan, base_R, q_THN, q_THP, entries, out_THV)
    cuts = np.cumsum(ends)[:-1]
    rope_SHP = np.repeat(wide(entries.k_SP)[:, None], heads, 1)
    keys = np.split(np.concatenate((wide(entries.k_SHN), rope_SHP), axis=-1), cuts)
    q_THD = np.concatenate((wide(q_THN), wide(q_THP)), axis=-1)
    want = formula(plan, spec, q_THD, keys, np.split(wide(entries.v_SHV), cuts))
    torch.testing.assert_close(out_THV.double(), want, rtol=0, atol=4 * TOLERANCES[dtype])


@given(tiles=st.integers(0, 5000), entries=st.integers(1, 1 << 20), processors=st.integers(1, 200))
@settings(max_examples=200, deadline=None, derandomize=True, database=None)
def test_splits_fill_the_processors_without_shares_too_small(tiles, entries, processors):
    splits = splits_for(tiles, entries, processors)
    assert 1 <= splits <= MOST_SPLITS
    if splits > 1:
        assert entries // splits >= 128
        assert tiles * (splits - 1) < 2 * processors
