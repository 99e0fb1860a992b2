"""Tenants of a prompts file, from the line to the record: who finds whose pages."""

import json

import pytest

from tests.misuse.conftest import run, tiny

__all__ = ("run", "tiny")  # fixtures

PROMPT = "the same words for all"
TENANTS = ["a", "b", None, "a", "b", "", "A"]


@pytest.mark.parametrize(
    ("arguments", "hits"),
    [
        ((), [0, 0, 0, 1, 1, 1, 0]),
        (("cache=block_hash", "spec=eagle"), [0, 0, 0, 1, 1, 1, 0]),
        (("cache.share_tenants=true",), [0, 1, 1, 1, 1, 1, 1]),
        (("cache.share_tenants=true", "cache=block_hash"), [0, 1, 1, 1, 1, 1, 1]),
        (("cache=none", "cache.share_tenants=true"), [0] * 7),
    ],
)
def test_a_tenant_finds_its_own_pages_and_others_only_when_they_are_shared(
    run, tiny, tmp_path, arguments, hits
):
    lines = [
        {"prompt": PROMPT, "tenant": tenant, "max_tokens": 6, "stop": "~~", "echo": True}
        for tenant in TENANTS
    ]
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    ran = run(
        f"model={tiny}", "workload=prompts", f"workload.path={path}", "dtype=float64",
        "scheduler.max_requests=1", "cache.page_size=4", "cache.num_pages=64", "progress=false",
        "hydra.run.dir=run", *arguments,
    )  # fmt: skip
    records = ran.requests
    assert [record["tenant"] for record in records] == [tenant or "" for tenant in TENANTS]
    assert [record["cached_tokens"] > 0 for record in records] == [bool(hit) for hit in hits]
    assert {record["cached_tokens"] for record in records if record["cached_tokens"]} <= {20}
    assert len({tuple(record["output_token_ids"]) for record in records}) == 1
    assert len({record["text"] for record in records}) == 1
    assert records[0]["text"].startswith(PROMPT)
