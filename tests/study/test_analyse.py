"""What studies are said to show: effects that were put in, and nothing that was not."""

import json
import math
from dataclasses import asdict, replace

import pytest

from interlock.study.analyse import analyse
from interlock.study.spec import Cell, Level, Metric, Refusal
from tests.study.made import TIME, factors, grid, observe, study

TWO = factors(cache="none radix", spec="none ngram eagle")


def additive(levels):
    """Each level's own share of the time; radix and eagle together save more."""
    gain = {"radix": -0.20, "ngram": -0.10, "eagle": -0.30}
    total = sum(gain.get(level, 0.0) for level in levels.values())
    return total + (-0.08 if {"radix", "eagle"} <= set(levels.values()) else 0.0)


def contrast(findings, what):
    return next(one for one in findings.contrasts if one.what == what)


def effect(findings, what):
    return next(one for one in findings.effects if one.what == what)


def nothing(_levels):
    return 0.0


def test_a_full_factorial_gives_back_the_effects_and_the_interaction_that_were_put_in():
    made, cells = study(TWO, repeats=5), grid(TWO)
    found = analyse(made, cells, observe(made, cells, additive, sigma=0.004, aa=True))
    assert found.baseline == "cache=none,spec=none"
    one = contrast(found, "cache=none,spec=eagle")
    assert (one.verdict, one.against) == ("better", "cache=none,spec=none")
    assert one.estimate.value == pytest.approx(math.expm1(-0.3), abs=0.01)
    assert one.estimate.low < math.expm1(-0.3) < one.estimate.high
    # averaged over the levels of the other factor
    radix, eagle = effect(found, "cache=radix"), effect(found, "spec=eagle")
    assert radix.estimate.value == pytest.approx(math.expm1(-0.2 - 0.08 / 3), abs=0.01)
    assert eagle.estimate.value == pytest.approx(math.expm1(-0.3 - 0.08 / 2), abs=0.01)
    both = next(i for i in found.interactions if i.second == "spec=eagle")
    assert both.first == "cache=radix"
    assert both.estimate.value == pytest.approx(math.expm1(-0.08), abs=0.015)
    assert both.estimate.p_adjusted < 0.05


def test_equal_cells_have_no_winner():
    arms = factors(arm=" ".join(f"a{n}" for n in range(8)))
    alarms = 0
    for seed in range(60):
        made, cells = study(arms, seed=seed), grid(arms)
        found = analyse(made, cells, observe(made, cells, nothing, seed=seed, aa=True))
        alarms += any(
            c.verdict != "no difference shown" for c in (*found.contrasts, *found.effects)
        )
    assert alarms <= 8  # of 60 at 5 %: mean 3, deviation 1.7


def test_a_higher_figure_is_better_where_the_metric_says_so():
    one = factors(cache="none radix")
    made = study(one, metrics=(Metric("time", better="higher"),))
    cells = grid(one)
    found = analyse(made, cells, observe(made, cells, additive, sigma=1e-3))
    assert contrast(found, "cache=radix").verdict == "worse"


def test_rates_are_compared_by_their_difference():
    one = factors(cache="none radix")
    made, cells = study(one, metrics=(Metric("time", scale="difference"),)), grid(one)
    runs = observe(made, cells, nothing, sigma=0)
    rate = {"cache=none": 0.0, "cache=radix": 0.4}
    runs = [replace(r, values={"time": rate[r.cell] + 0.001 * (r.place % 3)}) for r in runs]
    found = analyse(made, cells, runs)
    assert contrast(found, "cache=radix").estimate.value == pytest.approx(0.4, abs=0.01)


def test_an_effect_inside_the_noise_floor_wins_nothing():
    arms = factors(arm="first second", other=" ".join("abcdefghijklmnop"))
    made, cells = study(arms, repeats=3), grid(arms)
    runs = observe(made, cells, lambda x: 0.012 * (x["arm"] == "second"), sigma=0.01, aa=True)
    found = analyse(made, cells, runs)
    one = effect(found, "arm=second")
    assert one.estimate.p_adjusted < 0.05
    assert one.estimate.value < found.noise[0].value
    assert one.verdict == "no difference shown"
    assert "noise floor" in one.reason


