"""Requests that hurt: what the exactness walk serves, and how.

Equal and shared prompts arriving in one step, prompt lengths around the page size, a pool too small
for all, aborts in the middle of prefill and decode, greedy beside sampled requests and beam
searches, adapters, and a second wave on a warm cache.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from interlock.core.engine import Engine
from interlock.core.request import Request, RequestRecord, SamplingParams
from interlock.core.streams import sample_seed
from interlock.core.testing.integrity import check_engine

ADAPTER = "adapter"
"""A LoRA adapter that some requests use, beside others with the same prompt that do not."""
FIRST_WAVE = 9
COPIES_END_S = 30.0


def samples_alone(request: Request) -> dict[tuple[int, int], Request]:
    """(index, sample) -> that sample as a request of its own. With several, the seed is set.

    Outputs of a beam search continue each other: each stands for the whole request.
    """
    sampling = request.sampling
    if sampling.beam_width > 1:
        return {(request.index, place): request for place in range(sampling.n)}
    if sampling.n == 1:
        return {(request.index, 0): request}
    assert sampling.seed is not None
    seeds = [sample_seed(sampling.seed, sample) for sample in range(sampling.n)]
    return {
        (request.index, sample): dataclasses.replace(
            request, sampling=dataclasses.replace(sampling, n=1, seed=seed)
        )
        for sample, seed in enumerate(seeds)
    }


def requests(page_size: int) -> list[Request]:
    """The hurtful workload for this page size; indices from 9 on are the second, warm wave."""
    size = page_size
    shared = _tokens(2 * size + 1, salt=1)
    prompts = [
        shared,
        shared,
        shared,
        shared[: 2 * size],
        shared[:size] + _tokens(3, salt=2),
        _tokens(max(1, size - 1), salt=3),
        _tokens(size + 1, salt=4),
        _tokens(23, salt=5),
        _tokens(1, salt=6),
        shared,
        shared[:size] + _tokens(3, salt=2),
        _tokens(23, salt=5),
        shared + _tokens(size, salt=7),
    ]
    return [
        Request(
            index,
            prompt,
            _sampling(index),
            priority=index % 3,
            adapter=ADAPTER if index in (2, 6, 12) else None,
        )
        for index, prompt in enumerate(prompts)
    ]


def searches(page_size: int) -> list[Request]:
    """Beam searches: one of the first wave, and one on a prompt that the first has left pages of.

    Their indices follow those of `requests`.
    """
    known = requests(page_size)
    options: list[dict[str, Any]] = [
        {"beam_width": 3, "n": 2, "length_penalty": 0.7},
        {"beam_width": 2, "n": 2, "early_stopping": True, "banned_token_ids": (9, 40)},
    ]
    return [
        dataclasses.replace(
            known[like],
            index=len(known) + place,
            sampling=SamplingParams(max_tokens=6, **options[place]),
        )
        for place, like in enumerate((0, 12))
    ]


def waves(page_size: int, beams: bool) -> list[list[Request]]:
    """What is submitted at once, and what when all of that has ended."""
    wanted, searched = requests(page_size), searches(page_size) if beams else []
    return [
        wanted[:FIRST_WAVE] + searched[:1],
        wanted[FIRST_WAVE:] + searched[1:],
    ]


def sample_of(key: tuple[int, int], request: Request) -> int:
    """Which of a request's own outputs stands for this sample."""
    return key[1] if request.sampling.beam_width > 1 else 0


def end_copies(engine: Engine) -> None:
    """Let every copy to and from a tier end."""
    loads, end_s = engine.core.loads, engine.clock.now() + COPIES_END_S
    while loads is not None and loads.under_way:
        assert engine.clock.now() < end_s, "a copy never ended"
        loads.transfers.wait(engine.clock, end_s)
        loads.collect(engine.clock.now())
    check_engine(engine)


def _tokens(count: int, salt: int) -> tuple[int, ...]:
    return tuple(2 + (salt * 31 + i * i * 7 + i * salt) % 60 for i in range(count))


def _sampling(index: int) -> SamplingParams:
    kinds: list[dict[str, Any]] = [
        {},
        {"temperature": 0.7, "seed": 5, "repetition_penalty": 1.4, "n": 3},
        {"temperature": 1.3, "top_k": 20, "top_p": 0.9, "seed": 11, "n": 2},
        {"ignore_eos": True, "presence_penalty": 0.8, "frequency_penalty": 0.5},
        {"temperature": 1.0, "min_p": 0.02, "seed": 5},
        {
            "prompt_logprobs": 1,
            "min_tokens": 5,
            "logit_bias": ((1, 9.0), (7, 2.0)),
            "banned_token_ids": (9, 40),
        },
        {"temperature": 0.9, "seed": 3, "allowed_token_ids": (*range(1, 62, 3),), "n": 2},
        {"repetition_penalty": 0.8, "min_tokens": 3, "stop_token_ids": (*range(2, 30),)},
    ]
    return SamplingParams(max_tokens=6 + index % 5, **kinds[index % len(kinds)])


def serve(
    engine: Engine, waves: Sequence[Sequence[Request]]
) -> Iterator[tuple[tuple[int, int], RequestRecord]]:
    """Each wave when the one before has ended, with two aborts in the first."""
    steps = itertools.count()
    for number, wave in enumerate(waves):
        now_s = engine.clock.now()
        ids = [engine.submit(dataclasses.replace(r, arrival_s=now_s)) for r in wave]
        while engine.has_work:
            for output in engine.step():
                if output.finished is not None:
                    yield (output.index, output.sample), output.finished
            check_engine(engine)
            step = next(steps)
            if number == 0 and step == 1:
                engine.abort(ids[3])
            if number == 0 and step == 5:
                engine.abort(ids[7])
