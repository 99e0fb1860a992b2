"""The measurements of tiers run, and report what they claim."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(script, tmp_path, *more):
    out = tmp_path / "out.json"
    command = [sys.executable, f"benchmarks/{script}.py", "--json", str(out), *more]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr + done.stdout
    return json.loads(out.read_text())


def test_faults_of_every_kind_give_no_wrong_token_and_leak_no_page(tmp_path):
    report = run("tier_faults", tmp_path, "--count", "36")
    for part in (report["disk"], report["remote"]):
        if isinstance(part, str):  # no server to be had
            continue
        assert part["wrong_tokens"] == part["leaked_pages"] == 0
        assert part["faults"] == sum(kind["injected"] for kind in part["kinds"].values()) >= 12
        unmet = {name for name, kind in part["kinds"].items() if not kind["met"]}
        assert unmet <= {"evicted value"}, part


def test_disk_tier_is_measured_beside_plain_files(tmp_path):
    report = run("tier_disk", tmp_path, "--rounds", "1", "--scale", "0.02")
    assert [row["payload_bytes"] for row in report["rows"]] == [
        65536, 737_280, 4 << 20, 737_280, 4 << 20,
    ]  # fmt: skip
    for row in report["rows"]:
        for stage in ("write", "read", "full"):
            assert row[stage]["plain_mb_per_s"] > 0
            assert row[stage]["tier_mb_per_s"] > 0
