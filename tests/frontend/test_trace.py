import json
import os
from pathlib import Path

import pytest

from interlock.conf.check_sampling import sampling_problems
from interlock.core.errors import ConfigError, WorkloadError
from interlock.core.request import Request
from interlock.core.testing.workload_contract import byte_context
from interlock.plugins.frontend.configs import TraceConfig
from interlock.plugins.frontend.trace import Trace

DATA = Path(os.environ.get("INTERLOCK_DATA", "../shared/data"))
LINE = {"timestamp": 0, "input_length": 1030, "output_length": 5, "hash_ids": [0, 4, 9]}


def replayed(folder: Path, *lines: dict, **options) -> list[Request]:
    path = folder / "trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Trace(TraceConfig(path=str(path), **options)).requests(byte_context())


def test_a_line_becomes_a_hashed_prompt_and_a_fixed_output(tmp_path):
    (request,) = replayed(tmp_path, LINE)
    assert request.hashed_prompt.block_ids == (0, 4, 9)
    assert request.hashed_prompt.block_tokens == 512
    assert request.num_prompt_tokens == 1030
    assert request.prompt_token_ids == ()
    assert request.sampling.max_tokens == 5
    assert request.sampling.ignore_eos


def test_a_window_begins_at_time_zero_and_speed_compresses_it(tmp_path):
    lines = [LINE | {"timestamp": 1000 * at} for at in (0, 10, 14, 20, 30)]
    requests = replayed(tmp_path, *lines, start_s=10, duration_s=20, speed=2.0)
    assert [(r.index, r.arrival_s) for r in requests] == [(0, 0.0), (1, 2.0), (2, 5.0)]
    assert len(replayed(tmp_path, *lines, start_s=10, limit=2)) == 2


def test_requests_of_no_length_are_left_for_intake_to_refuse(tmp_path):
    empty, silent = replayed(
        tmp_path, LINE | {"input_length": 0, "hash_ids": []}, LINE | {"output_length": 0}
    )
    assert empty.num_prompt_tokens == 0
    assert sampling_problems(silent.sampling) == [
        "max_tokens=0 is not an integer from 1 to 2**63 - 1"
    ]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"hash_ids": [0, 4]}, "2 hash_ids for input_length=1030, which has 3 blocks"),
        ({"hash_ids": None}, "hash_ids is not a list of integers"),
        ({"input_length": "9"}, "input_length='9' is not an integer >= 0"),
        ({"output_length": -1}, "output_length=-1 is not an integer >= 0"),
        ({"timestamp": -1}, "timestamp=-1 is not milliseconds from 0 to 1e13"),
        ({"timestamp": 1e300}, r"timestamp=1e\+300 is not milliseconds from 0 to 1e13"),
    ],
)
def test_a_line_of_another_format_is_named(tmp_path, change, reason):
    with pytest.raises(WorkloadError, match=rf"trace\.jsonl, line 2: {reason}"):
        replayed(tmp_path, LINE, LINE | change)


def test_missing_fields_and_files_say_which_trace_is_expected(tmp_path):
    with pytest.raises(WorkloadError, match=r"line 1: no hash_ids; expected a Mooncake FAST'25"):
        replayed(tmp_path, {k: v for k, v in LINE.items() if k != "hash_ids"})
    with pytest.raises(WorkloadError, match=r"No such file.*kvcache-ai/Mooncake"):
        Trace(TraceConfig(path=str(tmp_path / "no"))).requests(byte_context())
    with pytest.raises(ConfigError, match=r"workload\.path is not set; .*kvcache-ai/Mooncake"):
        Trace(TraceConfig())


def test_a_window_without_requests_is_an_error(tmp_path):
    with pytest.raises(WorkloadError, match="no request from 60 s"):
        replayed(tmp_path, LINE, start_s=60)


@pytest.mark.parametrize(
    ("name", "count", "mean_input", "mean_output", "unique_blocks"),
    [("conversation", 12_031, 12_035, 343, 182_790), ("synthetic", 3_993, 15_325, 149, 43_924)],
)
def test_the_public_traces_have_their_published_statistics(
    name, count, mean_input, mean_output, unique_blocks
):
    path = DATA / "traces" / f"mooncake_{name}.jsonl.gz"
    if not path.exists():
        pytest.skip(f"{path} is absent; INTERLOCK_DATA names the folder that holds traces/")
    requests = Trace(TraceConfig(path=str(path))).requests(byte_context())
    assert len(requests) == count
    assert round(sum(r.num_prompt_tokens for r in requests) / count) == mean_input
    assert round(sum(r.sampling.max_tokens for r in requests) / count) == mean_output
    assert len({b for r in requests for b in r.hashed_prompt.block_ids}) == unique_blocks
