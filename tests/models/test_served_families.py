"""Each family under the whole engine: the tokens of transformers, with everything switched on."""

from typing import Any

import pytest

from interlock.core.assemble import assemble
from interlock.core.request import Request, RequestRecord, SamplingParams
from tests.models.oracle import ONE_A_FAMILY, Oracle


def served(oracle: Oracle, *overrides: str) -> list[RequestRecord]:
    """Three equal requests, two at a time, in fp64."""
    engine = assemble(
        [f"model={oracle.directory}", "dtype=float64", "threads=1", "progress=false",
         "cache.page_size=4", "cache.num_pages=80", "scheduler.max_requests=2",
         "scheduler.budget_tokens=24", *overrides]
    )  # fmt: skip
    sampling = SamplingParams(max_tokens=len(oracle.greedy), ignore_eos=True)
    for index in range(3):
        engine.submit(Request(index, tuple(oracle.prompt), sampling))
    ended: dict[int, Any] = {o.index: o.finished for o in engine.outputs() if o.finished}
    engine.close()
    return [ended[index] for index in sorted(ended)]


@pytest.mark.parametrize("oracle", ONE_A_FAMILY, indirect=True)
def test_an_engine_with_chunks_shared_prefixes_and_drafts_gives_the_tokens_of_transformers(
    oracle: Oracle,
) -> None:
    records = served(oracle, "spec=ngram", "cache/index=radix")
    assert [record.error for record in records] == [None] * 3
    assert [record.output_token_ids for record in records] == [oracle.greedy] * 3
    assert records[2].cached_tokens > 0
