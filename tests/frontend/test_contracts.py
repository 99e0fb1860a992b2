import json
from dataclasses import replace
from functools import partial

import pytest

from interlock.conf.find_model import describe_models
from interlock.conf.hydra_edge import compose
from interlock.core.capabilities import CarriesTokens
from interlock.core.component import BuildContext
from interlock.core.registry import load_registry
from interlock.core.resolver import resolve
from interlock.core.testing.tiny import write_byte_tokenizer
from interlock.core.testing.workload_contract import WorkloadContract, byte_context
from interlock.core.text import TextCodec
from interlock.core.workload import Workload, WorkloadContext
from interlock.driver.conversation import Conversation
from interlock.plugins.frontend import components
from interlock.plugins.frontend.configs import (
    ChatConfig,
    PromptsConfig,
    SyntheticConfig,
    TraceConfig,
)
from interlock.plugins.models.hugging_face import HuggingFaceDirectory
from interlock.plugins.models.text import load_codec

BY_NAME = {component.name: component for component in components()}


def build(config: object) -> Workload:
    context = BuildContext(model=byte_context().model)
    return BY_NAME[config.name].make(config, context)


class TestPrompts(WorkloadContract):
    @pytest.fixture(autouse=True)
    def _file(self, tmp_path):
        self.path = tmp_path / "prompts.jsonl"
        lines = [{"prompt": "Hello"}, {"prompt_token_ids": [1, 2]}, {"prompt": 3}]
        self.path.write_text("\n".join(map(json.dumps, lines)))

    def make(self) -> Workload:
        return build(PromptsConfig(path=str(self.path)))


class TestPromptsWithARate(TestPrompts):
    seeded = True

    def make(self) -> Workload:
        return build(PromptsConfig(path=str(self.path), rate=2.0))


class TestSynthetic(WorkloadContract):
    seeded = True

    def make(self) -> Workload:
        return build(SyntheticConfig())


class TestConversations(WorkloadContract):
    seeded = True

    def make(self) -> Workload:
        return build(SyntheticConfig(turns=3, prompt_tokens=16, prefix_tokens=8, output_tokens=8))


def byte_codec(folder) -> TextCodec:
    """A byte tokenizer whose template asks for the answer as the history has it."""
    write_byte_tokenizer(folder)
    codec = load_codec(HuggingFaceDirectory(folder))
    assert codec is not None
    return codec


class TestChat(WorkloadContract):
    @pytest.fixture(autouse=True)
    def _file(self, tmp_path):
        self.codec, self.path = byte_codec(tmp_path), tmp_path / "chat.jsonl"
        lines = [["a", "b", "c"], {"messages": ["d"], "seed": 4}, 5 * ["e"], {"messages": []}]
        self.path.write_text("\n".join(map(json.dumps, lines)))

    def context(self, seed: int = 0) -> WorkloadContext:
        return replace(super().context(seed), conversation=partial(Conversation, self.codec))

    def make(self) -> Workload:
        return build(ChatConfig(path=str(self.path), think_s=0.5))


class TestShippedChat(TestChat):
    seeded = True

    def make(self) -> Workload:
        return build(ChatConfig(rate=3.0))


class TestTrace(WorkloadContract):
    carries_tokens = False

    @pytest.fixture(autouse=True)
    def _file(self, tmp_path):
        self.path = tmp_path / "trace.jsonl"
        line = {"timestamp": 1500, "input_length": 600, "output_length": 7, "hash_ids": [0, 9]}
        self.path.write_text(f"{json.dumps(line)}\n" * 3)

    def make(self) -> Workload:
        return build(TraceConfig(path=str(self.path)))


def test_only_workloads_with_tokens_declare_them():
    declared = {
        name: CarriesTokens() in component.provides(component.config(), None)
        for name, component in BY_NAME.items()
    }
    assert declared == {"chat": True, "prompts": True, "synthetic": True, "trace": False}


@pytest.mark.parametrize(
    ("overrides", "instead"),
    [
        (["workload=chat", "sampling.echo=true"], "every prompt is the conversation so far"),
        (["sampling.max_tokens=5"], "set workload.output_tokens"),
        (["sampling.ignore_eos=true"], "set workload.ignore_eos"),
        (["workload=trace", "workload.path=x", "sampling.stop_token_ids=[3]"], "leave it out"),
        (["workload=trace", "workload.path=x", "sampling.temperature=0.5"], "leave it out"),
    ],
)
def test_a_setting_that_the_workload_would_not_use_is_refused(overrides, instead):
    config = compose(["executor=fixed", "cache=none", *overrides])
    registry = load_registry()
    (problem,) = resolve(config, registry, describe_models(config, registry)).problems
    assert overrides[-1] in problem.reason
    assert instead in problem.reason


def test_settings_that_every_workload_uses_are_accepted():
    config = compose(["sampling.temperature=0.5", "sampling.seed=3", "sampling.max_tokens=64"])
    registry = load_registry()
    assert not resolve(config, registry, describe_models(config, registry)).problems


def test_every_option_has_a_help_line_and_a_default():
    for component in components():
        options = component.config.__dataclass_fields__.values()
        assert next(iter(options)).name == "name"
        assert component.config().name == component.name
        assert all(o.metadata.get("help") for o in options if o.name != "name")
