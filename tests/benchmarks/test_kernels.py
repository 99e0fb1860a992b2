"""Times of CPU kernels: every case has its peers, and ratios say which is faster."""

from tests.benchmarks.scripts import report


def test_cases_are_measured_beside_their_peers(tmp_path):
    given = ["--repeats", "3", "--threads", "1", "--match", "1 ", "--also", "torch"]
    found = report("kernels", tmp_path, *given)
    rows = {row["case"]: row for row in found["rows"]}
    decode = rows["gqa 9/3 of 64: decode, batch 1 after 1,024"]
    assert set(decode["us"]) == {"auto", "torch", "auto, fp8 cache", "SDPA"}
    product = rows["576 to 3,072: 1 tokens"]
    assert set(product["us"]) == {"auto", "int8", "int4", "linear", "mv"}
    for case, row in rows.items():
        assert "1 " in case
        assert all(len(taken) == 3 and min(taken) > 0 for taken in row["samples_us"].values())
        for name, ratio in row["times_as_fast_as_peer"].items():
            assert ratio["low"] <= ratio["median"] <= ratio["high"]
            faster = row["us"][row["peer"]] > row["us"][name]
            if not ratio["low"] <= 1 <= ratio["high"]:
                assert (ratio["median"] > 1) == faster
    assert found["copy_bytes_read_per_s"] > 1e8
