"""The built-in executors keep the contract; the fixed one prices what it says."""

import numpy as np
import pytest

from interlock.core.assemble import assemble
from interlock.core.errors import ConfigError
from interlock.core.request import Request, SamplingParams
from interlock.core.testing.executor_contract import ExecutorContract
from interlock.plugins.executor.fixed import GOLDEN, mixed


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


def test_made_up_tokens_are_drawn_from_splitmix64():
    states = np.uint64(1234567) + np.arange(1, 6, dtype=np.uint64) * GOLDEN
    assert mixed(states).tolist() == [
        6457827717110365317, 3203168211198807973, 9817491932198370423,
        4593380528125082431, 16408922859458223821,
    ]  # fmt: skip  # published values of splitmix64.c


def test_drafts_change_no_token_and_save_steps():
    plain, drafted = serve("spec=none"), serve("spec=ngram", "executor.acceptance=1")
    assert plain.core.ledger.steps == 200
    assert drafted.core.ledger.steps < 40
    assert plain.core.num_emitted == drafted.core.num_emitted == 800


def test_a_clock_that_could_not_move_is_refused():
    with pytest.raises(ConfigError, match="time would stand still"):
        assemble(["executor=fixed", "executor.step_ms=0", "executor.token_ms=0"])


def noisy_times(*overrides):
    """Durations of the steps of a run, relative to those of a steady one."""
    noisy, steady = serve(*overrides), serve()
    pairs = zip(noisy.decisions, steady.decisions, strict=True)
    return np.array([(n.end_s - n.now_s) / (s.end_s - s.now_s) for n, s in pairs])


def test_jitter_spreads_the_times_of_steps_by_the_configured_sigma():
    logs = np.log(noisy_times("executor.jitter=0.02"))
    assert np.std(logs) == pytest.approx(0.02, rel=0.2)  # 200 steps: five of its own deviations
    assert abs(np.mean(logs)) < 4 * 0.02 / 200**0.5


def test_wander_moves_a_whole_run_and_drift_moves_it_further_with_each_run_of_a_study():
    first = noisy_times("executor.wander=0.05")
    assert np.ptp(first) < 1e-9
    assert first[0] != 1
    drifted = noisy_times("executor.drift=0.001", "executor.noise_run=40")
    assert drifted == pytest.approx(np.exp(0.04))


def test_noise_follows_the_seed_and_the_run_of_the_study_and_nothing_else():
    def run(seed, place):
        noise = ("executor.jitter=0.02", "executor.wander=0.01", f"executor.noise_run={place}")
        return noisy_times(f"seed={seed}", *noise).tolist()

    again = run(1, 0)
    assert run(1, 0) == again
    assert run(1, 1) != again
    assert run(2, 0) != again


def test_noise_that_makes_no_sense_is_refused():
    for bad in ("jitter=-0.1", "wander=2", "noise_run=-1", "drift=2"):
        with pytest.raises(ConfigError, match=bad.partition("=")[0]):
            assemble(["executor=fixed", f"executor.{bad}"])


def test_simulated_drafts_need_a_number():
    with pytest.raises(ConfigError, match=r"spec\.num_drafts=null"):
        assemble(["executor=fixed", "spec=medusa"])
    assert serve("spec=medusa", "spec.num_drafts=2").core.drafts.num_drafts == 2
