"""Every benchmark runs by its command at a small size, and writes finite numbers."""

import re
import shlex
import sys
from importlib.util import find_spec

import pytest

from tests.benchmarks.scripts import FOLDER, numbers, report, run
from tests.benchmarks.small_inputs import write_data, write_model, write_text

SMALL = {
    "batch_invariant": "--batches 1 --models tiny-gqa --dtypes float32 --repeats 1 "
    "--costs 'decode, batch 1'",
    "cache_replay": "--traces {data}/traces --only conversation --policies lru --capacities 9 "
    "--engine 9 --page {folder}/page.md --figure {folder}/rates.png",
    "cache_state_machines": "--operations 5 --only arc",
    "code_lines": "--only core",
    "control_plane": "--requests 2 8 --contexts 64 128 --steps 3 --repeats 1",
    "drafting": "--prompts 2 --tokens 4 --models tiny-gqa --temperatures 1 --drafters eagle",
    "edited_laws": "--vocab 1000 --rows 2 --context 20",
    "first_ablation": "--requests 2 --repeats 1 --figure {folder}/bars.png",
    "fp8_cache": "--tokens 64 --outputs 2 --models tiny-gqa --page {folder}/page.md",
    "index_vs_peers": "--requests 20 --repeats 1 --page-sizes 16 --sglang-python {python}",
    "kernel_table": "--only 'gqa write, head size 80, bf16 to fp8'",
    "model_families": "--tokens 2 --shapes llama_gqa --dtypes fp32 --page {folder}/page.md",
    "own_traffic": "--steps 2 --windows 4 --traffic 'licence={text}/*.py' --store {store} "
    "--page {folder}/page.md",
    "page_sizes": "--rounds 1 --requests 100 --figure {folder}/sizes.png",
    "partial_pages": "--trace {data}/traces/mooncake_conversation.jsonl.gz --requests 10",
    "shared_prefix": "--model tiny-gqa --threads 1 --requests 3 --prefix 32 --suffix 4 --vocab 500",
    "smollm2": "--model {model} --repeats 1 --questions 1 --texts 1",
    "study_page": "--times 1 --levels 2",
    "tensor_parallel": "--models tiny-gqa --ranks 1 2 --prompts 2 --tokens 2 --repeats 1 "
    "--signals SIGKILL --page {folder}/page.md",
    "tier_load": "--lengths 256 --gb-per-s 1",
    "tier_restore": "--model tiny-gqa --tokens 40 --turns 1 --threads 1",
    "training_time_test": "--steps 2 --windows 4 --ttt 1 --heads {folder}/heads --text {text} "
    "--store {store} --page {folder}/page.md",
}
ELSEWHERE = {
    "gpu_suite": "test_gpu_suite",
    "kernels": "test_kernels",
    "speculation": "test_speculation",
    "study_validity": "test_study_validity",
    "tier_disk": "test_tier_scripts",
    "tier_faults": "test_tier_scripts",
    "vs_transformers": "test_side_by_side",
    "vs_vllm_cpu": "test_side_by_side",
}
"""Those whose small run has tests of its own."""
SCRIPTS = sorted(p.stem for p in FOLDER.glob("*.py") if '== "__main__"' in p.read_text("utf-8"))
RESULTS = (FOLDER.parent / "docs" / "results" / "README.md").read_text("utf-8")
COMMANDS = re.findall(r"`(python (?:-m benchmarks\.|benchmarks/)[^`]*)`", RESULTS)
"""Those that made the recorded results."""


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    write_data(folder / "data")
    write_text(folder / "text")
    write_model(folder / "tiny.gguf")
    return {
        "data": folder / "data", "text": folder / "text", "store": folder / "store",
        "model": folder / "tiny.gguf", "python": sys.executable,
    }  # fmt: skip


def test_every_script_has_a_small_run():
    assert SCRIPTS == sorted({**SMALL, **ELSEWHERE})
    for name, test in ELSEWHERE.items():
        assert name in (FOLDER.parent / "tests/benchmarks" / f"{test}.py").read_text("utf-8")


@pytest.mark.parametrize("name", SMALL)
def test_a_small_run_writes_finite_numbers(name, places, tmp_path, monkeypatch):
    monkeypatch.setenv("INTERLOCK_DATA", str(places["data"]))
    given = shlex.split(SMALL[name].format(folder=tmp_path, **places))
    assert numbers(report(name, tmp_path, *given)) > 2
    for file in [path for path in tmp_path.iterdir() if path.suffix in (".md", ".png")]:
        assert file.stat().st_size > 100, file


@pytest.mark.parametrize("name", SCRIPTS)
def test_help_has_the_options_of_the_command_that_made_the_recorded_results(name):
    ended = run(name, "--help")
    assert ended.code == 0, ended.err
    recorded = [command for command in COMMANDS if re.search(rf"\b{name}\b", command)]
    options = {"--json"}.union(*(re.findall(r"--[a-z][a-z-]*", command) for command in recorded))
    assert not {option for option in options if option not in ended.out}


LACKING = {
    "cache_replay": ("--traces {folder}", "mooncake_conversation.jsonl.gz is not there"),
    "control_plane": ("--vllm-python /no/python", "give a Python that has vLLM"),
    "index_vs_peers": ("", "INTERLOCK_DATA names the folder that holds traces/"),
    "partial_pages": ("--trace {folder}/none.gz", "there is no such file"),
    "shared_prefix": ("--model none-such", "no model named 'none-such'"),
    "smollm2": ("--model none-such", "no model named 'none-such'"),
    "study_page": ("", "no browser: none of "),
    "tier_restore": ("--model none-such", "no model named 'none-such'"),
}


@pytest.mark.parametrize("name", LACKING)
def test_what_is_absent_is_named_and_the_status_is_2(name, tmp_path, monkeypatch):
    monkeypatch.setenv("INTERLOCK_DATA", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    arguments, told = LACKING[name]
    out = tmp_path / "report.json"
    given = [*shlex.split(arguments.format(folder=tmp_path)), "--json", str(out)]
    ended = run(name, *given)
    assert ended.code == 2, ended.err
    assert f"{name}: " in ended.err
    assert told in ended.err
    assert not out.exists()


@pytest.mark.parametrize("name", ["model_families", "smollm2"])
def test_without_transformers_it_says_what_to_install(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    ended = run(name)
    assert ended.code == 2
    assert "transformers is not installed: pip install 'interlock[" in ended.err


def test_a_python_without_the_peer_is_told_by_the_cell_that_needs_it():
    if find_spec("vllm"):
        pytest.skip("this Python has vLLM")
    given = shlex.split(SMALL["control_plane"])
    ended = run("control_plane", *given, "--vllm-python", sys.executable)
    assert ended.code == 2
    assert "vllm_scheduler.py failed: ModuleNotFoundError: No module named 'vllm'" in ended.err
