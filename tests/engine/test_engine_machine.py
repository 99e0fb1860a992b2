"""A state machine over the whole engine: any requests, policies and pools, aborts at any moment."""

import dataclasses

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from interlock.core.request import FinishReason, Status
from interlock.plugins.executor import FixedConfig
from interlock.plugins.scheduler import DecodeFirstConfig, PrefillFirstConfig, WhenItFitsConfig
from interlock.plugins.speculative.heads.options import EagleConfig
from tests.engine.serving import Client, asking, build, overlapping, serve, tokens

CACHES = st.sampled_from(
    [
        ("contiguous", "none"),
        ("paged", "none"),
        ("paged", "radix"),
        ("paged", "block_hash"),
        ("buddy", "radix"),
    ]
)
CHUNKINGS = st.sampled_from(
    [
        DecodeFirstConfig(),
        DecodeFirstConfig(min_prefill_share=0.5),
        PrefillFirstConfig(),
        PrefillFirstConfig(max_prefill_steps=1),
    ]
)
LONGEST = 40
TRUNK = tokens(24, salt=3)


class EngineMachine(RuleBasedStateMachine):
    """`Client` recomputes every page account after each step and refuses a second final record."""

    @initialize(
        cache=CACHES,
        eviction=st.sampled_from(["lru", "fifo"]),
        order=st.sampled_from(["arrival", "priority"]),
        victim=st.sampled_from(["latest", "lowest_priority"]),
        chunking=CHUNKINGS,
        reserve_share=st.sampled_from([0.0, 0.3]),
        page_size=st.sampled_from([1, 3, 4, 16]),
        spare_pages=st.integers(0, 6),
        budget_tokens=st.sampled_from([1, 5, 12, 40]),
        max_requests=st.sampled_from([1, 2, 5]),
        num_drafts=st.sampled_from([0, 1, 4]),
        acceptance=st.sampled_from([0.0, 0.5, 1.0]),
        overlap=st.booleans(),
    )
    def start(
        self, cache, eviction, order, victim, chunking, reserve_share, page_size, spare_pages,
        budget_tokens, max_requests, num_drafts, acceptance, overlap,
    ):  # fmt: skip
        allocator, index = cache
        engine = build(
            allocator=allocator,
            index=index,
            eviction=eviction,
            order=order,
            victim=victim,
            chunking=chunking,
            admission=WhenItFitsConfig(reserve_share=reserve_share),
            page_size=page_size,
            num_pages=-(-(LONGEST - 1) // page_size) + spare_pages,
            budget_tokens=budget_tokens,
            max_requests=max_requests,
            max_model_len=LONGEST,
            spec=EagleConfig(num_drafts=num_drafts) if num_drafts else "none",
            executor=FixedConfig(acceptance=acceptance),
        )
        self.client = Client(overlapping(engine) if overlap else engine)
        self.budget = budget_tokens
        self.wanted = {}
        self.aborted = set()

    @rule(
        shared=st.integers(0, 24),
        own=st.integers(0, 12),
        max_tokens=st.integers(1, 20),
        priority=st.integers(0, 2),
        tenant=st.sampled_from(["", "", "other"]),
        delay_s=st.sampled_from([0.0, 0.0, 0.05, 1.0]),
        n=st.sampled_from([1, 1, 2, 4]),
    )
    def submit(self, shared, own, max_tokens, priority, tenant, delay_s, n):
        index = len(self.wanted)
        prompt = (*TRUNK[:shared], *tokens(own, salt=index))
        request = asking(index, prompt, max_tokens, priority=priority, tenant=tenant, n=n)
        now_s = self.client.engine.clock.now()
        self.client.submit(dataclasses.replace(request, arrival_s=now_s + delay_s))
        self.wanted[index] = request

    @precondition(lambda self: self.wanted)
    @rule(data=st.data())
    def abort(self, data):
        index = data.draw(st.sampled_from(sorted(self.wanted)), label="aborted")
        for sample in range(self.wanted[index].sampling.n):
            key = (index, sample) if sample else index
            if key not in self.client.records:
                self.aborted.add(key)
        self.client.abort(index)

    @rule(count=st.integers(1, 6))
    def step(self, count):
        self.client.step(count)
        assert self.client.most_tokens <= self.budget

    def teardown(self):
        """Everything ends within a bound: each step of an engine at work computes a token."""
        if not hasattr(self, "client"):
            return
        work = sum(
            (r.num_prompt_tokens + r.sampling.max_tokens) * r.sampling.n
            for r in self.wanted.values()
        )
        records = self.client.finish(50 + 10 * work)
        assert self.client.most_tokens <= self.budget
        right = serve(build(num_pages=999, max_model_len=LONGEST), *self.wanted.values())
        for key, record in records.items():
            request = self.wanted[record.index]
            given = record.output_token_ids
            assert given == right[key].output_token_ids[: len(given)]
            length = min(request.sampling.max_tokens, max(LONGEST - request.num_prompt_tokens, 0))
            if request.num_prompt_tokens == 0:
                assert record.status is Status.FAILED
            elif key in self.aborted:
                assert record.finish_reason is FinishReason.ABORT
                assert len(record.output_token_ids) <= length
            else:
                assert record.finish_reason is FinishReason.LENGTH, record.error
                assert len(record.output_token_ids) == length


EngineMachine.TestCase.settings = settings(
    max_examples=100,
    stateful_step_count=14,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


class TestEngineMachine(EngineMachine.TestCase):
    """Run by pytest under this name."""
