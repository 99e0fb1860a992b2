"""The terminal chat: what it says, keeps and refuses."""

import io
import json
import shutil
import signal
import sys

import pytest

from interlock.core.request import FinishReason, SamplingParams
from interlock.core.testing.tiny_adapter import write_adapter, write_merged
from interlock.driver import chat as command
from interlock.driver.conversation import Conversation
from tests.engine.serving import asking, build, solo
from tests.misuse.conftest import run, tiny

__all__ = ("run", "tiny")  # fixtures

SAMPLING = {"temperature": 1.0, "seed": 5}


class Heard:
    """A chat and all that it said and noted."""

    def __init__(self, engine, max_tokens=12, system=None, **sampling):
        self.said, self.noted = [], []
        params = SamplingParams(max_tokens=max_tokens, **{**SAMPLING, **sampling})
        self.chat = command.Chat(engine, params, system, self.hear, self.noted.append)

    def hear(self, text):
        self.said.append(text)

    def take(self, *lines):
        return [self.chat.take(line) for line in lines]

    @property
    def text(self):
        return "".join(self.said)


def expected(model, codec, *questions, system=None, max_tokens=12):
    """Answers of the same turns, each run alone on the reference composition."""
    talk, answers = Conversation(codec), []
    for number, question in enumerate(questions):
        asked = [{"role": "user", "content": question}]
        if system and not number:
            asked.insert(0, {"role": "system", "content": system})
        prompt = talk.ask(*asked)
        (ids,) = solo(model, [asking(number, prompt, max_tokens, **SAMPLING)]).values()
        talk.answer(ids)
        answers.append(talk.messages[-1]["content"])
    return answers


@pytest.mark.parametrize("settings", [{"index": "radix"}, {"index": "none", "spec": "eagle"}])
def test_answers_are_those_of_the_conversation_and_come_piece_by_piece(tiny, settings):
    engine = build(tiny, page_size=4, **settings)
    heard = Heard(engine, system="s")
    assert heard.take("ab", "  ", "cd ", "/quit") == [True, True, True, False]
    first, second = expected(tiny, engine.codec, "ab", "cd", system="s")
    assert heard.text == f"{first}\n{second}\n"
    assert heard.said[0] in first
    assert len(heard.said) > 4
    hits = [record.cached_tokens for record in heard.chat.records]
    assert (hits[1] >= 16) == (settings["index"] == "radix")


def test_an_answer_ends_at_the_end_token_or_says_that_it_was_cut(tiny):
    engine = build(tiny)
    heard = Heard(engine, max_tokens=1)
    heard.take("a")
    (record,) = heard.chat.records
    assert record.finish_reason is FinishReason.LENGTH
    assert heard.noted == ["(cut off after 1 tokens)"]
    ending = Heard(engine, max_tokens=200, stop_token_ids=tuple(range(0, 257, 8)))
    ending.take("a")
    assert ending.chat.records[0].finish_reason is FinishReason.STOP
    assert not ending.noted


