import errno
import json
from pathlib import Path

import pytest

from interlock.core.errors import RunFolderError
from interlock.core.request import (
    FinishReason,
    HashedPrompt,
    Request,
    SamplingParams,
    TokenLogprobs,
)
from interlock.core.testing.records import answered, failed
from interlock.core.workload import BadRequest
from interlock.driver import run_folder
from interlock.driver.run_folder import (
    StepDecision,
    read_requests,
    read_run,
    request_line,
    write_lines,
    write_run,
)

STEPS = [
    StepDecision(0, 0.0, 0.1, ((0, 5, 0), (1, 3, 0))),
    StepDecision(1, 0.1, 0.15, ((0, 1, 4),)),
]
MANIFEST = {"config": {"cache": {"page_size": 16}}, "seed": 3}


def written(folder: Path) -> Path:
    entries = [
        Request(0, (1, 2, 3), SamplingParams(seed=9), tenant="a"),
        BadRequest(1, "no prompt"),
    ]
    records = [answered(0, [(100, 1), (130, 2)]), failed(1)]
    records[0].finish_reason, records[0].seed = FinishReason.LENGTH, 9
    write_run(folder, entries, records, {"completed": 1}, MANIFEST, STEPS, lambda *ids: repr(ids))
    return folder


def test_what_is_written_is_read_back(tmp_path):
    folder = written(tmp_path / "deep" / "run")
    saved = read_run(folder)
    assert saved.config == {"cache": {"page_size": 16}}
    assert saved.manifest == MANIFEST
    assert saved.steps == STEPS
    assert json.loads((folder / "summary.json").read_text()) == {"completed": 1}
    names = ["requests.jsonl", "run.json", "steps.jsonl", "summary.json"]
    assert sorted(p.name for p in folder.iterdir()) == names


def test_requests_are_in_input_order_with_the_failed_ones(tmp_path):
    good, bad = read_requests(written(tmp_path))
    assert (good["index"], bad["index"]) == (0, 1)
    assert good["prompt_token_ids"] == [1, 2, 3]
    assert good["output_token_ids"] == [7, 7, 7]
    assert good["text"] == "((1, 2, 3), [7, 7, 7])"
    assert good["finish_reason"] == "length"
    assert good["first_token_s"] == 0.1
    assert good["chunk_times_s"] == [0.1, 0.13]
    assert (good["seed"], good["tenant"], good["error"]) == (9, "a", None)
    assert bad["error"] == "request 1: the prompt is empty"
    assert bad["status"] == "failed"
    assert bad["prompt_token_ids"] is None
    assert bad["first_token_s"] is None


def test_hashed_prompts_are_saved_as_their_hashes_and_what_continues_them_has_no_text():
    request = Request(0, hashed_prompt=HashedPrompt((4, 5), 512, 600))
    line = request_line(request, answered(0, [(1, 1)]), lambda before, ids: f"{before} {ids}")
    assert line["prompt_hash_ids"] == [4, 5]
    assert line["prompt_token_ids"] is None
    assert line["text"] is None


def test_impossible_logprobs_are_null():
    record = answered(0, [(1, 1)])
    record.logprobs = [TokenLogprobs(-0.5, ((3, -0.5), (4, float("-inf"))))]
    line = request_line(Request(0, (1,)), record)
    assert line["logprobs"] == [{"chosen": -0.5, "top": [[3, -0.5], [4, None]]}]


def test_a_full_disk_names_the_file_and_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "requests.jsonl"
    write_lines(path, [{"old": 1}])

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(run_folder.os, "fsync", full)
    with pytest.raises(RunFolderError, match=r"requests\.jsonl: .*No space left on device"):
        write_lines(path, [{"new": 1}])
    assert json.loads(path.read_text()) == {"old": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["requests.jsonl"]


def test_a_file_in_the_place_of_the_folder_is_named(tmp_path):
    (tmp_path / "run").write_text("I am a file")
    with pytest.raises(RunFolderError, match=r"run/requests\.jsonl: cannot be written"):
        written(tmp_path / "run")


def test_a_run_that_broke_off_while_it_replaced_another_is_not_complete(tmp_path):
    folder = written(tmp_path)
    with pytest.raises(ValueError, match="Out of range float"):
        write_run(folder, [], [], {"nan": float("nan")}, MANIFEST, [])
    with pytest.raises(RunFolderError, match=r"run\.json: cannot be read: No such file"):
        read_run(folder)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(RunFolderError, match="nowhere: no such run folder"):
        read_run(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("run.json", b"{", r"run\.json: corrupt"),
        ("run.json", b"[]", r"run\.json: corrupt: not a JSON object"),
        ("run.json", b"{}", r"run\.json: it holds no config"),
        ("run.json", b"\xff", r"run\.json: corrupt: not UTF-8 at byte 0"),
        ("steps.jsonl", b'{"step": 0}\n', r"steps\.jsonl, line 1: corrupt"),
        (
            "steps.jsonl",
            b'{"step":0,"now_s":0,"end_s":1,"rows":[[0,1,0]]}\n{"step":1,"now',
            r"steps\.jsonl, line 2: corrupt",
        ),
        (
            "steps.jsonl",
            b'{"step":0,"now_s":0,"end_s":1,"rows":[[0,1]]}\n',
            r"steps\.jsonl, line 1: corrupt",
        ),
    ],
)
def test_a_corrupt_file_is_named_with_its_line(tmp_path, name, content, message):
    folder = written(tmp_path)
    (folder / name).write_bytes(content)
    with pytest.raises(RunFolderError, match=message):
        read_run(folder)
