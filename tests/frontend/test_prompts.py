import gzip
import json
from dataclasses import fields, replace
from pathlib import Path

import pytest

from interlock.conf.check_sampling import sampling_problems
from interlock.core.errors import ConfigError, RequestError, WorkloadError
from interlock.core.options import plain
from interlock.core.request import Request, SamplingParams
from interlock.core.testing.workload_contract import byte_context
from interlock.core.workload import BadRequest, WorkloadContext
from interlock.plugins.frontend.configs import PromptsConfig
from interlock.plugins.frontend.prompts import Prompts


class Ask:
    """Writes lines to a file and reads them as a workload."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "prompts.jsonl"

    def __call__(self, *lines: object, context: WorkloadContext | None = None, **options):
        raw = [x if isinstance(x, bytes) else json.dumps(x).encode() for x in lines]
        self.path.write_bytes(b"\n".join(raw))
        return Prompts(PromptsConfig(path=str(self.path), **options)).requests(
            context or byte_context()
        )


@pytest.fixture
def ask(tmp_path):
    return Ask(tmp_path)


def test_text_chat_and_ids_become_requests(ask):
    text, chat, ids = ask(
        {"prompt": "Hi"},
        {"messages": [{"role": "user", "content": "yo"}]},
        {"prompt_token_ids": [5, 6]},
    )
    assert text.prompt_token_ids == (72, 105)
    assert text.prompt_text == "Hi"
    assert bytes(chat.prompt_token_ids) == b"user:yo\n"
    assert ids.prompt_token_ids == (5, 6)


def test_fields_of_a_line_reach_the_request(ask):
    line = {
        "prompt": "x", "temperature": 0.5, "top_k": 3, "top_p": 0.9, "min_p": 0.1, "seed": 7,
        "max_tokens": 5, "stop_token_ids": [1, 2], "ignore_eos": True, "logprobs": 2,
        "arrival_s": 1.5, "tenant": "t", "priority": -1,
    }  # fmt: skip
    (request,) = ask(line)
    assert request.sampling == SamplingParams(0.5, 3, 0.9, 0.1, 7, 5, (1, 2), True, 2)
    edits = {
        "repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": -0.5,
        "min_tokens": 3, "logit_bias": {"5": 1.5}, "allowed_token_ids": [5, 6],
        "banned_token_ids": [7],
    }  # fmt: skip
    assert ask({"prompt": "x", **edits})[0].sampling == SamplingParams(
        **edits | {"logit_bias": ((5, 1.5),), "allowed_token_ids": (5, 6), "banned_token_ids": (7,)}
    )
    assert (request.arrival_s, request.tenant, request.priority) == (1.5, "t", -1)


def test_every_sampling_field_may_stand_in_a_line(ask):
    """Fields that come later are taken without a word here."""
    wanted = {field.name: plain(field.default) for field in fields(SamplingParams)}
    wanted |= {"stop": ["a", "b"], "echo": True, "detokenize": True}
    (request,) = ask({"prompt": "x", **wanted})
    assert request.sampling == SamplingParams(stop=("a", "b"), echo=True, detokenize=True)
    (one,) = ask({"prompt": "x", "stop": "end"})
    assert one.sampling.stop == ("end",)


def test_lines_without_a_limit_take_the_workloads_and_then_the_runs(ask):
    lines = [{"prompt": "x"}, {"prompt": "x", "max_tokens": 3}, {"prompt": "x", "max_tokens": None}]
    assert [r.sampling.max_tokens for r in ask(*lines, max_tokens=9)] == [9, 3, 9]
    context = replace(byte_context(), sampling=SamplingParams(max_tokens=11, top_k=4))
    given = [r.sampling for r in ask(*lines, context=context)]
    assert [s.max_tokens for s in given] == [11, 3, 11]
    assert {s.top_k for s in given} == {4}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ({"prompt": 5}, "prompt=5 is not text"),
        ({"prompt": "\ud800"}, "half a surrogate pair"),
        ({"prompt": ["a"]}, r"prompt=\['a'\] is not text"),
        ({"prompt_token_ids": [1, "2"]}, "not a list of integers"),
        ({"prompt_token_ids": [1, True]}, "not a list of integers"),
        ({"prompt_token_ids": "12"}, "not a list of integers"),
        ({"prompt": "a", "prompt_token_ids": [1]}, "has prompt and prompt_token_ids"),
        ({"max_tokens": 4}, "has none of them"),
        ({"messages": []}, "at least one message"),
        ({"messages": [{"role": "user"}]}, r"messages\[0\] is not an object with a role"),
        ({"messages": [{"role": "user", "content": 3}]}, r"messages\[0\]\.content=3 is not text"),
        ({"prompt": "a", "arrival_s": -1}, "arrival_s=-1 is not seconds >= 0"),
        ({"prompt": "a", "arrival_s": "soon"}, "arrival_s='soon' is not seconds >= 0"),
        ({"prompt": "a", "tenant": 4}, "tenant=4 is not text"),
        ({"prompt": "a", "priority": 0.5}, "priority=0.5 is not an integer"),
    ],
)
def test_a_line_that_is_no_request_fails_alone(ask, line, reason):
    before, bad, after = ask({"prompt": "a"}, line, {"prompt": "b"})
    assert isinstance(before, Request)
    assert isinstance(after, Request)
    assert isinstance(bad, BadRequest)
    assert bad.index == 1
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(bad.reason)
    assert bad.reason.endswith("prompts.jsonl, line 2)")


def test_requests_that_cannot_be_served_are_left_for_intake_to_refuse(ask):
    empty, no_tokens, outside, cold, stops = ask(
        {"prompt": ""},
        {"prompt": "a", "max_tokens": 0},
        {"prompt_token_ids": [1, 2**70, -3]},
        {"prompt": "a", "temperature": -1},
        {"prompt": "a", "stop_token_ids": "end"},
    )
    assert empty.prompt_token_ids == ()
    assert sampling_problems(no_tokens.sampling, 256) == [
        "max_tokens=0 is not an integer from 1 to 2**63 - 1"
    ]
    assert outside.prompt_token_ids == (1, 2**70, -3)
    assert sampling_problems(cold.sampling, 256) == ["temperature=-1 is not a finite number >= 0"]
    assert sampling_problems(stops.sampling, 256) == [
        "stop_token_ids='end' is not token ids from 0 to 255"
    ]


def test_an_empty_text_is_empty_whatever_the_tokenizer_adds(ask):
    context = replace(byte_context(), encode=lambda text: [1, *text.encode()])
    empty, full = ask({"prompt": ""}, {"prompt": "a"}, context=context)
    assert empty.prompt_token_ids == ()
    assert full.prompt_token_ids == (1, 97)


def test_text_without_a_tokenizer_and_chat_without_a_template_fail_alone(ask):
    context = replace(byte_context(), encode=None, apply_chat_template=None)
    chat = {"messages": [{"role": "user", "content": "yo"}]}
    text, chat, ids = ask({"prompt": "a"}, chat, {"prompt_token_ids": [1]}, context=context)
    assert "model 'bytes' has no tokenizer; give prompt_token_ids" in text.reason
    assert "model 'bytes' has no chat template" in chat.reason
    assert ids.prompt_token_ids == (1,)


def test_messages_that_the_template_refuses_fail_alone(ask):
    def refuse(_messages):
        raise RequestError("roles must alternate")

    context = replace(byte_context(), apply_chat_template=refuse)
    bad, good = ask(
        {"messages": [{"role": "user", "content": "yo"}]}, {"prompt": "a"}, context=context
    )
    assert bad.reason.startswith("roles must alternate")
    assert isinstance(good, Request)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "not valid JSON: .* at the end of the line, after its 1 characters"),
        (b'{"prompt" "a"}', "not valid JSON: .* at character 11 of 14"),
        (b'{"prompt": NaN}', "NaN is not a JSON number"),
        (b"[1]", "a JSON object is needed"),
        (b'{"prompt": "\xff"}', r"not UTF-8 \(byte 13 of the line\)"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"promt": "a"}', "no key named 'promt'; did you mean 'prompt'"),
    ],
)
def test_a_file_that_is_not_such_a_file_names_its_line(ask, line, reason):
    with pytest.raises(WorkloadError, match=rf"prompts\.jsonl, line 3: .*{reason}"):
        ask({"prompt": "a"}, b"", line)


def test_blank_lines_do_not_count_and_a_byte_order_mark_is_skipped(ask):
    requests = ask(b'\xef\xbb\xbf{"prompt": "a"}', b"  ", b'{"prompt": "b"}\r')
    assert [(r.index, r.prompt_text) for r in requests] == [(0, "a"), (1, "b")]


def test_an_empty_file_is_an_error(ask):
    with pytest.raises(WorkloadError, match="holds no requests"):
        ask(b"")


def test_a_missing_file_and_a_folder_are_errors(tmp_path):
    for path, reason in ((tmp_path / "no.jsonl", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(WorkloadError, match=f"cannot be read: {reason}"):
            Prompts(PromptsConfig(path=str(path))).requests(byte_context())


def test_compressed_files_are_read_and_broken_ones_named(tmp_path):
    path = tmp_path / "p.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"prompt": "a"}\n' * 50))
    assert len(Prompts(PromptsConfig(path=str(path))).requests(byte_context())) == 50
    for broken in (path.read_bytes()[:-12], b'{"prompt": "a"}'):
        path.write_bytes(broken)
        with pytest.raises(WorkloadError, match=r"p\.jsonl\.gz' cannot be read"):
            Prompts(PromptsConfig(path=str(path))).requests(byte_context())


def test_limit_takes_the_first_lines_and_reads_no_further(ask):
    requests = ask({"prompt": "a"}, {"prompt": "b"}, b"{broken", limit=2)
    assert [r.prompt_text for r in requests] == ["a", "b"]


def test_a_rate_spreads_lines_that_do_not_say_when(ask):
    lines = [{"prompt": "a"}] * 2000
    times = [r.arrival_s for r in ask(*lines, rate=4.0)]
    assert times[0] == 0
    assert times == sorted(times)
    assert times[-1] == pytest.approx(1999 / 4, rel=0.1)
    assert [r.arrival_s for r in ask({"prompt": "a"}, {"prompt": "b"})] == [0, 0]
    assert ask({"prompt": "a"}, {"prompt": "b", "arrival_s": 9}, rate=1.0)[1].arrival_s == 9


def test_options_out_of_range_are_all_named():
    with pytest.raises(ConfigError) as caught:
        PromptsConfig(max_tokens=0, limit=0, rate=-1)
    assert caught.value.problems == [
        "max_tokens=0 is not at least 1",
        "limit=0 is not at least 1",
        "rate=-1 is not a finite number above 0",
    ]
    with pytest.raises(ConfigError, match=r"workload\.path is not set; give the path of a JSON-"):
        Prompts(PromptsConfig())
