"""A whole engine on Triton kernels gives torch's tokens: chunks, hits, drafts, fp8 pages."""

import pytest

from interlock.core.assemble import assemble
from interlock.core.request import SamplingParams
from interlock.plugins.attention.triton_gqa import TritonGqaAttention

PROMPTS = (
    "def total(numbers):\n    result = 0\n    for",
    "def total(numbers):\n    result = 1\n",
)


def served(kernel, *more):
    """The tokens of each request, and the class of what computed attention."""
    engine = assemble(
        [
            "attention=gqa", f"attention.kernel={kernel}", "cache=radix", "cache.page_size=8",
            "cache.num_pages=64", "progress=false", *more,
        ]
    )  # fmt: skip
    params = SamplingParams(max_tokens=3, ignore_eos=True, temperature=0.0)
    found = {engine.submit(prompt, params): [] for prompt in PROMPTS}
    for output in engine.outputs():
        found[output.id] += output.new_token_ids
    return list(found.values()), engine.classes["attention"]


@pytest.mark.parametrize(
    "more",
    [
        ("dtype=float32", "spec=none", "scheduler.budget_tokens=36"),
        ("dtype=float64", "spec=eagle"),
        ("dtype=float32", "spec=ngram", "cache.dtype=fp8", "executor=cuda_graph"),
    ],
    ids=" ".join,
)
def test_an_engine_gives_the_same_tokens_with_either_kernel(more):
    right, by = served("torch", *more)
    assert not issubclass(by, TritonGqaAttention)
    tokens, by = served("triton", *more)
    assert by is TritonGqaAttention
    assert tokens == right
    assert all(len(row) == 3 for row in tokens)
