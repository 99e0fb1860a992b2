"""Prompts of a chat extend what the model saw, say what the template says, and hit the cache."""

import json
import shutil
from itertools import pairwise

import pytest

from interlock.conf.find_model import shipped_models
from interlock.core.errors import ConfigError
from interlock.driver.chat_template import chat_ids, chat_text
from interlock.driver.conversation import Conversation
from interlock.plugins.models.text import TokenizersCodec
from tests.engine.serving import asking, build, serve, solo
from tests.engine.wordy import codec_of, with_words, wordy_tokenizer
from tests.models.test_detokenizer import codec_of as sentencepiece

ENDED = (  # as most chat templates are: an end token behind every answer, and no trimming
    "{% for m in messages %}{{ m.role[:1] }}{{ m.content }}{% if m.role == 'assistant' %}</s>"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}a{% endif %}"
)
UNENDED = (
    "{% for m in messages %}{{ m.role[:1] }}{{ m.content }}b{% endfor %}"
    "{% if add_generation_prompt %}a{% endif %}"
)
TRIMMING = (  # history is written otherwise than it was asked for
    "{% for m in messages %}{{ m.role[:1] }}b{{ m.content.strip() }}c{% endfor %}"
    "{% if add_generation_prompt %}ac{% endif %}"
)
END = 1


def user(text):
    return {"role": "cuser", "content": text}


def chat_of(template):
    codec = TokenizersCodec(wordy_tokenizer(), {}, template)
    return Conversation(codec), codec


def test_a_prompt_is_the_templates_while_its_ids_extend_what_was_seen():
    chat, codec = chat_of(ENDED)
    prompt = chat.ask(user("ab"))
    assert list(prompt) == chat_ids(codec, [user("ab")])
    answer = (*codec.encode("ca"), END)
    chat.answer(answer)
    assert chat.messages[-1] == {"role": "assistant", "content": "ca"}
    second = chat.ask(user("b"))
    assert second[: len(prompt) + len(answer)] == (*prompt, *answer)
    assert list(second) == chat_ids(codec, chat.messages)
    assert not chat.kept


def test_ids_that_their_text_would_not_give_are_kept():
    """The model said "ab" in one token; the tokenizer, without merges, takes two."""
    chat, codec = chat_of(ENDED)
    prompt = chat.ask(user("ab"))
    one = codec._tokenizer.token_to_id("ab")
    assert codec.encode("ab") != [one]
    chat.answer((one, END))
    second = chat.ask(user("c"))
    assert second == (*prompt, one, END, *codec.encode("ccaa"[:2]), *codec.encode("a"))
    assert chat.kept
    assert codec.decode(second, False) == chat_text(codec, chat.messages)
    chat.answer((one, one, END))
    third = chat.ask(user("a"))
    assert third[: len(second)] == second
    assert codec.decode(third, False) == chat_text(codec, chat.messages)


def test_an_end_token_that_the_template_does_not_write_is_dropped():
    chat, codec = chat_of(UNENDED)
    prompt = chat.ask(user("a"))
    chat.answer((*codec.encode("ac"), END))
    second = chat.ask(user("b"))
    assert END not in second
    assert second[: len(prompt) + 2] == (*prompt, *codec.encode("ac"))
    assert list(second) == chat_ids(codec, chat.messages)
    assert not chat.kept


def test_an_answer_without_an_end_gets_what_the_template_puts_there():
    chat, codec = chat_of(ENDED)
    prompt = chat.ask(user("a"))
    chat.answer(codec.encode("ac"))
    second = chat.ask(user("b"))
    assert second[: len(prompt) + 3] == (*prompt, *codec.encode("ac"), END)
    assert list(second) == chat_ids(codec, chat.messages)


def test_a_template_that_rewrites_history_changes_nothing_that_was_seen():
    chat, codec = chat_of(TRIMMING)
    prompt = chat.ask(user("a"))
    answer = tuple(codec.encode("ab"))
    chat.answer(answer)
    second = chat.ask(user("b"))
    assert chat.kept
    assert chat_text(codec, chat.messages) == "cbac" + "abab" + "c" + "cbbc" + "ac"
    assert second == (*prompt, *answer, *codec.encode("ccbbcac"))


@pytest.mark.parametrize("cut", [0, 1, 2, 3, 4])
def test_an_answer_cut_at_a_stop_string_keeps_the_tokens_within_it(cut):
    chat, codec = chat_of(ENDED)
    prompt = chat.ask(user("a"))
    two, three = (codec._tokenizer.token_to_id(text) for text in ("ab", "cab"))
    chat.answer((two, three), "abcab"[:cut])
    second = chat.ask(user("c"))
    kept = {0: (), 1: (), 2: (two,), 3: (two,), 4: (two,)}[cut]
    assert second[: len(prompt) + len(kept)] == (*prompt, *kept)
    assert codec.decode(second, False) == chat_text(codec, chat.messages)
    assert chat.messages[1]["content"] == "abcab"[:cut]


def test_an_answer_cut_within_a_character_drops_its_bytes():
    chat, codec = chat_of(ENDED)
    prompt = chat.ask(user("a"))
    ids = codec.encode("bé")
    chat.answer(ids, "b")
    second = chat.ask(user("c"))
    assert list(second[len(prompt) :][:2]) == [ids[0], END]