def test_an_arm_whose_component_never_acted_is_inert_and_wins_nothing():
    arms = factors(eviction="lru arc", engine="plain fast")
    made, cells = study(arms), grid(arms)
    runs = observe(
        made, cells, lambda x: -0.5 * (x["engine"] == "fast"), sigma=1e-3,
        chosen=lambda c, _: {"cache/eviction": c.levels["eviction"], "spec": c.levels["engine"]},
        inert=lambda *_: ("cache/eviction",), acted=lambda *_: ("spec", "executor"),
    )  # fmt: skip
    found = analyse(made, cells, runs)
    assert effect(found, "eviction=arc").verdict == "inert"
    assert "cache/eviction" in effect(found, "eviction=arc").reason
    assert contrast(found, "eviction=arc,engine=plain").verdict == "inert"
    assert contrast(found, "eviction=arc,engine=fast").verdict == "better"
    assert effect(found, "engine=fast").verdict == "better"
    assert any("Never acted in any cell: cache/eviction" in note for note in found.notes)


@pytest.mark.parametrize(("inert", "verdict"), [(("spec",), "inert"), ((), "better")])
def test_leaving_out_a_component_that_never_acted_measures_nothing(inert, verdict):
    arms = factors(spec="eagle none")
    made, cells = study(arms), grid(arms)
    runs = observe(
        made, cells, lambda x: -0.5 * (x["spec"] == "none"), sigma=1e-3,
        chosen=lambda c, _: {"spec": c.levels["spec"]},
        inert=lambda c, _: inert if c.levels["spec"] == "eagle" else (),
        acted=lambda c, _: ("spec",) if c.levels["spec"] == "eagle" and not inert else (),
    )  # fmt: skip
    assert contrast(analyse(made, cells, runs), "spec=none").verdict == verdict


def test_a_setting_that_is_no_seam_is_never_inert():
    arms = factors(pages="few many")
    made, cells = study(arms), grid(arms)
    runs = observe(
        made, cells, nothing, inert=lambda *_: ("cache/eviction",),
        chosen=lambda c, _: {"cache.num_pages": c.levels["pages"]},
    )  # fmt: skip
    assert contrast(analyse(made, cells, runs), "pages=many").verdict == "no difference shown"


def test_failed_runs_leave_their_pairs_out_and_are_named():
    made, cells = study(TWO, repeats=4), grid(TWO)
    runs = observe(made, cells, additive, sigma=0.004)
    broken = "cache=radix,spec=eagle"
    runs = [
        replace(r, values={}, failure="out of pages") if (r.cell, r.repeat) == (broken, 2) else r
        for r in runs
    ]
    found = analyse(made, cells, runs)
    assert contrast(found, broken).estimate.num_pairs == 3
    assert effect(found, "cache=radix").estimate.value == pytest.approx(
        math.expm1(-0.2 - 0.08 / 3), abs=0.012
    )
    summary = next(cell for cell in found.cells if cell.cell == broken)
    assert (summary.num_runs, summary.num_failed) == (3, 1)
    assert any(note.startswith(f"{broken}: 1 run failed") for note in found.notes)


def test_a_refused_cell_leaves_its_interaction_out_and_says_so():
    refused = grid(TWO, lambda x: x == {"cache": "radix", "spec": "eagle"})
    cells = grid(TWO, lambda x: x != {"cache": "radix", "spec": "eagle"})
    made = study(TWO, repeats=4)
    runs = observe(made, cells, additive, sigma=0.003)
    found = analyse(made, cells, runs, [Refusal(refused[0], ("they do not go together",))])
    assert [(i.first, i.second) for i in found.interactions] == [("cache=radix", "spec=ngram")]
    # averaged over none and ngram alone
    assert effect(found, "cache=radix").estimate.value == pytest.approx(math.expm1(-0.2), abs=0.01)
    assert any("cache=radix with spec=eagle" in note for note in found.notes)
    assert any("Refused before they ran" in note and refused[0].id in note for note in found.notes)


