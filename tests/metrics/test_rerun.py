"""A recorded run served again gives the recorded decisions, and says so when it does not."""

import json
from pathlib import Path

import pytest

from interlock.conf.hydra_edge import compose
from interlock.core.errors import ConfigError, InterlockError
from interlock.driver.run import run

SMALL = [
    "executor=fixed", "workload.num_requests=6", "workload.output_tokens=5", "progress=false",
    "cache.page_size=4", "cache.num_pages=60", "spec=ngram", "threads=1",
]  # fmt: skip


def serve(folder: Path, *overrides: str) -> dict:
    """Run these overrides into a folder; its manifest."""
    assert run(compose(overrides), folder, overrides) == 0
    return json.loads((folder / "run.json").read_text())


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    serve(tmp_path / "first", *SMALL)
    return tmp_path / "first"


def test_a_rerun_makes_the_recorded_decisions_and_tokens(recorded, tmp_path, capsys):
    manifest = serve(tmp_path / "again", f"rerun={recorded}", "progress=false")
    assert manifest["rerun"] == {
        "of": str(recorded),
        "same_decisions": True,
        "first_differing_step": None,
        "same_tokens": True,
        "differing_requests": [],
    }
    assert "the same decisions and the same tokens" in capsys.readouterr().out.replace("\n", " ")
    files = ("steps.jsonl", "requests.jsonl")
    assert [(recorded / f).read_bytes() for f in files] == [
        (tmp_path / "again" / f).read_bytes() for f in files
    ]


def test_a_rerun_on_the_wall_clock_repeats_the_recorded_times(tmp_path):
    """How steps were filled depended on real time; the recorded readings repeat it."""
    real = [text for text in SMALL if text != "executor=fixed"]
    serve(tmp_path / "first", "model=tiny-gqa", "workload.rate=200", *real)
    manifest = serve(tmp_path / "again", f"rerun={tmp_path / 'first'}", "progress=false")
    assert manifest["rerun"]["same_decisions"]
    assert manifest["rerun"]["same_tokens"]


def test_a_difference_is_named_by_step_and_request(recorded, tmp_path, capsys):
    steps = [json.loads(line) for line in (recorded / "steps.jsonl").read_text().splitlines()]
    steps[2]["rows"][0][1] += 1
    (recorded / "steps.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    lines = [json.loads(line) for line in (recorded / "requests.jsonl").read_text().splitlines()]
    lines[4]["output_token_ids"][0] += 1
    (recorded / "requests.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    manifest = serve(tmp_path / "again", f"rerun={recorded}", "progress=false")
    assert not manifest["rerun"]["same_decisions"]
    assert manifest["rerun"]["first_differing_step"] == 2
    assert manifest["rerun"]["differing_requests"] == [4]
    assert "DIFFERS: first differing step 2" in capsys.readouterr().out.replace("\n", " ")


@pytest.mark.parametrize("file", ["run.json", "steps.jsonl", "requests.jsonl"])
def test_a_folder_without_one_of_its_files_is_refused_by_name(recorded, tmp_path, file):
    (recorded / file).unlink()
    with pytest.raises(ConfigError, match=f"rerun=.*{file}"):
        serve(tmp_path / "again", f"rerun={recorded}")


def test_other_settings_beside_a_rerun_are_refused(recorded, tmp_path):
    with pytest.raises(ConfigError, match="leave out seed=3 cache=none, or"):
        serve(tmp_path / "again", f"rerun={recorded}", "seed=3", "cache=none", "progress=false")


def test_another_workload_than_the_recorded_one_is_refused(recorded, tmp_path):
    manifest = json.loads((recorded / "run.json").read_text())
    manifest["workload_sha256"] = "0" * 64
    (recorded / "run.json").write_text(json.dumps(manifest))
    with pytest.raises(InterlockError, match="the workload is not the recorded one"):
        serve(tmp_path / "again", f"rerun={recorded}")
    assert not (tmp_path / "again").exists()