@pytest.fixture
def interruptible():
    """As in a terminal: what a shell starts in the background ignores Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_stops_the_answer_and_keeps_the_chat(tiny):
    engine = build(tiny)

    class Interrupting(Heard):
        def hear(self, text):
            super().hear(text)
            if len(self.said) == 3:
                signal.raise_signal(signal.SIGINT)

    heard = Interrupting(engine, max_tokens=100, ignore_eos=True)
    heard.take("ab")
    (record,) = heard.chat.records
    assert record.finish_reason is FinishReason.ABORT
    assert 3 <= len(record.output_token_ids) < 20
    assert heard.noted == ["(stopped)"]
    assert heard.text == record.text + "\n"
    heard.take("cd")
    assert heard.chat.records[1].num_prompt_tokens > record.num_prompt_tokens + 3
    assert len(heard.chat.records[1].output_token_ids) == 100
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_message_without_room_is_said_and_forgotten(tiny):
    engine = build(tiny, max_model_len=80)
    heard = Heard(engine)
    heard.take("a", "b" * 100, "c")
    (note,) = [text for text in heard.noted if "new begins" in text]
    assert note.startswith("the prompt has")
    fresh = Heard(build(tiny, max_model_len=80))
    fresh.take("a", "c")
    assert heard.text == fresh.text


def test_a_new_conversation_knows_nothing_of_the_last(tiny):
    heard = Heard(build(tiny), system="s")
    heard.take("a", "/new", "a", "/help")
    first, again = heard.chat.records
    assert first.num_prompt_tokens == again.num_prompt_tokens
    assert heard.noted[-1] == command.COMMANDS


def test_what_a_template_refuses_is_noted(tiny, tmp_path):
    model = shutil.copytree(tiny, tmp_path / "model")
    (model / "chat_template.jinja").write_text(
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "{{ messages[-1].content }}"
    )
    heard = Heard(build(model), system="s")
    heard.take("a")
    assert "no system" in heard.noted[0]
    assert not heard.chat.records


def typed(monkeypatch, *events):
    """Lines typed at the prompt, or exceptions that come instead."""
    waiting = list(events)

    def read(_prompt):
        event = waiting.pop(0)
        if isinstance(event, str):
            return event
        raise event

    monkeypatch.setattr("builtins.input", read)


def test_at_the_prompt_ctrl_c_drops_the_line_and_ctrl_d_leaves(monkeypatch, capsys):
    typed(monkeypatch, "a", KeyboardInterrupt(), "b", EOFError(), "never")
    assert list(command.lines(interactive=True)) == ["a", "b"]
    assert command.COMMANDS in capsys.readouterr().out
    typed(monkeypatch, "a", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        list(command.lines(interactive=False))
    typed(monkeypatch, UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no"), "b", EOFError())
    assert list(command.lines(interactive=False)) == ["b"]


def test_the_command_answers_what_is_piped_in(run, tiny, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("ab\ncd\n"))
    arguments = ("dtype=float64", "sampling.max_tokens=12", "sampling.temperature=1.0")
    ran = run("chat", f"model={tiny}", *arguments, "sampling.seed=5", "threads=1")
    assert ran.status == 0
    codec = build(tiny).codec
    assert ran.out == "".join(f"{text}\n" for text in expected(tiny, codec, "ab", "cd"))


def test_answers_have_more_room_than_other_requests_unless_it_is_given(tiny, registry):
    overrides = [f"model={tiny}"]
    assert command.chat_config(overrides, registry).sampling.max_tokens == command.MOST_TOKENS
    given = command.chat_config([*overrides, "sampling.max_tokens=7"], registry)
    assert given.sampling.max_tokens == 7


@pytest.fixture
def registry():
    from interlock.core.registry import load_registry

    return load_registry()


def test_help_teaches(run):
    ran = run("chat", "--help")
    assert ran.status == 0
    assert "interlock chat model=DIR" in ran.out
    assert "Ctrl-C stops an answer" in ran.out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--sytem", "x"], "no flag '--sytem'; it takes --system TEXT"),
        (["--system"], "no flag '--system'"),
        (["adapters=[a]"], "would not use adapters=; say which with --adapter NAME"),
        (["--adapter", "a"], "this engine has none"),
        (["workload=prompts"], "interlock chat would not use workload=prompts"),
        (["workload.rate=2"], "interlock chat would not use workload.rate=2"),
        (["sampling.n=2"], "interlock chat would not use sampling.n=2"),
        (["rerun=x"], "interlock chat would not use rerun=x"),
        (["executor=fixed"], "executor=fixed makes tokens up"),
        (["sampling.echo=true"], "would not use sampling.echo=true"),
        (["cache=radx"], "did you mean 'radix'"),
    ],
)
def test_what_a_chat_cannot_use_is_refused(run, tiny, arguments, reason):
    ran = run("chat", f"model={tiny}", *arguments)
    assert reason in " ".join(ran.problems)


def test_a_chat_talks_to_the_adapter_that_it_names(run, tiny, tmp_path, monkeypatch):
    adapter = write_adapter(tmp_path / "a", tiny, ["q_proj", "down_proj"], seed=1)
    merged = write_merged(tmp_path / "merged", tiny, adapter)
    answers = []
    for words in ([f"model={tiny}", f"adapters=[x:{adapter}]", "--adapter=x"], [f"model={merged}"]):
        monkeypatch.setattr("sys.stdin", io.StringIO("ab\n"))
        ran = run("chat", *words, "sampling.max_tokens=9", "dtype=float64", "threads=1")
        answers.append(ran.out)
    assert answers[0] == answers[1]
    monkeypatch.setattr("sys.stdin", io.StringIO("ab\n"))
    bare = run("chat", f"model={tiny}", "sampling.max_tokens=9", "dtype=float64", "threads=1")
    assert bare.out != answers[0]
    wrong = run("chat", f"model={tiny}", f"adapters=[{adapter}]", "--adapter", "aa")
    assert "did you mean 'a'" in wrong.problems[0]


def test_a_model_that_cannot_chat_is_refused_before_its_weights_are_read(run, tiny, tmp_path):
    bare = shutil.copytree(tiny, tmp_path / "bare")
    (bare / "model.safetensors").write_bytes(b"")
    config = json.loads((bare / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (bare / "tokenizer_config.json").write_text(json.dumps(config))
    assert "model 'bare' has no chat template" in run("chat", f"model={bare}").problems[0]
    (bare / "tokenizer.json").unlink()
    assert "model 'bare' has no tokenizer.json" in run("chat", f"model={bare}").problems[0]