def test_one_factor_at_a_time_estimates_no_interaction_and_corrects_an_effect_once():
    cells = grid(TWO, lambda x: "none" in x.values())
    made = study(TWO)
    found = analyse(made, cells, observe(made, cells, additive, sigma=0.004))
    assert found.interactions == ()
    assert any("cache with spec" in note for note in found.notes)
    same = contrast(found, "cache=radix,spec=none").estimate
    mean = effect(found, "cache=radix").estimate
    assert mean.value == pytest.approx(same.value)
    assert mean.p_adjusted == same.p_adjusted


def test_half_a_factorial_confounds_main_effects_with_interactions_and_says_so():
    three = factors(a="0 1", b="0 1", c="0 1")
    cells = grid(three, lambda x: (int(x["a"]) + int(x["b"]) + int(x["c"])) % 2 == 0)
    made = study(three, repeats=3)
    found = analyse(made, cells, observe(made, cells, lambda x: 0.1 * int(x["b"]), sigma=0.002))
    assert found.interactions == ()
    assert effect(found, "b=1").estimate.value == pytest.approx(math.expm1(0.1), abs=0.01)
    assert effect(found, "a=1").verdict == "no difference shown"
    assert sum("not estimated" in note for note in found.notes) == 3


def test_runs_of_different_workloads_are_never_paired():
    arms = factors(cache="none radix", traffic="chat agent")
    made, cells = study(arms), grid(arms)
    runs = observe(
        made, cells, lambda x: additive(x) + 3 * (x["traffic"] == "agent"), sigma=1e-3,
        workload_sha256=lambda c, r: f"{c.levels['traffic']}{r}",
    )  # fmt: skip
    found = analyse(made, cells, runs)
    against = {one.what: one.against for one in found.contrasts}
    assert against == {
        "cache=radix,traffic=chat": "cache=none,traffic=chat",
        "cache=radix,traffic=agent": "cache=none,traffic=agent",
    }
    assert effect(found, "cache=radix").estimate.value == pytest.approx(math.expm1(-0.2), abs=0.005)
    assert not [one for one in found.effects if one.what == "traffic=agent"]
    assert any("The effect of traffic=agent is not estimated" in note for note in found.notes)
    assert [(i.first, i.second) for i in found.interactions] == [("cache=radix", "traffic=agent")]


def test_a_cell_with_a_workload_of_its_own_by_accident_is_compared_with_nothing():
    one = factors(cache="none radix block")
    made, cells = study(one), grid(one)
    runs = observe(
        made, cells, nothing, workload_sha256=lambda c, _: str(c.levels["cache"] == "block")
    )
    found = analyse(made, cells, runs)
    assert {c.what for c in found.contrasts} == {"cache=radix"}
    assert any("different workloads are never paired" in note for note in found.notes)


def test_one_repeat_is_too_few_pairs():
    made, cells = study(TWO, repeats=1), grid(TWO)
    found = analyse(made, cells, observe(made, cells, additive))
    assert {one.verdict for one in (*found.contrasts, *found.effects)} == {"too few pairs"}
    assert all("needs 2" in one.reason for one in found.contrasts if one.estimate.num_pairs < 2)
    assert not math.isfinite(found.noise[0].value)


def test_an_unfinished_study_and_one_without_runs_are_analysed():
    made, cells = study(TWO, repeats=4), grid(TWO)
    runs = observe(made, cells, additive)[:15]
    assert analyse(made, cells, runs).contrasts
    empty = analyse(made, cells, [])
    assert {one.verdict for one in empty.contrasts} == {"too few pairs"}
    assert all(cell.num_runs == 0 for cell in empty.cells)


