"""Whatever happens to a rank, the run ends soon with its name, and no process is left."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import torch

from interlock.core.assemble import assemble
from interlock.core.errors import RankError
from interlock.core.registry import build_registry, load_registry
from interlock.core.testing.parallel_contract import children
from interlock.core.testing.tiny import write_tiny_checkpoint
from interlock.plugins.parallel.processes import LAST_BYTES, LAST_WORDS, Worker
from interlock.plugins.parallel.watch import FIRST, STOPPED_S

SOON_S = 10.0
ENDLESS = ["dtype=float64", "progress=false", "parallel=tensor", "cache.num_pages=64"]

FAULTY = '''
"""An attention component that fails in every process but the first."""
import sys
from dataclasses import dataclass
from interlock.core.component import Component
from interlock.core.errors import CheckpointError
from interlock.core.hooks import hookimpl

INTERLOCK_CONTRACT = 1
SLOW_S = 4.0

@dataclass(frozen=True)
class Config:
    name: str = "faulty"
    when: str = "step"

def build(config, context):
    from interlock.plugins.attention.reference import build as reference
    from interlock.plugins.attention import ReferenceConfig
    backend = reference(ReferenceConfig(), context)
    if "pytest" not in sys.modules and config.when == "build":
        raise CheckpointError("model.safetensors: truncated or corrupt")
    if "pytest" not in sys.modules and config.when == "step":
        def fail(*_):
            print("this rank has a bad day", file=sys.stderr)
            raise ValueError("boom")
        backend.attend = fail
    if "pytest" not in sys.modules and config.when == "late":
        import time
        attend, waits = backend.attend, [SLOW_S]
        def late(*inputs):
            time.sleep(waits.pop() if waits else 0)
            return attend(*inputs)
        backend.attend = late
    return backend

@hookimpl
def interlock_components():
    from interlock.core.registry import load_registry
    from interlock.plugins.attention import components
    same = components()[0]
    return [Component("attention", "faulty", Config, build, "fails", provides=same.provides)]
'''


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    families = list(load_registry().families.values())
    return write_tiny_checkpoint(
        tmp_path_factory.mktemp("model"), "gqa", families, max_position_embeddings=100_000
    )


def started(model, *overrides, registry=None):
    """An engine in the midst of a request that nobody lives to see the end of; its workers."""
    before = children()
    engine = assemble([*ENDLESS, f"model={model}", *overrides], registry)
    engine.submit([5, 6, 7])
    for _ in range(3):
        engine.step()
    return engine, sorted(children() - before)


def ends_soon(engine, workers):
    """The error of the next steps; nothing is left when it is raised and the engine closed."""
    start_s = time.monotonic()
    with pytest.raises(RankError) as caught:
        list(engine.outputs())
    engine.close()
    assert time.monotonic() - start_s < SOON_S
    assert not set(workers) & children()
    return str(caught.value)


def test_a_rank_that_is_killed_is_named_with_the_signal(model):
    engine, workers = started(model, "parallel.size=4")
    os.kill(workers[1], signal.SIGKILL)
    assert f"rank 2 (process {workers[1]}) was killed by SIGKILL" in ends_soon(engine, workers)


def test_a_rank_that_is_stopped_is_not_waited_for(model):
    engine, workers = started(model)
    os.kill(workers[0], signal.SIGSTOP)
    assert f"rank 1 (process {workers[0]}) has been stopped" in ends_soon(engine, workers)


@pytest.fixture
def faulty(tmp_path, monkeypatch):
    """A registry with attention=faulty, which other processes find as well."""
    info = tmp_path / "faulty-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[interlock]\nfaulty = faulty_attention\n")
    (tmp_path / "faulty_attention.py").write_text(FAULTY)
    monkeypatch.syspath_prepend(str(tmp_path))
    return build_registry(entry_points(group="interlock"))


def test_a_rank_that_raises_is_named_with_its_last_words(model, faulty):
    with pytest.raises(RankError, match=r"rank 1 \(process \d+\) failed: ValueError: boom") as it:
        started(model, "attention=faulty", registry=faulty)
    assert "this rank has a bad day" in str(it.value)
    assert "Traceback" in str(it.value)
    assert not children()


def test_the_last_words_of_a_rank_are_whole_lines_however_long_and_end_with_the_last():
    worker = Worker(1)
    for written in range(LAST_WORDS * 2):
        worker._words.write(f"{written} {'path/' * 100}\n".encode())
    said = worker.last_words().splitlines()
    assert [int(line.split()[0]) for line in said] == [*range(LAST_WORDS, LAST_WORDS * 2)]
    worker._words.write(b"x" * 2 * LAST_BYTES)
    assert worker.last_words() == "x" * LAST_BYTES
    worker.end()
    worker.release()


def test_a_rank_that_cannot_load_its_weights_stops_the_start(model, faulty):
    said = "rank 1 .* failed: CheckpointError: model.safetensors: truncated or corrupt$"
    with pytest.raises(RankError, match=said):
        started(model, "attention=faulty", "attention.when=build", registry=faulty)
    assert not children()


def test_a_rank_that_is_slow_or_stopped_for_a_moment_is_waited_for(model, faulty):
    start_s = time.monotonic()
    slow = ("attention=faulty", "attention.when=late")
    engine, (worker,) = started(model, *slow, registry=faulty)
    assert time.monotonic() - start_s > 4 > STOPPED_S
    os.kill(worker, signal.SIGSTOP)
    threading.Timer(1.0, os.kill, (worker, signal.SIGCONT)).start()
    for _ in range(3):
        assert engine.step()
    engine.close()
    assert worker not in children()


def test_an_engine_that_nobody_holds_takes_its_ranks_with_it(model):
    engine, workers = started(model)
    del engine
    gc.collect()
    assert not set(workers) & children()


def test_two_engines_leave_the_threads_as_they_were_and_a_closed_one_runs_no_more(model):
    torch.set_num_threads(2)
    try:
        first, _ = started(model)
        second, _ = started(model)
        first.close()
        assert torch.get_num_threads() == 1
        assert second.step()
        with pytest.raises(RankError, match="the engine was closed"):
            first.step()
        second.close()
        second.close()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert not children()


def test_a_signal_without_a_name_is_told_by_its_number():
    worker = Worker(1)
    os.kill(worker.pid, signal.SIGRTMIN + 1)
    worker.process.wait(SOON_S)
    assert worker.failure() == (FIRST, f"was killed by signal {signal.SIGRTMIN + 1}")
    worker.end()
    worker.release()


SCRIPT = """
import sys
from interlock.core.assemble import assemble
engine = assemble({overrides!r})
from interlock.core.testing.parallel_contract import children
print(*children(), flush=True)
engine.submit([5, 6, 7])
while True:
    engine.step()
"""


def test_ranks_end_with_the_process_that_started_them(model):
    script = SCRIPT.format(overrides=[*ENDLESS, f"model={model}"])
    first = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    (worker,) = map(int, first.stdout.readline().split())
    time.sleep(0.2)
    first.kill()
    first.communicate(timeout=SOON_S)
    end_s = time.monotonic() + SOON_S
    while Path(f"/proc/{worker}").exists():
        assert time.monotonic() < end_s
        time.sleep(0.05)
