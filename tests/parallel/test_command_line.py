"""Split runs on the command line: started by themselves or by torchrun, reported, interrupted."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from interlock.core.registry import load_registry
from interlock.core.testing.tiny import write_tiny_checkpoint
from interlock.driver import cli

ROOT = Path(__file__).parents[2]
SPLIT = ("parallel=tensor", "parallel.size=2")


@pytest.fixture(scope="module")
def common(tmp_path_factory):
    families = list(load_registry().families.values())
    model = write_tiny_checkpoint(
        tmp_path_factory.mktemp("model"), "gqa", families, max_position_embeddings=100_000
    )
    return (
        f"model={model}", "dtype=float64", "progress=false", "cache.num_pages=500", "threads=1",
        "workload=synthetic", "workload.num_requests=3", "workload.output_tokens=6",
        "sampling.temperature=0.8",
    )  # fmt: skip


def outputs(folder):
    lines = (folder / "requests.jsonl").read_text().splitlines()
    return [json.loads(line)["output_token_ids"] for line in lines]


def run_here(monkeypatch, folder, *arguments):
    monkeypatch.setattr(sys, "argv", ["interlock", *arguments, f"hydra.run.dir={folder}"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code


def start(folder, *arguments, launcher=(sys.executable,)):
    command = [*launcher, str(ROOT / "run.py"), *arguments, f"hydra.run.dir={folder}"]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder.parent
    )


def test_a_split_run_says_so_and_gives_the_same_tokens(common, tmp_path, monkeypatch, capfd):
    assert run_here(monkeypatch, tmp_path / "one", *common) == 0
    capfd.readouterr()
    assert run_here(monkeypatch, tmp_path / "two", *common, *SPLIT) == 0
    shown = capfd.readouterr()
    assert "tensor: 2 ranks (gloo), 0.1, 0.1 MiB of weights" in shown.out
    assert not shown.err
    assert outputs(tmp_path / "two") == outputs(tmp_path / "one")
    ranks = json.loads((tmp_path / "two" / "run.json").read_text())["ranks"]
    assert ranks["world_size"] == len(ranks["weight_bytes"]) == 2
    assert (ranks["backend"], ranks["started_by"]) == ("gloo", "interlock")
    one = json.loads((tmp_path / "one" / "run.json").read_text())["ranks"]
    assert one["world_size"] == 1
    assert sum(ranks["weight_bytes"]) > one["weight_bytes"][0] > ranks["weight_bytes"][0]


def test_torchrun_starts_the_ranks_of_one_run(common, tmp_path, monkeypatch):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    launched = start(tmp_path / "launched", *common, *SPLIT, launcher=launcher)
    assert run_here(monkeypatch, tmp_path / "one", *common) == 0
    out, err = launched.communicate(timeout=120)
    assert launched.returncode == 0, err
    assert out.count("run folder: ") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["launched", "one"]
    assert outputs(tmp_path / "launched") == outputs(tmp_path / "one")
    ranks = json.loads((tmp_path / "launched" / "run.json").read_text())["ranks"]
    assert (ranks["world_size"], ranks["started_by"]) == (2, "torchrun")


ENDLESS = ("workload.output_tokens=50000", "workload.output_spread=0", *SPLIT)


def worker_of(process):
    """The process id of the only child, once it is there."""
    listed = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    end_s = time.monotonic() + 60
    while not (found := listed.read_text().split()):
        assert process.poll() is None
        assert time.monotonic() < end_s
        time.sleep(0.02)
    return int(found[0])


@pytest.mark.parametrize("who", ["rank 0", "rank 1"])
def test_a_signal_ends_both_processes_with_one_clear_message(common, tmp_path, who):
    run = start(tmp_path / "run", *common, *ENDLESS)
    worker = worker_of(run)
    if who == "rank 0":
        run.send_signal(signal.SIGINT)
        status, said = 130, "interrupted\n"
    else:
        os.kill(worker, signal.SIGKILL)
        status = 1
        said = f"parallel=tensor: rank 1 (process {worker}) was killed by SIGKILL\n"
    _, err = run.communicate(timeout=60)
    assert run.returncode == status
    assert err.endswith(said)
    assert "Traceback" not in err
    end_s = time.monotonic() + 10  # one that was just starting looks for rank 0 and finds nobody
    while Path(f"/proc/{worker}").exists():
        assert time.monotonic() < end_s
        time.sleep(0.05)