def test_lossless_cells_with_other_tokens_are_named_and_lossy_ones_are_not():
    one = factors(kv="auto fp8 odd")
    lossy = replace(one[0], levels=(Level("auto"), Level("fp8", lossy=True), Level("odd")))
    made, cells = study((lossy,)), grid((lossy,))
    share = {"auto": 1.0, "fp8": 0.9, "odd": 0.97}
    runs = observe(made, cells, nothing, equal_tokens=lambda c, _: share[c.levels["kv"]])
    found = analyse(made, cells, runs)
    assert [note for note in found.notes if "lossless" in note] == [
        note for note in found.notes if note.startswith("kv=odd is lossless, yet only 97.00%")
    ]
    assert [cell.equal_tokens for cell in found.cells] == [1.0, 0.9, 0.97]
    told = analyse(made, cells, runs, lossy=["kv=odd"])
    assert not [note for note in told.notes if "lossless" in note]


def test_drift_is_noted_with_whether_the_order_was_random():
    one = factors(arm="a b c d")
    made, cells = study(one, repeats=5), grid(one)
    runs = observe(made, cells, nothing, sigma=0.002)
    drifting = [replace(r, values={"time": r.values["time"] * 1.005**r.place}) for r in runs]
    found = analyse(made, cells, drifting)
    assert found.drift[0].per_run == pytest.approx(0.005, abs=0.002)
    assert any("random order" in note for note in found.notes)
    assert not any("drifted" in note for note in analyse(made, cells, runs).notes)


def test_the_pareto_front_has_the_cells_that_none_beats():
    one = factors(arm="a b c d")
    made = study(one, metrics=(TIME, Metric("rate", better="higher")))
    cells = grid(one)
    points = {"a": (1.0, 5.0), "b": (2.0, 9.0), "c": (2.0, 6.0), "d": (3.0, 9.0)}
    runs = [
        replace(r, values=dict(zip(("time", "rate"), points[r.cell[-1]], strict=True)))
        for r in observe(made, cells, nothing)
    ]
    found = analyse(made, cells, runs)
    assert [cell.pareto for cell in found.cells] == [True, True, False, False]


@pytest.mark.parametrize("fails", [True, False])
def test_cells_are_rivals_on_the_front_whatever_repeat_of_them_failed(fails):
    one = factors(arm="a b")
    made = study(one, metrics=(TIME, Metric("rate", better="higher")))
    cells = grid(one)
    points = {"a": (1.0, 5.0), "b": (2.0, 4.0)}
    runs = [
        replace(r, values=dict(zip(("time", "rate"), points[r.cell[-1]], strict=True)),
                failure="out of memory" if fails and r.cell == "arm=b" and r.repeat == 0 else "")
        for r in observe(made, cells, nothing)
    ]  # fmt: skip
    assert [cell.pareto for cell in analyse(made, cells, runs).cells] == [True, False]


def test_the_same_input_gives_the_same_findings_and_they_are_plain_values():
    made, cells = study(TWO), grid(TWO)
    runs = observe(made, cells, additive, aa=True)
    first, second = (analyse(made, cells, runs) for _ in range(2))
    assert first == second
    assert json.dumps(asdict(first))


def test_figures_without_a_logarithm_leave_their_pairs_out():
    one = factors(cache="none radix")
    made, cells = study(one), grid(one)
    runs = observe(made, cells, nothing)
    runs[0] = replace(runs[0], values={"time": 0.0})
    runs[1] = replace(runs[1], values={"time": None})
    found = analyse(made, cells, runs)
    assert found.contrasts[0].estimate.num_pairs < 3
    assert any("2 runs have no figure above zero" in note for note in found.notes)


def test_a_composition_beside_the_design_changes_no_effect():
    two = factors(cache="none radix", spec="none ngram")
    made, cells = study(two), grid(two)
    beside = Cell("also=other", {}, ())
    runs = observe(made, [*cells, beside], lambda x: additive(x) if x else 3.0, sigma=0.0)
    without = analyse(made, cells, [one for one in runs if one.cell != beside.id])
    found = analyse(made, [*cells, beside], runs)
    for one, other in zip(found.effects, without.effects, strict=True):
        assert one.estimate.value == pytest.approx(other.estimate.value, abs=1e-9)
