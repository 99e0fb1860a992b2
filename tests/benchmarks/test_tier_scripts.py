"""The measurements of tiers run, and report what they claim."""

from tests.benchmarks.scripts import report


def test_faults_of_every_kind_give_no_wrong_token_and_leak_no_page(tmp_path):
    found = report("tier_faults", tmp_path, "--count", "36")
    for part in (found["disk"], found["remote"]):
        if isinstance(part, str):  # no server to be had
            continue
        assert part["wrong_tokens"] == part["leaked_pages"] == 0
        assert part["faults"] == sum(kind["injected"] for kind in part["kinds"].values()) >= 12
        unmet = {name for name, kind in part["kinds"].items() if not kind["met"]}
        assert unmet <= {"evicted value"}, part


def test_disk_tier_is_measured_beside_plain_files(tmp_path):
    rows = report("tier_disk", tmp_path, "--rounds", "1", "--scale", "0.02")["rows"]
    assert [row["payload_bytes"] for row in rows] == [
        65536, 737_280, 4 << 20, 737_280, 4 << 20,
    ]  # fmt: skip
    for row in rows:
        for stage in ("write", "read", "full"):
            assert row[stage]["plain_mb_per_s"] > 0
            assert row[stage]["tier_mb_per_s"] > 0
