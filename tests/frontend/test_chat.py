"""Conversations as a workload: turns that wait for answers, alone and through whole runs."""

import json
from dataclasses import replace
from functools import partial

import pytest

from interlock.core.errors import ConfigError, WorkloadError
from interlock.core.request import Request, RequestRecord, SamplingParams, Status
from interlock.core.testing.tiny import write_byte_tokenizer
from interlock.core.testing.workload_contract import byte_context
from interlock.core.workload import BadRequest
from interlock.driver.conversation import Conversation
from interlock.plugins.frontend.chat import Chat
from interlock.plugins.frontend.configs import ChatConfig
from interlock.plugins.models.hugging_face import HuggingFaceDirectory
from interlock.plugins.models.text import load_codec
from tests.misuse.conftest import run, tiny

__all__ = ("run", "tiny")  # fixtures


def chatting(codec):
    return replace(byte_context(), conversation=partial(Conversation, codec))


def codec_of(context):
    return context.conversation.args[0]


@pytest.fixture
def context(tmp_path):
    write_byte_tokenizer(tmp_path)
    return chatting(load_codec(HuggingFaceDirectory(tmp_path)))


@pytest.fixture
def chat(tmp_path):
    def write(*lines, **options):
        path = tmp_path / "chat.jsonl"
        path.write_text("\n".join(map(json.dumps, lines)))
        return Chat(ChatConfig(path=str(path), **options))

    return write


def text(context, request):
    return codec_of(context).decode(request.prompt_token_ids)


def answered(context, request, said, **more):
    ids = codec_of(context).encode(said)
    return RequestRecord(
        request.index, status=Status.FINISHED, output_token_ids=ids, finished_s=3.0, **more
    )


def test_a_turn_extends_the_last_one_and_starts_after_its_answer(context, chat):
    workload = chat(["hi", "and?"], ["other"], think_s=0.25)
    first, other = workload.requests(context)
    assert text(context, first) == "user: hi\nassistant:"
    assert (first.conversation, first.turn, other.conversation) == (0, 0, 1)
    (second,) = workload.follow(answered(context, first, " yes"))
    assert text(context, second) == "user: hi\nassistant: yes\nuser: and?\nassistant:"
    assert (second.index, second.conversation, second.turn) == (2, 0, 1)
    assert second.arrival_s == 3.25
    assert not workload.follow(answered(context, second, "no"))
    assert not workload.follow(answered(context, other, "x"))


def test_indices_of_later_turns_do_not_depend_on_who_answers_first(context, chat):
    workload = chat(["a"] * 3, ["b"] * 2, ["c"] * 3)
    first = workload.requests(context)
    found = []
    for request in (first[2], first[1], first[0]):
        (later,) = workload.follow(answered(context, request, "x"))
        found.append((later.conversation, later.index))
    assert found == [(2, 6), (1, 5), (0, 3)]


def test_written_answers_are_history_and_other_messages_wait_for_one(context, chat):
    told = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u1"},
        {"role": "assistant", "content": "a1"},
        {"role": "user", "content": "u2"},
        {"role": "user", "content": "u3"},
    ]
    workload = chat({"messages": told, "temperature": 0.5, "tenant": "t", "priority": 2})
    (first,) = workload.requests(context)
    assert text(context, first) == "system: s\nuser: u1\nassistant: a1\nuser: u2\nassistant:"
    (second,) = workload.follow(answered(context, first, "ok"))
    assert text(context, second) == text(context, first) + "ok\nuser: u3\nassistant:"
    for request in (first, second):
        assert (request.sampling.temperature, request.tenant, request.priority) == (0.5, "t", 2)


def test_an_answer_cut_at_a_stop_string_goes_on_behind_the_cut(context, chat):
    workload = chat({"messages": ["a", "b"], "stop": ["\nuser:"]})
    (first,) = workload.requests(context)
    (second,) = workload.follow(answered(context, first, "yes\nuser:", text="yes"))
    assert text(context, second) == "user: a\nassistant:yes\nuser: b\nassistant:"


