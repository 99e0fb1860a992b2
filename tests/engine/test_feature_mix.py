"""Every request feature at once, on any composition, against each sample run alone."""

import dataclasses
import json
from functools import cache
from statistics import fmean

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from interlock.conf.hydra_edge import compose
from interlock.core.assemble import build_engine
from interlock.core.registry import load_registry
from interlock.core.request import Request, SamplingParams, Status
from interlock.core.streams import sample_seed
from interlock.core.testing.replay_drafter import Continuations, ReplayConfig, replay_component
from interlock.core.testing.tiny import write_tiny_checkpoint
from interlock.core.testing.tiny_adapter import write_adapter
from interlock.core.testing.tiny_eagle import write_tiny_eagle
from interlock.plugins.scheduler import PrefillFirstConfig
from interlock.plugins.speculative import NgramConfig
from interlock.plugins.speculative.heads.options import EagleConfig
from tests.engine.serving import REFERENCE, Client, configured, overlapping, plus

KINDS = ("gqa", "hybrid", "caps", "sinks", "mla_moe")
ADAPTER = "adapter"
CLOSE = 1e-9
"""fp64 against fp64, in other batches."""
LONGEST = 64
"""Tokens of a request, prompt and output."""
ALPHABET = tuple(range(64, 80))
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": [7, 42]}, "b": {"type": "array", "items": {"enum": ["x", "yy"]}}},
    "required": ["a"],
}
KNOWN = Continuations()
REGISTRY = plus(replay_component("replay", KNOWN))
DRAFTERS = (
    "none",
    NgramConfig(ngram_min=1),
    EagleConfig(num_drafts=3),
    ReplayConfig("replay", 4, tree=False),
    ReplayConfig("replay", 8, tree=True),
)


@pytest.fixture(scope="module")
def worded(tmp_path_factory):
    """Tiny models over bytes by kind, each with an EAGLE head and an adapter."""

    @cache
    def model(kind):
        folder = tmp_path_factory.mktemp("worded") / kind
        families = list(load_registry().families.values())
        write_tiny_checkpoint(folder, kind, families, tokenizer=True, vocab_size=300)
        write_tiny_eagle(folder / "eagle", folder)
        write_adapter(folder / ADAPTER, folder, ("q_proj", "q_b_proj", "down_proj"))
        return folder

    return model


@cache
def adapters(model):
    return compose([f"adapters=[{model / ADAPTER}]"], load_registry()).adapters


def engine_of(model, **settings):
    config = configured(model, REGISTRY, structured="xgrammar", **settings)
    return build_engine(dataclasses.replace(config, adapters=adapters(model)), REGISTRY)


@cache
def reference(model):
    return engine_of(model, page_size=16, **REFERENCE)


@cache
def alone(model, request):
    """The record of a request with one sample, run alone on the reference composition."""
    client = Client(reference(model))
    client.submit(request)
    return client.finish()[request.index]


def samples_alone(model, request):
    """Records of every sample as a request of its own; those that best_of drops as such."""
    sampling, found = request.sampling, []
    for sample in range(sampling.samples):
        one = dataclasses.replace(
            sampling, n=1, best_of=None, seed=sample_seed(sampling.seed, sample),
            logprobs=0 if sampling.selects and sampling.logprobs is None else sampling.logprobs,
            prompt_logprobs=None if sample else sampling.prompt_logprobs,
        )  # fmt: skip
        plain = dataclasses.replace(request, sampling=one, tenant="", priority=0)
        found.append(dataclasses.replace(alone(model, plain)))
    done = [r for r in found if r.status is Status.FINISHED]
    best = (
        sorted(done, key=lambda r: -fmean(one.chosen for one in r.logprobs))[: sampling.n]
        if sampling.selects
        else found
    )
    for record in found:
        refused = record.admitted_s is None
        record.dropped = not refused and not any(record is one for one in best)
        if sampling.selects and sampling.logprobs is None:
            record.logprobs = []
            if sampling.prompt_logprobs is None:  # an echo shows the laws that were asked for
                record.prompt_logprobs = []
    return found


PROMPTS = st.one_of(
    st.tuples(st.integers(1, 24), st.just(0)), st.tuples(st.integers(0, 20), st.integers(1, 6))
)
"""Tokens of a trunk that all share, and own ones behind it."""
GRAMMARS = (
    {},
    {},
    {"json_schema": json.dumps(SCHEMA)},
    {"regex": "(a[b-d]|é){2,6}x?"},
    {"grammar": 'root ::= "(" root ")" | "a"'},
)
SOMETIMES = {
    "top_k": (1, 5, 40), "top_p": (0.5, 0.95), "min_p": (0.02,), "logprobs": (0, 1, 3),
    "prompt_logprobs": (0, 2), "stop_token_ids": ((70, 71, 72), (270,)), "echo": (True,),
    "stop": (("x",), ("ab", "cd"), ("a)", "))"), ("é",), ("C", "D", "E")), "detokenize": (True,),
    "include_stop": (True,), "repetition_penalty": (0.8, 1.4), "presence_penalty": (0.8, -0.5),
    "frequency_penalty": (0.5,), "banned_token_ids": ((66, 67), (256,), (2,)),
    "logit_bias": (((66, 9.0), (70, 2.0)), ((256, 30.0),)), "min_tokens": (1, 3, 12),
    "allowed_token_ids": ((*ALPHABET, 256),), "ignore_eos": (True,),
}  # fmt: skip


