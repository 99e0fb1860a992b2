"""What every watch of the cache must do: nothing that a request could notice."""

import json
from pathlib import Path

import pytest

from interlock.core.assemble import assemble
from interlock.core.engine import Engine
from interlock.core.registry import Registry, load_registry
from interlock.core.request import Request, RequestRecord, SamplingParams
from interlock.core.testing.integrity import check_engine


class CacheWatchContract:
    """`overrides` choose the watch; `folder` is where it may write."""

    def overrides(self, folder: Path) -> list[str]:
        """Choices of a composition with it."""
        raise NotImplementedError

    def registry(self) -> Registry:
        """The components there are."""
        return load_registry()

    def _engine(self, *chosen: str) -> Engine:
        simulated = ["executor=fixed", "cache=radix", "cache.page_size=4", "cache.num_pages=12"]
        return assemble([*simulated, *chosen], self.registry())

    def _serve(self, engine: Engine) -> list[RequestRecord]:
        for index in range(12):
            prompt = tuple(range(2 + index % 3, 20 + index % 5))
            sampling = SamplingParams(max_tokens=1 + index % 4, ignore_eos=True)
            engine.submit(Request(index, prompt, sampling, arrival_s=0.02 * index))
        records = []
        while engine.has_work:
            records += [output.finished for output in engine.step() if output.finished]
            check_engine(engine)
        return records

    def test_it_changes_no_output_no_hit_and_no_time(self, tmp_path: Path) -> None:
        watched = self._engine(*self.overrides(tmp_path))
        assert self._serve(watched) == self._serve(self._engine())
        watched.close()

    def test_what_it_did_is_plain_values_and_it_may_be_closed_twice(self, tmp_path: Path) -> None:
        engine = self._engine(*self.overrides(tmp_path))
        self._serve(engine)
        engine.close()
        engine.close()
        for watch in engine.watches.values():
            assert json.loads(json.dumps(watch.facts())) == watch.facts()

    def test_an_engine_that_serves_nothing_can_be_closed(self, tmp_path: Path) -> None:
        engine = self._engine(*self.overrides(tmp_path))
        engine.close()
        with pytest.raises(StopIteration):
            next(engine.outputs())