@pytest.mark.parametrize(
    ("status", "error", "reason"),
    [
        (Status.FAILED, "request 0: too long", "turn 0 has no answer: request 0: too long"),
        (Status.ABORTED, None, "turn 0 has no answer: it was aborted"),
    ],
)
def test_turns_after_one_without_an_answer_are_refused_with_its_reason(
    context, chat, status, error, reason
):
    workload = chat(["a", "b", "c"], ["x", "y"])
    workload.requests(context)
    entries = workload.follow(RequestRecord(0, status=status, error=error, finished_s=1.0))
    assert [(type(e), e.index) for e in entries] == [(BadRequest, 2), (BadRequest, 3)]
    assert all(reason in e.reason and "line 1)" in e.reason for e in entries)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ({"messages": []}, "messages is not a list of at least one message"),
        ({"temperature": 1}, "messages is not a list"),
        ([5], "messages[0] is not an object with a role and a content"),
        (["a", {"role": "assistant", "content": "b"}], "the last message is not the user's"),
        ([{"role": "system", "content": "b"}], "the last message is not the user's"),
        ({"messages": ["a"], "arrival_s": -1}, "arrival_s=-1 is not seconds >= 0"),
        ({"messages": ["a"], "tenant": 1}, "tenant=1 is not text"),
        (["\ud800"], "half a surrogate pair"),
        ({"messages": ["a", "b"], "echo": True}, "echo=True: every prompt is the conversation"),
    ],
)
def test_a_line_that_is_no_conversation_fails_alone(context, chat, line, reason):
    before, bad, after = chat(["a", "b"], line, ["c", "d"]).requests(context)
    assert isinstance(before, Request)
    assert isinstance(after, Request)
    assert isinstance(bad, BadRequest)
    assert reason in bad.reason
    assert bad.reason.endswith("chat.jsonl, line 2)")


def test_a_template_that_refuses_a_later_turn_ends_its_conversation(context, chat):
    codec_of(context).chat_template = (
        "{% if messages | length > 2 %}{{ raise_exception('one turn only') }}{% endif %}"
        "{{ messages[0].content }}"
    )
    workload = chat(["a", "b", "c"])
    (first,) = workload.requests(context)
    entries = workload.follow(answered(context, first, "x"))
    assert [e.index for e in entries] == [1, 2]
    assert all("one turn only" in e.reason for e in entries)


def test_files_models_and_options_that_do_not_fit_are_refused(context, chat):
    for line, reason in (
        ({"mesages": []}, "line 2: no key named 'mesages'; did you mean 'messages'"),
        (5, "line 2: a JSON object is needed"),
    ):
        with pytest.raises(WorkloadError, match=reason):
            chat(["a"], line).requests(context)
    with pytest.raises(WorkloadError, match="the file holds no conversations"):
        chat().requests(context)
    with pytest.raises(WorkloadError, match="'bytes' has no tokenizer; workload=synthetic"):
        chat(["a"]).requests(replace(byte_context(), encode=None))
    with pytest.raises(WorkloadError, match="'bytes' has no chat template"):
        chat(["a"]).requests(byte_context())
    with pytest.raises(ConfigError) as caught:
        ChatConfig(limit=0, think_s=-1, rate=0, max_tokens=0)
    assert len(caught.value.problems) == 4


def test_limits_count_conversations_and_outputs(context, chat):
    workload = chat(["a"], {"messages": ["b"], "max_tokens": 5}, ["c"], limit=2, max_tokens=9)
    first = workload.requests(replace(context, sampling=SamplingParams(max_tokens=70)))
    assert [r.sampling.max_tokens for r in first] == [9, 5]


def test_the_shipped_conversations_fit_the_shipped_models(context):
    entries = Chat(ChatConfig()).requests(context)
    assert len(entries) >= 10
    assert all(isinstance(entry, Request) for entry in entries)


