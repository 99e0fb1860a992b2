"""Planning: every cell composed once, and a metric that no run has refused before any runs."""

import pytest

from interlock.core.registry import load_registry
from interlock.study import composer as composing
from interlock.study.composer import Composer
from interlock.study.metric_names import metric_problem
from interlock.study.plan import plan_study
from interlock.study.read_study import read_study

FILE = """
base: [executor=fixed]
factors: {cache: [none, radix], spec: [none, ngram]}
"""


def test_every_cell_is_composed_once_however_often_it_is_looked_at(tmp_path, monkeypatch):
    made, told = [], []
    usual = composing.compose
    monkeypatch.setattr(
        composing, "compose", lambda key, *a, **k: made.append(key) or usual(key, *a, **k)
    )
    (tmp_path / "mine.yaml").write_text(FILE)
    composer = Composer(load_registry(), lambda *progress: told.append(progress))
    study = read_study(tmp_path / "mine.yaml", composer.registry, composer=composer)
    plan = plan_study(study, composer.registry, composer=composer)
    assert sorted(made) == sorted(cell.overrides for cell in plan.cells)
    assert told == [
        (what, done, 4) for what in ("composing cells", "judging cells") for done in range(5)
    ]


def test_a_cell_longer_than_its_model_is_refused_before_anything_runs(tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "factors: {length: {short: [], long: [max_model_len=5000]}, cache: [none, radix]}"
    )
    registry = load_registry()
    plan = plan_study(read_study(tmp_path / "mine.yaml", registry), registry)
    assert [one.cell.levels["length"] for one in plan.refusals] == ["long", "long"]
    assert {one.problems for one in plan.refusals} == {
        ("max_model_len=5000 is beyond the 1024 positions of model tiny-gqa",)
    }


@pytest.mark.parametrize(
    ("key", "replay", "said"),
    [
        ("mean_tftt_ms", False, "no metric named 'mean_tftt_ms'; did you mean 'mean_ttft_ms'?"),
        ("hit_rate", False, "known: aborted, busy_s, "),
        ("mean_ttft_ms", True, "known: blocks, capacity_blocks, "),
        ("itls", False, "no metric named 'itls'"),
    ],
)
def test_a_metric_that_no_run_has_is_answered_with_those_that_there_are(key, replay, said):
    assert said in str(metric_problem(key, replay))


@pytest.mark.parametrize("key", ["kv_usage.mean", "prefix_cache_hit_rate_by_turn.2", "mbu"])
def test_metrics_of_a_run_are_taken(key):
    assert metric_problem(key, replay=False) is None
