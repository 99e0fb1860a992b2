"""What a run never used is named: components, grammars and adapters."""

import dataclasses

import pytest

from interlock.core.assemble import build_engine
from interlock.core.request import Request, SamplingParams
from interlock.core.testing.tiny import write_tiny_checkpoint
from interlock.core.testing.tiny_adapter import write_adapter
from interlock.driver.activity import counters, inert
from interlock.plugins.models import model_families
from tests.engine.serving import configured, serve


def test_an_adapter_that_no_request_names_is_inert(tmp_path):
    model = write_tiny_checkpoint(tmp_path / "model", "gqa", model_families())
    adapters = [str(write_adapter(tmp_path / name, model, ["q_proj"])) for name in "ab"]
    config = dataclasses.replace(configured(model), adapters=tuple(adapters))
    engine, asked = build_engine(config), [Request(0, (5, 6, 7), adapter="b")]
    serve(engine, *asked)
    assert counters(engine, asked)["adapter b"] == {"requests": 1}
    assert "adapter a" in inert(engine, asked)
    assert "adapter b" not in inert(engine, asked)
    assert "structured" not in inert(engine, asked)  # it stands for doing without


def test_structured_output_is_inert_until_a_request_has_a_grammar(tmp_path):
    pytest.importorskip("xgrammar")
    model = write_tiny_checkpoint(tmp_path / "model", "gqa", model_families(), tokenizer=True)
    engine = build_engine(configured(model, structured="xgrammar"))
    plain = Request(0, (5, 6, 7), SamplingParams(max_tokens=2))
    guided = Request(1, (5, 6, 7), SamplingParams(max_tokens=2, regex="a+"))
    assert "structured" in inert(engine, [plain])
    assert "structured" not in inert(engine, [plain, guided])


def test_an_executor_that_ran_nothing_is_inert_whatever_else_it_says_of_itself(tmp_path):
    model = write_tiny_checkpoint(tmp_path / "model", "gqa", model_families())
    engine = build_engine(configured(model, executor="cuda_graph"))
    assert counters(engine)["executor"]["mode"] == "eager replay, not captured"
    assert "executor" in inert(engine)
    serve(engine, Request(0, (5, 6, 7)))
    assert "executor" not in inert(engine)