TALK = [["ab", "cd", "ef"], ["ab", "x"], {"messages": ["q"] * 4, "temperature": 1.5}]


@pytest.fixture
def talk(tmp_path):
    path = tmp_path / "talk.jsonl"
    path.write_text("\n".join(map(json.dumps, TALK)))
    return ("workload=chat", f"workload.path={path}", "sampling.max_tokens=12",
            "cache.page_size=4", "cache.num_pages=128", "progress=false")  # fmt: skip


def lines_of(ran):
    assert ran.status == 0, ran.err
    return [(r["index"], r["conversation"], r["turn"], r["output_token_ids"]) for r in ran.requests]


def pairs_of_turns(ran):
    """Records of every turn after the first, each with that of the turn before it."""
    by_turn = {(r["conversation"], r["turn"]): r for r in ran.requests}
    later = [(key, record) for key, record in by_turn.items() if key[1]]
    assert len(later) == 6
    return [(by_turn[conversation, turn - 1], record) for (conversation, turn), record in later]


def test_a_run_serves_all_turns_reports_their_hits_and_is_replayed(run, tiny, talk):
    arguments = (f"model={tiny}", *talk, "dtype=float64", "hydra.run.dir=run")
    ran = run(*arguments, "workload.think_s=0.01")
    lines = lines_of(ran)
    assert [line[:3] for line in lines] == [
        (0, 0, 0), (1, 1, 0), (2, 2, 0), (3, 0, 1), (4, 0, 2), (5, 1, 1), (6, 2, 1), (7, 2, 2),
        (8, 2, 3),
    ]  # fmt: skip
    by_turn = ran.object("summary.json")["prefix_cache_hit_rate_by_turn"]
    assert list(by_turn) == ["0", "1", "2", "3"]
    assert by_turn["0"] < by_turn["1"] < by_turn["3"]
    assert "hit rate by turn" in ran.out
    for before, record in pairs_of_turns(ran):
        seen = before["num_prompt_tokens"] + len(before["output_token_ids"])
        assert record["cached_tokens"] == (seen - 1) // 4 * 4
        assert record["arrival_s"] == pytest.approx(before["finished_s"] + 0.01)
    assert ran.object("run.json")["num_requests"] == 9
    again = run(f"rerun={ran.folder}", "progress=false", "hydra.run.dir=again")
    assert "the same decisions and the same tokens" in " ".join(again.out.split())
    assert lines_of(run(*arguments, "cache=block_hash", "spec=eagle")) == lines
    without = run(*arguments, "cache=none")
    assert lines_of(without) == lines
    rates = without.object("summary.json")["prefix_cache_hit_rate_by_turn"]
    assert set(rates.values()) == {0}


def test_turns_wait_for_answers_in_virtual_time_too(run, tiny, talk):
    arguments = (f"model={tiny}", *talk, "executor=fixed", "workload.think_s=2")
    ran = run(*arguments, "hydra.run.dir=run")
    lines_of(ran)
    for before, record in pairs_of_turns(ran):
        assert record["arrival_s"] == pytest.approx(before["finished_s"] + 2)
        assert record["cached_tokens"] == (before["num_prompt_tokens"] + 11) // 4 * 4
    again = run(f"rerun={ran.folder}", "progress=false", "hydra.run.dir=again")
    assert "the same decisions and the same tokens" in " ".join(again.out.split())


def test_a_turn_that_outgrows_the_model_ends_its_conversation_alone(run, tiny, talk):
    ran = run(f"model={tiny}", *talk, "max_model_len=60", "hydra.run.dir=run")
    errors = [record["error"] for record in ran.requests]
    assert len(errors) == 9
    assert errors[:3] == [None] * 3
    assert "with room for one more the model takes 59" in errors[4]
    assert "turn 2 has no answer: request 7: the prompt has" in errors[8]
