"""The example plugins are installed as strangers' packages, pass their tests, and run."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.installed import ROOT, Site
from tests.models.oracle import saved

EXAMPLES = [ROOT / "examples" / f"interlock-example-{name}" for name in ("plugin", "gpt2")]
SYSTEM = [5, 9, 2, 77, 30, 41, 8, 8, 13]
PROMPTS = [[*SYSTEM, 3 + i, 60 - i, *range(20, 20 + i)] for i in range(4)]
NEW_TOKENS = 24


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """Both, built and installed by pip."""
    made = Site(tmp_path_factory.mktemp("site"))
    made.pip_install(*EXAMPLES)
    return made


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A random GPT-2 in fp64, and where it is saved."""
    config = transformers.GPT2Config(
        vocab_size=96, n_embd=32, n_layer=2, n_head=4, n_positions=64, eos_token_id=None
    )
    model = transformers.GPT2LMHeadModel(config).double().eval()
    draw = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data += torch.randn(parameter.shape, generator=draw).double() * 0.2
    folder = tmp_path_factory.mktemp("gpt2")
    saved(model, folder)
    return model, folder


@pytest.fixture(scope="module")
def said(
    site: Site, gpt2: tuple[Any, Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    """What the help says, and a folder with the runs `lrfu` and `gpt2`."""
    folder = tmp_path_factory.mktemp("runs")
    lines = [json.dumps({"prompt_token_ids": prompt}) for prompt in PROMPTS]
    (folder / "prompts.jsonl").write_text("\n".join(lines))
    policy = [
        "run", "cache/eviction=lrfu", "cache.eviction.half_life_s=60", "executor=fixed",
        "cache.num_pages=48", "workload.num_requests=12", f"hydra.run.dir={folder / 'lrfu'}",
    ]  # fmt: skip
    family = [
        "run", f"model={gpt2[1]}", "dtype=float64", "spec=ngram", "cache/index=radix",
        "cache.page_size=4", "cache.num_pages=64", "scheduler.budget_tokens=16",
        "workload=prompts", f"workload.path={folder / 'prompts.jsonl'}",
        f"sampling.max_tokens={NEW_TOKENS}", "scheduler.max_requests=2",
        f"hydra.run.dir={folder / 'gpt2'}",
    ]  # fmt: skip
    help_text, *_ = site.interlock_all(["--help"], policy, family, cwd=folder)
    return help_text, folder


def test_installed_package_holds_the_plugin_and_its_entry_point(site: Site) -> None:
    assert (site.folder / "interlock_example_lrfu" / "policy.py").is_file()
    (points,) = site.folder.glob("interlock_example_lrfu-*.dist-info/entry_points.txt")
    assert points.read_text().split() == ["[interlock]", "lrfu", "=", "interlock_example_lrfu"]


def test_their_own_tests_pass(site: Site) -> None:
    """In one process, since both ask pytest for the same."""
    asked = [tomllib.loads((e / "pyproject.toml").read_text())["tool"]["pytest"] for e in EXAMPLES]
    assert asked[0] == asked[1]
    folders = [str(site.sources / example.name / "tests") for example in EXAMPLES]
    printed = site.python(
        "-m", "pytest", "-v", "-p", "no:cacheprovider", *folders, cwd=site.sources
    )
    assert "test_contract.py::" in printed
    assert "test_gpt2.py::" in printed
    assert " passed" in printed


def test_help_lists_the_policy_with_its_package(said: tuple[str, Path]) -> None:
    printed = said[0]
    (line,) = [line for line in printed.splitlines() if line.split()[:1] == ["lrfu"]]
    assert "least frequently used first" in line
    assert "interlock-example-lrfu" in line
    assert "cache.eviction.half_life_s" in printed


def test_run_with_the_policy_evicts_by_it_and_says_so(said: tuple[str, Path]) -> None:
    manifest = json.loads((said[1] / "lrfu" / "run.json").read_text())
    assert manifest["components"]["cache/eviction"] == {
        "class": "interlock_example_lrfu.policy.LRFUEviction",
        "distribution": "interlock-example-lrfu",
        "version": "0.1.0",
    }
    assert manifest["config"]["cache"]["eviction"]["half_life_s"] == 60.0
    assert manifest["counters"]["cache/eviction"]["evicted_pages"] > 0
    assert "cache/eviction" not in manifest["inert"]


def test_a_run_with_the_family_gives_the_tokens_of_transformers(
    said: tuple[str, Path], gpt2: tuple[Any, Path]
) -> None:
    """With shared prefixes, drafts and chunked prefill, in fp64."""
    lines = (said[1] / "gpt2" / "requests.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    for row, prompt in zip(rows, PROMPTS, strict=True):
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            for _ in range(NEW_TOKENS):
                ids = torch.cat([ids, gpt2[0](input_ids=ids).logits[:, -1:].argmax(-1)], dim=1)
        assert row["output_token_ids"] == ids[0, len(prompt) :].tolist()
    assert sum(row["cached_tokens"] for row in rows) > 0
