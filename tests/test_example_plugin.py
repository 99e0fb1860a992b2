"""The example plugins are installed as strangers' packages, pass their tests, and run."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers

from tests.models.oracle import saved

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"


class Installed:
    """An example in a folder of its own, so that neither checkout nor environment changes."""

    def __init__(self, example: str, directory: Path) -> None:
        self.source = directory / "source"
        self.site = directory / "site"
        example_dir = EXAMPLES / example
        shutil.copytree(
            example_dir, self.source, ignore=shutil.ignore_patterns("build", "*.egg-info")
        )
        pip = ["-m", "pip", "install", "--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
        self.python(*pip, "--target", str(self.site), str(self.source), cwd=directory)

    def python(self, *arguments: str, cwd: Path) -> str:
        """What a Python that sees the installed example prints, errors included."""
        path = os.pathsep.join([str(self.site), *filter(None, [os.environ.get("PYTHONPATH")])])
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=cwd,
            env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed("interlock-example-plugin", tmp_path_factory.mktemp("example"))


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed("interlock-example-gpt2", tmp_path_factory.mktemp("gpt2"))


def test_installed_package_holds_the_plugin_and_its_entry_point(installed: Installed) -> None:
    assert (installed.site / "interlock_example_lrfu" / "policy.py").is_file()
    (entry_points,) = installed.site.glob("interlock_example_lrfu-*.dist-info/entry_points.txt")
    assert entry_points.read_text().split() == [
        "[interlock]",
        "lrfu",
        "=",
        "interlock_example_lrfu",
    ]


@pytest.mark.parametrize("example", ["installed", "gpt2"])
def test_its_own_tests_pass(example: str, request: pytest.FixtureRequest) -> None:
    package = request.getfixturevalue(example)
    printed = package.python("-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=package.source)
    assert " passed" in printed


def test_help_lists_the_policy_with_its_package(installed: Installed, tmp_path: Path) -> None:
    printed = installed.python(str(ROOT / "run.py"), "--help", cwd=tmp_path)
    (line,) = [line for line in printed.splitlines() if line.split()[:1] == ["lrfu"]]
    assert "least frequently used first" in line
    assert "interlock-example-lrfu" in line
    assert "cache.eviction.half_life_s" in printed


def test_run_with_the_policy_evicts_by_it_and_says_so(installed: Installed, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    installed.python(
        str(ROOT / "run.py"),
        "cache/eviction=lrfu",
        "cache.eviction.half_life_s=60",
        "executor=fixed",
        "cache.num_pages=48",
        "workload.num_requests=12",
        f"hydra.run.dir={run_dir}",
        cwd=tmp_path,
    )
    manifest = json.loads((run_dir / "run.json").read_text())
    assert manifest["components"]["cache/eviction"] == {
        "class": "interlock_example_lrfu.policy.LRFUEviction",
        "distribution": "interlock-example-lrfu",
        "version": "0.1.0",
    }
    assert manifest["config"]["cache"]["eviction"]["half_life_s"] == 60.0
    assert manifest["counters"]["cache/eviction"]["evicted_pages"] > 0
    assert "cache/eviction" not in manifest["inert"]


def test_a_run_with_the_family_gives_the_tokens_of_transformers(
    gpt2: Installed, tmp_path: Path
) -> None:
    """With shared prefixes, drafts and chunked prefill, in fp64."""
    config = transformers.GPT2Config(
        vocab_size=96, n_embd=32, n_layer=2, n_head=4, n_positions=64, eos_token_id=None
    )
    model = transformers.GPT2LMHeadModel(config).double().eval()
    draw = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data += torch.randn(parameter.shape, generator=draw).double() * 0.2
    saved(model, tmp_path / "model")
    system = [5, 9, 2, 77, 30, 41, 8, 8, 13]
    prompts = [[*system, 3 + i, 60 - i, *range(20, 20 + i)] for i in range(4)]
    lines = [json.dumps({"prompt_token_ids": prompt}) for prompt in prompts]
    (tmp_path / "prompts.jsonl").write_text("\n".join(lines))
    run_dir = tmp_path / "run"
    gpt2.python(
        str(ROOT / "run.py"),
        *(f"model={tmp_path / 'model'}", "dtype=float64", "spec=ngram", "cache/index=radix"),
        *("cache.page_size=4", "cache.num_pages=64", "scheduler.budget_tokens=16"),
        *("workload=prompts", f"workload.path={tmp_path / 'prompts.jsonl'}"),
        *("sampling.max_tokens=24", "scheduler.max_requests=2", f"hydra.run.dir={run_dir}"),
        cwd=tmp_path,
    )
    rows = [json.loads(line) for line in (run_dir / "requests.jsonl").read_text().splitlines()]
    for row, prompt in zip(rows, prompts, strict=True):
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            for _ in range(24):
                ids = torch.cat([ids, model(input_ids=ids).logits[:, -1:].argmax(-1)], dim=1)
        assert row["output_token_ids"] == ids[0, len(prompt) :].tolist()
    assert sum(row["cached_tokens"] for row in rows) > 0
