"""A recorded run served again makes the same decisions and gives the same tokens."""

import dataclasses
import json

import pytest

from interlock.core.assemble import build_engine
from interlock.core.clock import VirtualClock
from interlock.core.errors import InterlockError
from interlock.core.request import Status
from interlock.core.settings import Choice
from interlock.driver.replay_clock import ReplayClock
from interlock.driver.report import ReportConsole
from interlock.driver.run import Run, make_entries, run, serve
from interlock.plugins.executor import FixedConfig
from interlock.plugins.frontend import PromptsConfig, SyntheticConfig
from interlock.plugins.scheduler import PrefillFirstConfig
from interlock.plugins.speculative import NgramConfig
from interlock.plugins.speculative.heads.options import EagleConfig
from tests.engine.serving import configured


def recorded(folder, config):
    """Run into a folder; its manifest and its lines of requests.jsonl and steps.jsonl."""
    assert run(config, folder, []) == 0
    lines = [
        [json.loads(line) for line in (folder / name).read_text().splitlines()]
        for name in ("requests.jsonl", "steps.jsonl")
    ]
    return json.loads((folder / "run.json").read_text()), *lines


def again(folder, config):
    """Run what `folder` holds once more."""
    return recorded(folder.with_name("again"), dataclasses.replace(config, rerun=str(folder)))


def synthetic(config, **options):
    """The configuration with a small synthetic workload that arrives over time."""
    few = {"num_requests": 10, "prompt_tokens": 12, "output_tokens": 6, "prefix_tokens": 9}
    workload = SyntheticConfig(**{**few, "rate": 100.0, **options})
    return dataclasses.replace(
        config, choices={**config.choices, "workload": Choice("synthetic", workload)}
    )


COMPOSITIONS = [
    {"index": "radix", "num_pages": 16},
    {"index": "none", "allocator": "contiguous", "order": "priority", "num_pages": 30},
    {"index": "block_hash", "chunking": PrefillFirstConfig(), "budget_tokens": 9, "num_pages": 14},
]


@pytest.mark.parametrize("settings", COMPOSITIONS)
@pytest.mark.parametrize("drafts", [False, True])
def test_in_virtual_time(tmp_path, settings, drafts, capsys):
    spec = EagleConfig(num_drafts=3) if drafts else "none"
    config = synthetic(configured(spec=spec, executor=FixedConfig(acceptance=0.5), **settings))
    manifest, requests, steps = recorded(tmp_path / "first", config)
    second, requests_again, steps_again = again(tmp_path / "first", config)
    assert second["rerun"]["same_decisions"] is True
    assert second["rerun"]["same_tokens"] is True
    assert requests_again == requests
    assert steps_again == steps
    assert "rerun" not in manifest
    assert "the same decisions and the same tokens" in capsys.readouterr().out


@pytest.mark.parametrize("settings", COMPOSITIONS)
@pytest.mark.parametrize("spec", ["none", EagleConfig(num_drafts=3), NgramConfig()])
def test_in_wall_time_with_arrivals_between_steps(tmp_path, model_of, settings, spec):
    """Decisions depend on which arrivals a step saw, and those on how long steps took."""
    config = synthetic(configured(model_of(), spec=spec, **settings))
    _, requests, steps = recorded(tmp_path / "first", config)
    second, requests_again, steps_again = again(tmp_path / "first", config)
    assert second["rerun"]["same_decisions"], second["rerun"]
    assert second["rerun"]["same_tokens"]
    assert steps_again == steps
    assert requests_again == requests
    assert len({step["now_s"] for step in steps}) == len(steps)


def write_prompts(folder, *lines):
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return PromptsConfig(path=str(path))


@pytest.mark.parametrize("served", [0, 2])
def test_with_requests_refused_after_the_last_step(tmp_path, served):
    """They end when they arrive, whether or not a step ever runs again."""
    prompts = write_prompts(
        tmp_path,
        *({"prompt_token_ids": [5, 6, 7], "max_tokens": 3} for _ in range(served)),
        {"prompt_token_ids": [5, 999_999], "arrival_s": 4.0},
        {"prompt_token_ids": [7, 999_999], "arrival_s": 9.0},
    )  # fmt: skip
    config = configured(workload=prompts)
    _, requests, steps = recorded(tmp_path / "first", config)
    second, requests_again, steps_again = again(tmp_path / "first", config)
    assert [line["status"] for line in requests[served:]] == ["failed", "failed"]
    assert [line["finished_s"] for line in requests[served:]] == [4.0, 9.0]
    assert requests_again == requests
    assert steps_again == steps
    assert second["rerun"]["same_decisions"]


def test_a_run_that_was_stopped_is_replayed_up_to_where_it_got(tmp_path):
    config = configured(
        workload=SyntheticConfig(num_requests=4, prompt_tokens=8, output_tokens=9, rate=1000.0)
    )
    engine = build_engine(config)
    entries = make_entries(config, engine)
    stopping = iter([False] * 5 + [True])
    records = serve(engine, entries, progress=False, stop=lambda: next(stopping))
    Run(config, engine, entries, records, [], None).finish(ReportConsole(), tmp_path / "first")
    assert any(record.status is Status.RUNNING for record in records)
    second, _, steps_again = again(tmp_path / "first", config)
    assert len(steps_again) == 6
    assert second["rerun"]["same_decisions"]
    assert second["rerun"]["same_tokens"]


def test_a_replayed_clock_gives_each_reading_once_and_then_moves_with_waits_only():
    clock = ReplayClock([1.0, 2.5])
    clock.wait_until(9.0)
    assert [clock.now(), clock.now(), clock.now()] == [1.0, 2.5, 2.5]
    clock.advance(3.0)
    clock.wait_until(2.0)
    assert clock.now() == 2.5
    clock.wait_until(4.0)
    assert clock.now() == 4.0
    empty = ReplayClock([])
    assert empty.now() == 0.0
    empty.wait_until(1.0)
    assert empty.now() == 1.0


def test_a_virtual_clock_moves_by_what_steps_take_and_never_back():
    clock = VirtualClock()
    clock.wait_until(2.0)
    clock.advance(0.5)
    clock.wait_until(1.0)
    assert clock.now() == 2.5
    for duration_s in (None, -0.1):
        with pytest.raises(InterlockError, match="step durations >= 0"):
            clock.advance(duration_s)
