"""The contract of `ParallelStrategy`: a split engine is the engine, and leaves nothing behind."""

import dataclasses
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch

from interlock.conf.hydra_edge import compose
from interlock.core.assemble import build_engine
from interlock.core.component import BuildContext, Component
from interlock.core.engine import Engine
from interlock.core.executor import Executor
from interlock.core.parallel import ParallelStrategy, Ranks
from interlock.core.registry import Registry, load_registry
from interlock.core.request import Request, SamplingParams
from interlock.core.settings import Choice, EngineConfig
from interlock.core.testing.tiny import TinyKind, write_tiny_checkpoint

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class _Made:
    """Options of the strategy under test: it was made with its own."""

    name: str = "made"


class ParallelContract:
    """Every promise of `ParallelStrategy`, on tiny models in fp64."""

    kinds: Sequence[TinyKind] = ("gqa", "mla_moe")
    """Models that the strategy can split."""

    def make(self) -> ParallelStrategy:
        """A strategy that was not started, for models with 4 heads."""
        raise NotImplementedError

    def test_there_is_at_least_one_device(self) -> None:
        assert self.make().world_size >= 1

    def test_one_that_was_never_started_can_be_closed(self) -> None:
        strategy = self.make()
        strategy.close(finished=False)
        strategy.close()

    def test_tokens_are_those_of_one_process_and_no_process_is_left(self, tmp_path: Path) -> None:
        before = children()
        for kind in self.kinds:
            model = write_tiny_checkpoint(tmp_path / kind, kind, _families())
            expected = _serve(build_engine(_config(model, "none")))
            strategy = self.make()
            engine = build_engine(_config(model, "made"), _registry(strategy))
            assert engine.ranks["world_size"] == strategy.world_size
            json.dumps(engine.ranks)
            assert _serve(engine) == expected, kind
            engine.close()
            strategy.close()
            assert children() == before

    def test_nothing_is_left_when_the_engine_cannot_be_built(self, tmp_path: Path) -> None:
        before, threads = children(), torch.get_num_threads()
        model = write_tiny_checkpoint(tmp_path / self.kinds[0], self.kinds[0], _families())
        registry = _registry(self.make())
        broken = dataclasses.replace(registry.components["executor", "torch"], build=_no_executor)
        registry.components["executor", "torch"] = broken
        with pytest.raises(KeyboardInterrupt):
            build_engine(_config(model, "made"), registry)
        assert children() == before
        assert torch.get_num_threads() == threads


class RanksContract:
    """Every promise of `Ranks`."""

    def on_ranks(self, size: int, work: Callable[[Ranks], T]) -> list[T]:
        """What `work` returns on each of `size` ranks, in rank order."""
        raise NotImplementedError

    @pytest.mark.parametrize("size", [2, 3])
    def test_each_rank_knows_its_place(self, size: int) -> None:
        places = self.on_ranks(size, lambda ranks: (ranks.rank, ranks.size))
        assert places == [(rank, size) for rank in range(size)]

    @pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
    def test_sums_are_right_and_have_equal_bits_on_every_rank(self, dtype: str) -> None:
        kind = getattr(torch, dtype)
        parts = torch.randn(3, 7, 33, generator=torch.Generator().manual_seed(0)).to(kind)
        sums = self.on_ranks(3, lambda ranks: ranks.sum(parts[ranks.rank].clone()))
        expected = parts.double().sum(0)
        for found in sums:
            assert found.dtype == kind
            assert torch.equal(found, sums[0])
            tolerance = 4 * torch.finfo(kind).eps  # of each of two roundings, terms below 4
            torch.testing.assert_close(found.double(), expected, rtol=0, atol=4 * tolerance)

    def test_the_last_axis_is_joined_in_rank_order(self) -> None:
        def joined(ranks: Ranks) -> list[list[int]]:
            mine = torch.tensor([[10, 20], [30, 40]]).T + ranks.rank  # not contiguous
            found: list[list[int]] = ranks.concat(mine).tolist()
            return found

        expected = [[10, 30, 11, 31, 12, 32], [20, 40, 21, 41, 22, 42]]
        assert self.on_ranks(3, joined) == [expected] * 3

    def test_rank_0_hands_out_its_value_whatever_its_size(self) -> None:
        values = [None, ("a", 1.5), list(range(3000)), b"x" * 4088, b"y" * 4089]

        def received(ranks: Ranks) -> list[Any]:
            return [ranks.from_first(value if ranks.rank == 0 else "mine") for value in values]

        assert self.on_ranks(3, received) == [values] * 3


def children() -> set[int]:
    """Processes that this one started and has not waited for. Empty where there is no /proc."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid():
            found.add(int(entry.parent.name))
    return found


def _no_executor(_config: Any, _context: BuildContext) -> Executor:
    raise KeyboardInterrupt


def _families() -> list[Any]:
    return list(load_registry().families.values())


def _config(model: Path, parallel: str) -> EngineConfig:
    base = compose([f"model={model}", "dtype=float64", "threads=1", "cache.num_pages=64"])
    choice = Choice(parallel, _Made() if parallel == "made" else base.choices["parallel"].config)
    return dataclasses.replace(base, choices={**base.choices, "parallel": choice})


def _registry(strategy: ParallelStrategy) -> Registry:
    registry = dataclasses.replace(load_registry())
    registry.components, registry.origins = dict(registry.components), dict(registry.origins)
    made = Component("parallel", "made", _Made, lambda _config, _context: strategy, "under test")
    registry.components["parallel", "made"] = made
    registry.origins["parallel", "made"] = registry.origins["parallel", "none"]
    return registry


def _serve(engine: Engine) -> list[list[int]]:
    """Greedy and sampled, one prompt longer than a page."""
    kinds = [SamplingParams(max_tokens=8), SamplingParams(max_tokens=8, temperature=1.0, seed=3)]
    for index, sampling in enumerate(kinds * 2):
        prompt = tuple(2 + (index * 7 + i * i) % 60 for i in range(5 + 20 * index))
        engine.submit(Request(index, prompt, sampling))
    ended = [output.finished for output in engine.outputs() if output.finished]
    return [list(r.output_token_ids) for r in sorted(ended, key=lambda record: record.index)]
