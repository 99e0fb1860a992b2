"""Runs with several samples a request: what a reader of report, folder and rerun sees of them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from interlock.conf.hydra_edge import compose
from interlock.core.assemble import build_engine
from interlock.core.ledger import StepLedger
from interlock.core.request import Request, SamplingParams, Status
from interlock.core.settings import LimitsConfig
from interlock.core.testing.records import answered
from interlock.driver.metrics import max_concurrent, summarize
from interlock.driver.run import run, serve

LINES = [
    {"prompt": "def main", "max_tokens": 6},
    {"prompt": "import os", "max_tokens": 5, "n": 3, "prompt_logprobs": 1},
    {"prompt": "class A", "max_tokens": 4, "n": 2, "best_of": 4, "seed": 3},
    {"prompt": "", "n": 2},
]


def served(folder: Path, *overrides: str) -> tuple[list[dict], dict]:
    """Lines of requests.jsonl and the summary of a run of these overrides."""
    assert run(compose([*overrides, "progress=false"]), folder, overrides) == 0
    lines = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]
    return lines, json.loads((folder / "summary.json").read_text())


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    path = tmp_path_factory.mktemp("prompts") / "lines.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    return ("model=tiny-gqa", "workload=prompts", f"workload.path={path}", "dtype=float64",
            "sampling.temperature=0.8", "sampling.ignore_eos=true", "cache.page_size=4",
            "cache.num_pages=64", "threads=1")  # fmt: skip


def test_lines_of_a_prompts_file_ask_for_samples_and_prompt_logprobs(prompts, tmp_path, capsys):
    lines, summary = served(tmp_path / "run", *prompts)
    keys = [(line["index"], line["sample"]) for line in lines]
    assert keys == [(0, 0), (1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2), (2, 3), (3, 0)]
    assert [line["dropped"] for line in lines[4:8]].count(True) == 2
    assert len({line["seed"] for line in lines}) == len(lines)
    first, *others = lines[1]["prompt_logprobs"]
    assert first is None
    assert [len(one["top"]) for one in others] == [1] * (lines[1]["num_prompt_tokens"] - 1)
    assert lines[2]["prompt_logprobs"] is None
    assert lines[8]["status"] == "failed"
    assert (summary["completed"], summary["failed"]) == (3, 1)
    assert (summary["samples"], summary["dropped_samples"]) == (1 + 3 + 2, 2)
    assert summary["total_output_tokens"] == 6 + 3 * 5 + 2 * 4
    assert summary["total_input_tokens"] == sum(lines[i]["num_prompt_tokens"] for i in (0, 1, 4))
    printed = capsys.readouterr().out
    assert "3 completed, 1 failed, 6 samples given out, 2 dropped (best_of, beams)" in printed


def test_a_rerun_gives_every_sample_again_and_names_a_request_with_a_changed_one(prompts, tmp_path):
    lines, _ = served(tmp_path / "run", *prompts)
    again, _ = served(tmp_path / "again", f"rerun={tmp_path / 'run'}")
    tokens = [[line["output_token_ids"] for line in found] for found in (lines, again)]
    assert tokens[0] == tokens[1]
    verdict = json.loads((tmp_path / "again" / "run.json").read_text())["rerun"]
    assert (verdict["same_tokens"], verdict["same_decisions"]) == (True, True)
    lines[3]["output_token_ids"][0] += 1
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "run" / "requests.jsonl").write_text(text)
    served(tmp_path / "third", f"rerun={tmp_path / 'run'}")
    verdict = json.loads((tmp_path / "third" / "run.json").read_text())["rerun"]
    assert verdict["differing_requests"] == [1]


def test_four_samples_on_the_command_line_are_all_in_the_report(tmp_path, capsys):
    lines, summary = served(
        tmp_path / "run", "model=tiny-gqa", "sampling.n=4", "sampling.temperature=1.0",
        "workload.num_requests=2", "workload.output_tokens=4", "workload.output_spread=0",
        "threads=1",
    )  # fmt: skip
    assert [(line["index"], line["sample"]) for line in lines] == [
        (index, sample) for index in range(2) for sample in range(4)
    ]
    assert (summary["completed"], summary["samples"]) == (2, 8)
    printed = capsys.readouterr().out
    assert "the end of its prompt, and its 4 outputs" in printed
    assert all(f"{number} of 4:" in printed for number in range(1, 5))


def test_samples_on_the_fixed_clock_share_a_prompt_and_rerun(tmp_path):
    lines, summary = served(
        tmp_path / "run", "executor=fixed", "sampling.n=3", "workload.num_requests=4"
    )
    assert summary["tokens"]["prompt_computed"] < 2 * summary["total_input_tokens"]
    assert len({tuple(line["output_token_ids"]) for line in lines}) == 12
    served(tmp_path / "again", f"rerun={tmp_path / 'run'}")
    verdict = json.loads((tmp_path / "again" / "run.json").read_text())["rerun"]
    assert (verdict["same_tokens"], verdict["same_decisions"]) == (True, True)


def sampled(index, sample, chunks_ms, **fields):
    record = answered(index, chunks_ms)
    record.sample = sample
    for name, value in fields.items():
        setattr(record, name, value)
    return record


def test_a_request_is_complete_and_good_when_all_its_samples_are():
    records = [
        sampled(0, 0, [(10, 1), (20, 1)]),
        sampled(0, 1, [(10, 1), (90, 1)]),
        sampled(1, 0, [(10, 1), (20, 1)]),
        sampled(1, 1, [(10, 1), (20, 1)], dropped=True, chunk_times_s=[], chunk_sizes=[]),
        sampled(2, 0, [(10, 1), (20, 1)]),
        sampled(2, 1, [(10, 1)], status=Status.ABORTED),
    ]
    summary = summarize(records, StepLedger(), LimitsConfig(e2el_ms=50))
    assert (summary["completed"], summary["aborted"]) == (2, 1)
    assert (summary["samples"], summary["dropped_samples"]) == (3, 1)
    assert summary["good_requests"] == 1
    assert summary["total_input_tokens"] == 20
    assert summary["total_output_tokens"] == 6
    assert summary["sets"]["ttft"]["count"] == 3
    assert max_concurrent(records) == 3


def test_what_follows_a_request_is_asked_once_of_the_first_sample_given_out():
    engine = build_engine(compose(["model=tiny-gqa", "threads=1", "cache.num_pages=40"]))
    sampling = SamplingParams(max_tokens=3, temperature=1.0, ignore_eos=True)
    entries = [
        Request(0, (5, 6, 7), replace(sampling, n=3, seed=1)),
        *(Request(i, (5, 6, 7), replace(sampling, best_of=4, seed=i)) for i in (1, 2, 3, 4)),
    ]
    asked = []

    def follow(record):
        asked.append((record.index, record.sample, record.dropped))
        return ()

    records = serve(engine, entries, progress=False, follow=follow)
    engine.close()
    chosen = [(r.index, r.sample, False) for r in records if r.index and not r.dropped]
    assert sorted(asked) == [(0, 0, False), *chosen]
    assert any(sample for _, sample, _ in chosen)