def test_a_question_without_an_answer_is_forgotten():
    chat, codec = chat_of(ENDED)
    chat.ask(user("abc"))
    assert list(chat.ask(user("a"))) == chat_ids(codec, [user("a")])
    assert chat.messages == [user("a")]


def test_a_template_that_cannot_be_rendered_around_an_answer_gets_the_whole():
    hiding = "{% for m in messages if m.role != 'assistant' %}{{ m.content }}{% endfor %}"
    chat, codec = chat_of(hiding)
    chat.ask(user("a"))
    chat.answer(codec.encode("b"))
    assert list(chat.ask(user("c"))) == codec.encode("ac")
    assert not chat.kept


def test_a_model_without_a_template_cannot_chat():
    chat = Conversation(TokenizersCodec(wordy_tokenizer(), {}, None))
    with pytest.raises(ConfigError, match="no chat template"):
        chat.ask(user("a"))


@pytest.mark.parametrize("style", ["llama", "gemma", "metaspace"])
def test_no_space_comes_before_what_follows_a_sentencepiece_answer(style):
    codec = sentencepiece(style)
    codec.chat_template = TRIMMING.replace("b{{", "{{")
    chat = Conversation(codec)
    prompt = chat.ask({"role": "user", "content": "a"})
    answer = codec.encode("lo b")
    chat.answer(answer)
    second = chat.ask({"role": "user", "content": "b"})
    assert second[: len(prompt) + len(answer)] == (*prompt, *answer)
    assert codec.continuation(second[: len(prompt) + len(answer)], second[-6:])
    tail = second[len(prompt) + len(answer) :]
    assert codec.continuation([*prompt, *answer], tail) == "c" + "ub" + "c" + "ac"


def test_the_shipped_models_template_is_followed_across_turns():
    """Its history has a space where its question has a line end, so ids are kept."""
    codec = codec_of(shipped_models()["tiny-gqa"])
    chat = Conversation(codec)
    prompt = chat.ask({"role": "user", "content": "What is a list?"})
    answer = codec.encode("A sequence.\n")
    chat.answer(answer)
    second = chat.ask({"role": "user", "content": "And a tuple?"})
    assert codec.decode(second) == (
        "# user: What is a list?\n# assistant:\nA sequence.\n\n# user: And a tuple?\n# assistant:\n"
    )
    assert second[: len(prompt) + len(answer)] == (*prompt, *answer)
    assert chat.kept


def talk(engine, codec, questions, max_tokens=11, **sampling):
    """Records of the turns of a conversation, with their prompts."""
    chat, found = Conversation(codec), []
    for number, question in enumerate(questions):
        prompt = chat.ask(user(question))
        record = serve(engine, asking(number, prompt, max_tokens, **sampling))[number]
        chat.answer(record.output_token_ids, record.text)
        found.append((prompt, record))
    return found


QUESTIONS = ["abc", "cab", "abcabcabc"]


@pytest.fixture(scope="module")
def chatty(model_of, tmp_path_factory):
    """Tiny models of two kinds with words for tokens and an end token behind every answer."""
    folder = tmp_path_factory.mktemp("chatty")
    found = {}
    for kind in ("gqa", "hybrid"):
        found[kind] = with_words(model_of(kind), folder / kind)
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": ENDED}
        (found[kind] / "tokenizer_config.json").write_text(json.dumps(config))
    return found


@pytest.mark.parametrize(
    ("kind", "index", "spec", "stop"),
    [
        ("gqa", "radix", "none", ()),
        ("gqa", "block_hash", "eagle", ()),
        ("gqa", "none", "none", ("b",)),
        ("gqa", "radix", "eagle", ("b",)),
        ("hybrid", "radix", "none", ("b",)),
        ("hybrid", "block_hash", "none", ()),
    ],
)
def test_a_turn_finds_the_last_ones_pages_generated_tokens_included(
    chatty, kind, index, spec, stop
):
    model, size = chatty[kind], 4
    engine = build(model, index=index, spec=spec, page_size=size)
    turns = talk(engine, codec_of(model), QUESTIONS, stop=stop, temperature=1.0, seed=2)
    assert turns[0][1].cached_tokens == 0
    for (before, said), (prompt, record) in pairwise(turns):
        seen = (*before, *said.output_token_ids)
        whole = next(i for i, t in enumerate((*seen, -1)) if prompt[i : i + 1] != (t,))
        # The last token of an output is never computed; EAGLE's rows know the token after them.
        computed = min(whole - (spec == "eagle"), len(seen) - 1)
        assert computed >= len(before)
        assert record.cached_tokens == (computed // size * size if index != "none" else 0)
    alone = solo(model, [asking(i, p, 11, stop=stop, temperature=1.0, seed=2)
                         for i, (p, _) in enumerate(turns)])  # fmt: skip
    assert [r.output_token_ids for _, r in turns] == list(alone.values())


def test_turns_of_the_shipped_model_hit_the_pages_of_its_answers(tmp_path):
    model = shutil.copytree(shipped_models()["tiny-gqa"], tmp_path / "model")
    engine = build(model, index="radix", page_size=4, num_pages=64)
    (first, said), (_, record) = talk(engine, codec_of(model), ["list?", "and?"], max_tokens=8)
    assert record.cached_tokens == (len(first) + len(said.output_token_ids) - 1) // 4 * 4
