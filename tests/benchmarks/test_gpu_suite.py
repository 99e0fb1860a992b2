"""The suite for one GPU: what it does without one, and that its checks find a wrong kernel."""

import json
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from benchmarks.gpu.checks import GQA, MLA, TREE, Place, backend_of
from benchmarks.gpu.scene import Row, Scene
from benchmarks.gpu_suite import chosen_of
from tests.benchmarks import scripts

ROOT = Path(__file__).parents[2]
KERNELS = {
    "gqa": "interlock.plugins.attention.triton_gqa",
    "mla": "interlock.plugins.attention.triton_mla",
    "grouped": "interlock.plugins.models.kernels",
}
CPU = Place(torch.device("cpu"), interpreted=True)
ROWS = [Row(0, 35), Row(17, 1), Row(120, 3), Row(9, len(TREE) + 1, TREE)]
SPECS = [*GQA.values(), *MLA.values()]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "benchmarks/gpu_suite.py", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("cache", ["auto", "fp8"])
def test_torch_kernels_pass_the_checks_and_another_formula_does_not(spec, cache):
    backend = backend_of(CPU, spec, torch.float32, cache, "torch")
    scene = Scene(backend, spec, ROWS, 16, torch.float32, CPU.device)
    attended, written = scene.errors()
    assert attended < 1e-4
    assert (0 < written < 2**-4) if cache == "fp8" else written == 0
    scene = Scene(backend, spec, ROWS, 16, torch.float32, CPU.device)
    honest = scene.attend
    scene.attend = lambda inputs, plan: honest(inputs, plan).roll(1, dims=1)
    assert scene.errors()[0] > 0.1


def test_a_scene_sees_a_window_that_is_one_token_too_long():
    spec = GQA["window"]
    backend = backend_of(CPU, spec, torch.float32, "auto", "torch")
    scene = Scene(backend, spec, ROWS, 16, torch.float32, CPU.device)
    honest = backend.attend
    wrong = replace(spec, window=spec.window + 1)
    backend.attend = lambda _spec, *rest: honest(wrong, *rest)
    assert scene.errors()[0] > 1e-3


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_and_how_to_check_kernels_and_ends_with_2():
    ended = scripts.run("gpu_suite")
    assert ended.code == 2
    assert "no CUDA device" in ended.err
    assert "--interpret" in ended.err


def test_an_unknown_section_is_named_with_those_that_exist():
    with pytest.raises(SystemExit, match="--only gqq: no such section; known: gqa, mla"):
        chosen_of(["gqq"], ["gqa", "mla"])
    assert chosen_of(["mla"], ["rates", "gqa", "mla"]) == ["rates", "mla"]


def test_its_checks_run_in_the_interpreter(tmp_path):
    out = tmp_path / "out.json"
    kernels = [name for name, module in KERNELS.items() if find_spec(module)]
    done = run("--interpret", "--only", *kernels, "ranks", "--json", str(out))
    lines = json.loads(out.read_text())["lines"]
    assert done.returncode == 0, done.stdout
    assert {line["section"] for line in lines} == {*(f"{n} = formula" for n in kernels), "ranks"}
    assert all(line["ok"] for line in lines if line["section"] != "ranks")
    assert lines[-1]["ok"] is None
    assert "it needs two GPUs" in lines[-1]["result"]


def test_a_section_without_time_lists_what_it_did_not_run(tmp_path):
    out = tmp_path / "out.json"
    done = run("--interpret", "--budget", "0", "--only", "grouped", "--json", str(out))
    assert done.returncode == 0, done.stderr
    lines = json.loads(out.read_text())["lines"]
    assert lines
    assert all(line["ok"] is None and "time is over" in line["result"] for line in lines)
