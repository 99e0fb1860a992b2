"""Prompts known by block ids hit exactly what the same prompts hit when spelled out in tokens."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.core.request import HashedPrompt, Request, SamplingParams
from tests.engine.serving import build, serve

LAST_BLOCK = 5
PROMPTS = st.lists(
    st.tuples(st.lists(st.integers(0, LAST_BLOCK), min_size=1, max_size=4), st.integers(0, 7)),
    min_size=2,
    max_size=6,
)


def requests(prompts, block_tokens, spelled):
    for index, (blocks, cut) in enumerate(prompts):
        length = max(1, len(blocks) * block_tokens - cut % block_tokens)
        sampling = SamplingParams(max_tokens=5, seed=7, ignore_eos=True)
        if spelled:
            ids = [1 + block * block_tokens + j for block in blocks for j in range(block_tokens)]
            yield Request(index, tuple(ids[:length]), sampling)
        else:
            prompt = HashedPrompt(tuple(blocks), block_tokens, length)
            yield Request(index, sampling=sampling, hashed_prompt=prompt)


@pytest.mark.parametrize(
    ("block_tokens", "page_size"), [(8, 8), (8, 4), (8, 1), (4, 8), (6, 4), (4, 6), (3, 8)]
)
@settings(max_examples=8, deadline=None)
@given(prompts=PROMPTS)
def test_blocks_hit_what_their_tokens_would(block_tokens, page_size, prompts):
    found = []
    for spelled in (False, True):
        engine = build(page_size=page_size, num_pages=256, budget_tokens=64, max_model_len=256)
        hits = []
        for request in requests(prompts, block_tokens, spelled):
            record = serve(engine, request)[request.index]
            hits.append((record.cached_tokens, record.output_token_ids))
        found.append(hits)
    assert found[0] == found[1]
