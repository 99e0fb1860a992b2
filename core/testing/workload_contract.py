"""What every workload keeps: the contract tests of the `workload` seam."""

import math
import random
from abc import ABC, abstractmethod
from dataclasses import replace

import numpy as np

from interlock.core.model import AttentionSpec, ModelDescription
from interlock.core.request import Request, RequestRecord, SamplingParams, Status
from interlock.core.workload import BadRequest, Workload, WorkloadContext


def byte_context(seed: int = 0, max_positions: int = 256) -> WorkloadContext:
    """A context of a tiny model whose tokens are UTF-8 bytes: no files, no weights."""
    attention = AttentionSpec(
        "heads", num_heads=1, num_kv_heads=1, head_dim=8, v_head_dim=8, scale=1
    )
    model = ModelDescription(
        name="bytes",
        family="test",
        vocab_size=256,
        hidden_size=8,
        num_layers=1,
        max_positions=max_positions,
        attention=(attention,),
        dtype="float32",
        config={},
    )
    return WorkloadContext(
        model=model,
        sampling=SamplingParams(),
        seed=seed,
        encode=lambda text: list(text.encode()),
        apply_chat_template=lambda messages: [
            byte for m in messages for byte in f"{m['role']}:{m['content']}\n".encode()
        ],
    )


class WorkloadContract(ABC):
    """Subclass it, define `make`, and run it with pytest."""

    carries_tokens: bool = True
    """What the component declares with `CarriesTokens`."""
    seeded: bool = False
    """True when another seed gives other requests."""

    @abstractmethod
    def make(self) -> Workload:
        """A workload of at least two requests, new at each call."""

    def context(self, seed: int = 0) -> WorkloadContext:
        """The context it is asked with."""
        return byte_context(seed)

    def served(self) -> list[Request]:
        """The entries that are requests."""
        entries = self.make().requests(self.context())
        return [entry for entry in entries if isinstance(entry, Request)]

    def test_there_are_requests_to_run(self) -> None:
        assert len(self.served()) >= 2

    def test_entries_are_numbered_in_order(self) -> None:
        entries = self.make().requests(self.context())
        assert [entry.index for entry in entries] == list(range(len(entries)))
        assert all(isinstance(entry, Request | BadRequest) for entry in entries)

    def test_arrivals_are_finite_and_not_before_the_run(self) -> None:
        assert all(0 <= r.arrival_s < math.inf for r in self.served())

    def test_the_same_context_gives_equal_requests(self) -> None:
        workload = self.make()
        first = workload.requests(self.context())
        assert workload.requests(self.context()) == first
        assert self.make().requests(self.context()) == first

    def test_another_seed_changes_the_requests_only_where_declared(self) -> None:
        first, other = (self.make().requests(self.context(seed)) for seed in (0, 1))
        assert (first != other) == self.seeded

    def test_requests_carry_tokens_exactly_when_declared(self) -> None:
        for request in self.served():
            assert (request.hashed_prompt is None) == self.carries_tokens
            assert not (request.hashed_prompt and request.prompt_token_ids)

    def test_hashed_prompts_name_a_block_for_every_token(self) -> None:
        for prompt in (r.hashed_prompt for r in self.served() if r.hashed_prompt):
            assert len(prompt.block_ids) == -(-prompt.num_tokens // prompt.block_tokens)

    def test_what_follows_an_answer_depends_on_no_order(self) -> None:
        first, last = self._answered(0), self._answered(-1)
        assert sorted(first) == list(range(len(first)))
        assert first == last

    def _answered(self, place: int) -> dict[int, Request | BadRequest]:
        """Every entry, when of the open requests the first (0) or the last (-1) ends first."""
        workload = self.make()
        entries = {entry.index: entry for entry in workload.requests(self.context())}
        open_requests = [entry for entry in entries.values() if isinstance(entry, Request)]
        while open_requests:
            request = open_requests.pop(place)
            record = RequestRecord(
                index=request.index,
                status=Status.FINISHED,
                output_token_ids=[65, 66],
                finished_s=request.arrival_s + 1.5,
            )
            for entry in workload.follow(record):
                assert entry.index not in entries
                entries[entry.index] = entry
                if isinstance(entry, Request):
                    assert record.finished_s is not None
                    assert record.finished_s <= entry.arrival_s < math.inf
                    open_requests.append(entry)
            assert not workload.follow(record), "asked twice"
        return entries

    def test_token_ids_are_plain_integers(self) -> None:
        assert all(type(t) is int for r in self.served() for t in r.prompt_token_ids)

    def test_global_random_state_is_left_alone(self) -> None:
        before = random.getstate(), repr(np.random.get_state(legacy=False))
        self.make().requests(self.context())
        assert (random.getstate(), repr(np.random.get_state(legacy=False))) == before

    def test_the_runs_defaults_reach_every_request(self) -> None:
        """The run's seed of sampling is kept where the source does not set one."""
        context = self.context()
        context = replace(context, sampling=replace(context.sampling, seed=1234))
        entries = self.make().requests(context)
        assert any(isinstance(e, Request) and e.sampling.seed == 1234 for e in entries)
