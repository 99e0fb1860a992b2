"""Random compositions under random pressure give the tokens of the reference composition."""

import random

import pytest

from interlock.core.assemble import assemble
from interlock.core.request import Request, SamplingParams

REFERENCE = ("cache=none", "attention=reference", "spec=none")
CACHES = (
    ("none", "paged"),
    ("none", "contiguous"),
    ("radix", "paged"),
    ("block_hash", "paged"),
)
CASES = 24


def requests_of(random_):
    """Prompts with common prefixes and repeats, and every kind of sampling."""
    base = [random_.randrange(2, 40) for _ in range(40)]
    for index in range(random_.choice([1, 3, 6])):
        length = random_.choice([1, 2, 5, 13, 34])
        own = [random_.randrange(2, 40) for _ in range(length)]
        prompt = base[:length] if random_.random() < 0.6 else own
        prompt += [7, 8, 9] * random_.randrange(3)
        yield Request(
            index,
            tuple(prompt),
            SamplingParams(
                temperature=random_.choice([0, 0, 0.7, 1.3]),
                top_k=random_.choice([0, 5]),
                top_p=random_.choice([1, 0.9]),
                seed=random_.randrange(1000),
                max_tokens=random_.choice([1, 2, 5, 9, 17]),
                ignore_eos=random_.random() < 0.5,
                stop_token_ids=random_.choice([(), (11, 12)]),
            ),
            tenant=random_.choice(["", "a"]),
            priority=random_.randrange(3),
        )


def composition(random_, requests):
    page = random_.choice([1, 2, 3, 7, 512])
    needed = max(
        -(-(len(request.prompt_token_ids) + request.sampling.max_tokens) // page)
        for request in requests
    )
    index, allocator = random_.choice(CACHES)
    spec = random_.choice(["none", "ngram", "eagle"])
    yield f"cache.page_size={page}"
    yield f"cache.num_pages={needed + random_.choice([0, 1, needed])}"
    yield f"cache/index={index}"
    yield f"cache/allocator={allocator}"
    yield f"cache/eviction={random_.choice(['lru', 'fifo'])}"
    yield f"scheduler.budget_tokens={random_.choice([1, 2, 3, 17, 2048])}"
    yield f"scheduler.max_requests={random_.choice([1, 2, 64])}"
    yield f"scheduler/order={random_.choice(['arrival', 'priority'])}"
    yield f"scheduler/chunking={random_.choice(['decode_first', 'prefill_first'])}"
    yield f"scheduler/victim={random_.choice(['latest', 'lowest_priority'])}"
    yield f"spec={spec}"
    if spec != "none":
        yield f"spec.num_drafts={random_.choice([1, 2, 9])}"


def served(overrides, requests):
    engine = assemble(["dtype=float64", "threads=1", *overrides])
    for request in requests:
        engine.submit(request)
    ended = [output.finished for output in engine.outputs() if output.finished]
    engine.core.ledger.check()
    assert engine.stats()["held_pages"] == 0
    return {r.index: (r.status, r.finish_reason, r.error, r.output_token_ids) for r in ended}


@pytest.mark.parametrize("case", range(CASES))
def test_tokens_do_not_depend_on_the_composition(tiny, case):
    random_ = random.Random(case)
    requests = list(requests_of(random_))
    chosen = list(composition(random_, requests))
    model = f"model={tiny}"
    assert served([model, *chosen], requests) == served([model, *REFERENCE], requests), chosen