@st.composite
def samplings(draw):
    """Parameters of any mix; some are at odds, so that the request is refused or ends early."""
    given_ones = draw(st.sets(st.sampled_from(sorted(SOMETIMES)), max_size=8))
    chosen = {name: draw(st.sampled_from(SOMETIMES[name])) for name in sorted(given_ones)}
    grammar = draw(st.sampled_from(GRAMMARS))
    if grammar:
        chosen.pop("allowed_token_ids", None)
    n, more = draw(st.sampled_from([1, 1, 2, 3])), draw(st.sampled_from([None, None, 0, 1, 2]))
    return SamplingParams(
        temperature=draw(st.sampled_from([0.0, 0.7, 1.3])),
        seed=draw(st.integers(0, 3)),
        max_tokens=draw(st.integers(1, 30)),
        n=n,
        best_of=None if more is None else n + more,
        **grammar,
        **chosen,
    )


@st.composite
def requests(draw, kinds=KINDS):
    """Requests whose prompts share a trunk, some more than once."""
    found = []
    for index in range(draw(st.integers(1, 3))):
        shared, own = draw(PROMPTS)
        prompt = [65 + (i * i * 7 + i) % 60 for i in range(shared)]
        prompt += [130 + (index * 31 + i * i * 3) % 50 for i in range(own)]
        found.append(
            Request(
                index,
                tuple(prompt),
                draw(samplings()),
                tenant=draw(st.sampled_from(["", "", "other"])),
                priority=draw(st.integers(0, 2)),
                adapter=draw(st.sampled_from([None, None, ADAPTER])),
            )
        )
    return found


@st.composite
def compositions(draw):
    """Choices that accept each other, with a pool that the longest request just about fits."""
    allocator, index = draw(
        st.sampled_from(
            [("paged", "radix"), ("paged", "block_hash"), ("paged", "none"), ("contiguous", "none")]
        )
    )
    size = draw(st.sampled_from([1, 4, 16]))
    return dict(
        allocator=allocator,
        index=index,
        spec=draw(st.sampled_from(DRAFTERS)),
        chunking=draw(st.sampled_from(["decode_first", PrefillFirstConfig()])),
        order=draw(st.sampled_from(["arrival", "priority"])),
        victim=draw(st.sampled_from(["latest", "lowest_priority"])),
        page_size=size,
        num_pages=-(-LONGEST // size) + draw(st.sampled_from([0, 2, 30])),
        budget_tokens=draw(st.sampled_from([3, 16, 64])),
        max_requests=draw(st.sampled_from([1, 3, 8])),
        share_tenants=draw(st.booleans()),
    )


def close(one, other):
    """Whether log-probabilities of the same tokens are nearly equal."""
    return (one is None) == (other is None) and (
        one is None
        or (
            [t for t, _ in one.top] == [t for t, _ in other.top]
            and [one.chosen, *(v for _, v in one.top)]
            == pytest.approx([other.chosen, *(v for _, v in other.top)], abs=CLOSE)
        )
    )


SAME = (
    "status", "finish_reason", "output_token_ids", "text", "stopped_by", "dropped", "seed",
    "prompt_token_ids", "error",
)  # fmt: skip


def compare(record, right, sample):
    """What a sample got must be what it gets alone."""
    assert [getattr(record, name) for name in SAME] == [getattr(right, name) for name in SAME]
    assert len(record.logprobs) == len(right.logprobs)
    assert all(map(close, record.logprobs, right.logprobs))
    scored = [] if sample else right.prompt_logprobs
    assert len(record.prompt_logprobs) == len(scored)
    assert all(map(close, record.prompt_logprobs, scored))


@given(
    kind=st.sampled_from(KINDS),
    wanted=requests(),
    composition=compositions(),
    overlap=st.booleans(),
    abort=st.one_of(st.none(), st.tuples(st.integers(0, 12), st.integers(0, 2))),
)
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    phases=(Phase.reuse, Phase.generate),  # an example takes too long to be shrunk
)
def test_any_mix_of_features_gives_every_sample_what_it_gets_alone(
    worded, kind, wanted, composition, overlap, abort
):
    model = worded(kind)
    right = {
        (request.index, sample) if sample else request.index: record
        for request in wanted
        for sample, record in enumerate(samples_alone(model, request))
    }
    prompts = [request.prompt_token_ids for request in wanted]
    KNOWN.sequences = [(*prompts[r.index], *r.output_token_ids) for r in right.values()]
    engine = engine_of(model, **composition)
    client = Client(overlapping(engine) if overlap and engine.executor.drafter is None else engine)
    client.submit(*wanted)
    if abort is not None:
        client.step(abort[0])
        client.abort(abort[1] % len(wanted))
    records = client.finish(5000)
    engine.close()
    for key, record in records.items():
        given_out = record.output_token_ids
        assert given_out == right[key].output_token_ids[: len(given_out)]
        if abort is None or record.index != abort[1] % len(wanted):
            compare(record, right[key], record.sample)
    refused = {index for index, record in records.items() if record.status is Status.FAILED}
    assert set(right) - set(records) <= {(index, n) for index in refused for n in range(1, 6)}
