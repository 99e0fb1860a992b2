"""Comparisons of engines run end to end on a tiny shape, and say what they measured."""

import json
import random
import re
from dataclasses import replace

import pytest

from benchmarks.beside import command
from benchmarks.beside.cells import Row
from benchmarks.beside.paired import paired_ratio
from benchmarks.beside.process import SideError, SideProcess
from benchmarks.beside.shapes import LLAMA, SMOLLM2, TINY, write
from tests.benchmarks.scripts import report, run


def test_a_ratio_of_one_side_with_itself_is_a_tie_and_a_clear_difference_is_none():
    draw = random.Random(0)
    times = [1 + draw.random() for _ in range(7)]
    assert paired_ratio(times, times) == paired_ratio([1.0], [1.0])
    noisy = [t * draw.uniform(0.9, 1.1) for t in times]
    assert paired_ratio(noisy, times).tie
    found = paired_ratio([2.0 * t for t in noisy], times)
    assert not found.tie
    assert found.low <= found.median <= found.high
    assert 1.8 <= found.median <= 2.2


@pytest.mark.parametrize(("shape", "published"), [(SMOLLM2, 134_515_008), (LLAMA, 1_100_048_384)])
def test_shapes_have_the_parameters_that_the_models_are_known_by(shape, published):
    norms = (2 * shape.layers + 1) * shape.hidden
    looked_up = 0 if shape.tied else shape.vocab * shape.hidden
    assert shape.weight_elements + norms + looked_up == published


def test_a_checkpoint_is_written_once_and_again_when_its_seed_differs(tmp_path):
    folder = write(TINY, tmp_path)
    file = folder / "model.safetensors"
    first, when = file.read_bytes(), file.stat().st_mtime_ns
    assert write(TINY, tmp_path) == folder
    assert file.stat().st_mtime_ns == when
    write(TINY, tmp_path, seed=1)
    assert file.read_bytes() != first


def test_a_failing_command_ends_the_side_with_its_log(tmp_path):
    model = write(TINY, tmp_path)
    with (
        SideProcess("plain", model, "bfloat16", 1) as side,
        pytest.raises(SideError, match="plain: KeyError: 'no such product'"),
    ):
        side.call("product", "no such product", 1)


SAMPLES = {"interlock": [1.0, 2.0], "transformers": [3.0, 4.0]}


def test_ours_and_transformers_agree_and_what_is_added_replaces_its_own_cells(
    tmp_path, monkeypatch
):
    given = [
        "--shapes", "tiny", "--repeats", "2", "--threads", "1", "--models", str(tmp_path),
        "--page", str(tmp_path / "out.md"), "--batches",
    ]  # fmt: skip
    found = report("vs_transformers", tmp_path, *given, "1", "3")
    assert found["agreement_float32"] == {"tiny": {"transformers": 1.0}}
    cells = {row["cell"]: row for row in found["rows"]}
    assert list(cells) == [
        "decode, batch 1", "decode, batch 3", "prefill of 64", "5 arrivals",
    ]  # fmt: skip
    for row in cells.values():
        assert {"interlock", "transformers"} <= set(row["samples"])
        assert all(len(taken) == 2 and min(taken) > 0 for taken in row["samples"].values())
        assert row["times_as_fast_as"]["transformers"]["median"] > 0
    assert any(name.startswith("plain ") for name in cells["decode, batch 1"]["samples"])
    assert re.search(r"transformers serves by .* \(of one at a time", cells["5 arrivals"]["note"])
    page = (tmp_path / "out.md").read_text()
    assert all(cell in page for cell in cells)
    assert "100% of transformers (tiny) in fp32" in page
    assert {"interlock", "torch"} <= set(found["sides"]["interlock"])
    again = replace(Row.from_json(cells["decode, batch 3"]), samples=SAMPLES)
    nothing = {"agreement_bfloat16": {}, "agreement_float32": {}, "start_s": {}, "sides": {}}
    measured = {**nothing, "rows": [again], "seconds": 1}
    monkeypatch.setattr(command, "compare", lambda _peers, _args, _folder: measured)
    path = tmp_path / "report.json"
    more = [*given, "3", "--cells", "decode", "--add", "--json", str(path)]
    command.run([command.Peer("transformers")], command.options("").parse_args(more), "again")
    both = json.loads(path.read_text())
    assert both["rows"][1]["samples"] == SAMPLES
    assert [row["cell"] for row in both["rows"]] == list(cells)
    assert [row["samples"] == cells[row["cell"]]["samples"] for row in both["rows"]] == [
        True, False, True, True,
    ]  # fmt: skip
    assert both["rows"][3]["medians"] == pytest.approx(cells["5 arrivals"]["medians"], rel=0.01)
    assert both["agreement_float32"] == found["agreement_float32"]
    assert len(both["commands"]) == 2


@pytest.mark.parametrize("given", [[], ["--vllm-python", "/no/such/python"]])
def test_without_vllm_the_command_says_what_to_do(given):
    ended = run("vs_vllm_cpu", *given)
    assert ended.code == 2
    assert "--vllm-python" in ended.err
    assert "--help" in ended.err
