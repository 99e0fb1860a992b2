"""Hits that end inside a page: the rows that fit are copied, the others computed, tokens equal."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.core.errors import ConfigError
from interlock.core.testing.integrity import check_cache
from interlock.driver.activity import counters
from interlock.plugins.cache import BlockHashConfig, RadixConfig
from interlock.plugins.speculative.heads.options import EagleConfig
from tests.engine.serving import asking, build, outputs, serve, solo, tokens

PARTIAL = RadixConfig(partial_pages=True)
KINDS = {
    "radix": PARTIAL,
    "block_hash": BlockHashConfig(partial_pages=True),
    "digests": BlockHashConfig(hash="sha256", partial_pages=True),
}
every_index = pytest.mark.parametrize("index", KINDS.values(), ids=KINDS)


@every_index
@pytest.mark.parametrize(("spec", "kept"), [("none", 10), (EagleConfig(num_drafts=2), 9)])
def test_rows_before_the_first_other_token_are_copied(model_of, index, spec, kept):
    """A drafter that pairs a row with the next token loses the last row before the other token."""
    engine = build(model_of(), index=index, page_size=16, spec=spec)
    first = tokens(33, salt=1)
    other = (*first[:26], 60, 61, 62, 63)
    serve(engine, asking(0, first, 5))
    second = asking(1, other, 9, ignore_eos=True)
    record = serve(engine, second)[1]
    assert record.cached_tokens == 16 + kept
    assert counters(engine)["cache/index"]["partial_tokens"] == kept
    assert record.output_token_ids == solo(model_of(), [second])[1]
    check_cache(engine.core.cache, [])


def test_a_prompt_shorter_than_a_page_reuses_what_it_shares(model_of):
    engine = build(model_of(), index=PARTIAL, page_size=16)
    first, second = asking(0, tokens(20, salt=1), 3), asking(1, tokens(20, salt=1)[:7], 6)
    serve(engine, first)
    record = serve(engine, second)[1]
    assert record.cached_tokens == 6, "one token is computed to draw the next"
    assert record.output_token_ids == solo(model_of(), [second])[1]


def test_without_the_option_hits_end_between_pages(model_of):
    engine = build(model_of(), index="radix", page_size=16)
    serve(engine, asking(0, tokens(33, salt=1), 3))
    assert serve(engine, asking(1, (*tokens(33, salt=1)[:26], 60), 3))[1].cached_tokens == 16


def test_models_with_windows_are_refused_with_the_reason(model_of):
    with pytest.raises(ConfigError, match=r"partial_pages=true copies rows of one table"):
        build(model_of("hybrid"), index=PARTIAL)


@pytest.mark.parametrize("spec", ["none", EagleConfig(num_drafts=2)], ids=["none", "eagle"])
@pytest.mark.parametrize("index", [*KINDS.values()][:2], ids=[*KINDS][:2])
@given(
    page_size=st.sampled_from([3, 8, 16]),
    num_pages=st.integers(0, 6),
    shared=st.lists(st.integers(1, 24), min_size=4, max_size=8),
)
@settings(max_examples=7, deadline=None, derandomize=True)
def test_tokens_equal_those_of_requests_alone(model_of, index, spec, page_size, num_pages, shared):
    """Small pools: the page that is copied may be evicted, and given away, in the same step."""
    trunk = tokens(24, salt=7)
    requests = [
        asking(i, (*trunk[:count], *tokens(1 + count % 5, salt=i)), 4, ignore_eos=True)
        for i, count in enumerate(shared)
    ]
    pages = -(-34 // page_size) + num_pages
    engine = build(
        model_of(), index=index, page_size=page_size, num_pages=pages, spec=spec, max_requests=3,
        max_model_len=34,
    )  # fmt: skip
    assert outputs(serve(engine, *requests)) == solo(model_of(), requests)
    check_cache(engine.core.cache, [])
