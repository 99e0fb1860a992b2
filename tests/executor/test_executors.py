"""The built-in executors keep the contract; the fixed one prices what it says."""

import pytest

from interlock.core.assemble import assemble
from interlock.core.errors import ConfigError
from interlock.core.request import Request, SamplingParams
from interlock.core.testing.executor_contract import ExecutorContract


class TestTorch(ExecutorContract):
    overrides = ("executor=torch", "model=tiny-gqa")


class TestTorchWithDrafts(ExecutorContract):
    overrides = ("executor=torch", "model=tiny-gqa", "spec=ngram")


class TestCudaGraph(ExecutorContract):
    overrides = ("executor=cuda_graph", "model=tiny-gqa", "spec=ngram")


class TestFixed(ExecutorContract):
    overrides = ("executor=fixed",)


class TestFixedWithSimulatedDrafts(ExecutorContract):
    overrides = ("executor=fixed", "spec=ngram", "spec.num_drafts=3")


def serve(*overrides, requests=4, max_tokens=200):
    engine = assemble(["executor=fixed", *overrides])
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    for index in range(requests):
        engine.submit(Request(index, (1, 2, 3 + index), sampling))
    for _ in engine.outputs():
        pass
    return engine


def test_a_fixed_step_lasts_its_base_and_its_tokens():
    engine = serve("executor.step_ms=8", "executor.token_ms=0.5", requests=1, max_tokens=5)
    # one step of 3 prompt tokens, then 4 steps of one token
    assert engine.clock.now() == pytest.approx((5 * 8 + 7 * 0.5) / 1e3)


def test_simulated_drafts_are_accepted_at_the_configured_rate():
    engine = serve("spec=ngram", "spec.num_drafts=1", "executor.acceptance=0.6", max_tokens=800)
    ledger = engine.core.ledger
    rate = ledger.accepted / ledger.drafted
    spread = (0.6 * 0.4 / ledger.drafted) ** 0.5
    assert abs(rate - 0.6) < 4 * spread
    assert serve("spec=ngram", "executor.acceptance=0").core.ledger.accepted == 0


def test_drafts_change_no_token_and_save_steps():
    plain, drafted = serve("spec=none"), serve("spec=ngram", "executor.acceptance=1")
    assert plain.core.ledger.steps == 200
    assert drafted.core.ledger.steps < 40
    assert plain.core.num_emitted == drafted.core.num_emitted == 800


def test_a_clock_that_could_not_move_is_refused():
    with pytest.raises(ConfigError, match="time would stand still"):
        assemble(["executor=fixed", "executor.step_ms=0", "executor.token_ms=0"])
