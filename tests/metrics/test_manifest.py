import hashlib
import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from interlock.core.request import HashedPrompt, Request, SamplingParams
from interlock.core.testing.workload_contract import byte_context
from interlock.core.workload import BadRequest, Workload
from interlock.driver import manifest as manifest_module
from interlock.driver.manifest import (
    component_entry,
    git_state,
    manifest,
    model_entry,
    workload_hash,
)
from interlock.driver.peak import measure_cpu_bandwidth
from interlock.plugins.models.hugging_face import HuggingFaceDirectory

MODEL = byte_context().model


def test_manifest_is_plain_json_and_names_what_ran():
    made = manifest(
        components={"workload": Workload},
        config={"cache": {"page_size": 16}, "path": Path("a/b")},
        overrides=["cache=radix"],
        seed=5,
        entries=[Request(0, (1, 2))],
        model=MODEL,
        device=torch.device("cpu"),
        clock="wall",
        counters={"cache/index": {"hits": 3}},
        inert=["spec"],
    )
    back = json.loads(json.dumps(made, allow_nan=False))
    assert back["components"]["workload"]["class"] == "interlock.core.workload.Workload"
    assert back["components"]["workload"]["distribution"] == "interlock"
    assert back["config"] == {"cache": {"page_size": 16}, "path": "a/b"}
    assert (back["overrides"], back["seed"], back["clock"]) == (["cache=radix"], 5, "wall")
    assert back["counters"] == {"cache/index": {"hits": 3}}
    assert back["inert"] == ["spec"]
    assert back["packages"]["torch"] == torch.__version__
    assert back["device"]["threads"] == torch.get_num_threads()


def test_component_of_another_distribution_is_named_with_its_version():
    entry = component_entry(pytest.Item)
    assert (entry["distribution"], entry["version"]) == ("pytest", pytest.__version__)


def test_workload_hash_changes_with_every_part_of_a_request():
    request = Request(0, (1, 2), SamplingParams(max_tokens=4), arrival_s=0.5)
    variants = [
        request,
        replace(request, prompt_token_ids=(1, 3)),
        replace(request, arrival_s=0.6),
        replace(request, tenant="a"),
        replace(request, priority=1),
        replace(request, sampling=SamplingParams(max_tokens=5)),
        replace(request, hashed_prompt=HashedPrompt((1,), 512, 2)),
        BadRequest(0, "no prompt"),
    ]
    hashes = {workload_hash([one]) for one in variants}
    assert len(hashes) == len(variants)
    assert workload_hash([request]) == workload_hash([replace(request)])


def test_small_weights_are_hashed_whole_and_large_ones_by_header(tmp_path, monkeypatch):
    header = b'{"w":{}}'
    (tmp_path / "config.json").write_bytes(b"{}")
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 32)
    model = replace(MODEL, files=HuggingFaceDirectory(tmp_path))
    whole = model_entry(model)
    expected = hashlib.sha256(b"config.json:2\n{}model.safetensors:48\n" + weights.read_bytes())
    assert whole["sha256"] == expected.hexdigest()
    assert whole["file_bytes"] == {"config.json": 2, "model.safetensors": 48}
    assert whole["sha256_of"] == "whole files"
    monkeypatch.setattr(manifest_module, "FULL_HASH_BYTES", 10)
    large = model_entry(model)
    start = weights.read_bytes()[: 8 + len(header)]
    expected = hashlib.sha256(b"config.json:2\n{}model.safetensors:48\n" + start)
    assert large["sha256"] == expected.hexdigest()
    assert "header" in large["sha256_of"]


def test_a_model_without_files_has_no_hash():
    assert model_entry(MODEL)["sha256"] is None


def test_git_state_tells_commit_and_changes_and_is_null_elsewhere(tmp_path):
    assert git_state(tmp_path) is None

    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=n", "-c", "user.email=e@x", "-c", "core.hooksPath=/dev/null"]
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init")
    (tmp_path / "file").write_text("1")
    git("add", "file")
    git("commit", "-m", "One")
    assert git_state(tmp_path) == {"commit": git("rev-parse", "HEAD"), "dirty": False}
    (tmp_path / "file").write_text("2")
    assert git_state(tmp_path)["dirty"] is True


def test_measured_bandwidth_is_one_a_machine_can_have():
    found = measure_cpu_bandwidth(8 << 20, seconds=0.05)
    assert 1e8 < found < 1e13
