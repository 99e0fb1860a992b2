"""Study files: what they come to, and everything that is wrong with one at once."""

from pathlib import Path
from textwrap import dedent

import pytest

from interlock.core.errors import ConfigError
from interlock.core.registry import load_registry
from interlock.study.cli import main
from interlock.study.plan import plan_study
from interlock.study.read_study import EXAMPLE, changed_study, read_study
from interlock.study.spec import Metric

FIXED = "base: [executor=fixed]\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "mine.yaml"
    path.write_text(dedent(text))
    return path


def problems_of(folder: Path, text: str, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read_study(write(folder, text), load_registry(), overrides)
    return [problem.removeprefix(f"{folder / 'mine.yaml'}: ") for problem in caught.value.problems]


def test_the_example_of_the_help_is_a_study(tmp_path):
    study = read_study(write(tmp_path, EXAMPLE), load_registry())
    assert study.name == "cache_and_drafter"
    assert study.factor("spec").level("eagle").overrides == ("spec=eagle", "spec.num_drafts=3")
    assert study.metrics == (
        Metric("mean_ttft_ms", "lower", "ratio"),
        Metric("output_throughput", "higher", "ratio"),
    )


def test_a_list_of_choices_and_words_that_yaml_would_take_for_truth_values(tmp_path):
    text = FIXED + "factors: {cache: [none, radix], on: {no: [], yes: seed_note=1}}"
    found = problems_of(tmp_path, text)
    assert [p.split(":")[0] for p in found] == ["factors.on.yes"]
    study = read_study(write(tmp_path, text.replace("seed_note=1", "spec=ngram")), load_registry())
    assert [level.name for level in study.factor("on").levels] == ["no", "yes"]
    assert study.factor("cache").level("radix").overrides == ("cache=radix",)
    assert (study.name, study.design, study.repeats) == ("mine", "full_factorial", 3)


def test_the_baseline_comes_first(tmp_path):
    text = FIXED + "factors: {cache: [none, radix, block_hash]}\nbaseline: {cache: radix}"
    study = read_study(write(tmp_path, text), load_registry())
    assert [level.name for level in study.factors[0].levels] == ["radix", "none", "block_hash"]


def test_every_mistake_of_a_file_is_said_at_once(tmp_path):
    found = problems_of(
        tmp_path,
        """
        fators: {}
        base: [seed=4]
        factors:
          cache: {none: [cache=none], radix: {overides: [cache=radix]}}
          spec: [none]
        baseline: {cache: nonne}
        design: pairwize
        repeats: many
        confidence: 2
        timeout_s: 0
        metrics: [{key: mean_ttft_ms, better: bigger}]
        """,
    )
    for part in (
        "no key of a study named 'fators'; did you mean 'factors'?",
        "no key of a level named 'overides'; did you mean 'overrides'?",
        "factors.spec: 1 level; a factor that does not vary belongs in base",
        "baseline: no level of cache named 'nonne'; did you mean 'none'?",
        "no design named 'pairwize'; did you mean 'pairwise'?",
        "repeats='many' is not a whole number from 1 on, up to 2**31",
        "confidence='2' is not from 0.5 to below 1",
        "timeout_s='0' is not from above 0 to 1000000 s",
        "metrics: mean_ttft_ms: better is lower or higher",
        "base: seed=4: each repeat has a seed of its own; the study's is `seed: N`",
    ):
        assert any(part in problem for problem in found), (part, found)


def test_levels_that_name_what_is_not_there_are_problems_of_the_file(tmp_path):
    found = problems_of(
        tmp_path,
        """
        base: [executor=fixed, cache.pages=4]
        factors:
          cache: [none, radx]
          spec: {none: [spec=none], eagle: [spec=eagle, spec.dept=5]}
        """,
    )
    assert any(p.startswith("factors.cache.radx: no cache named 'radx'; did you") for p in found)
    assert any(p.startswith("factors.spec.eagle: no option of spec=eagle named") for p in found)
    assert any(p.startswith("base: no ") and "'pages'" in p for p in found)


def test_an_option_that_only_some_cells_lack_is_left_to_those_cells(tmp_path):
    text = """
        base: [executor=fixed]
        factors:
          spec: [none, ngram]
          drafts: {"3": [spec.num_drafts=3], "5": [spec.num_drafts=5]}
        """
    assert read_study(write(tmp_path, text), load_registry()).factors[1].levels[1].name == "5"


def test_overrides_of_the_command_line_join_the_base_or_change_the_file(tmp_path):
    path = write(tmp_path, FIXED + "factors: {cache: [none, radix]}")
    more = ("cache.page_size=32", "study.repeats=7", "study.metrics=[mean_itl_ms]")
    study = read_study(path, load_registry(), more)
    assert study.base == ("executor=fixed", "cache.page_size=32")
    assert (study.repeats, study.metrics[0].key) == (7, "mean_itl_ms")


def test_an_override_that_a_level_would_undo_is_refused(tmp_path):
    text = FIXED + "factors: {cache: [none, radix]}"
    assert (
        "cache=radix is undone by factors.cache.none, which sets cache=none"
        in (problems_of(tmp_path, text, "cache=radix")[0])
    )
    assert problems_of(tmp_path, text, "study.repeat=2")[0].startswith("study.repeat=2: no key")


def test_what_a_latency_curve_or_a_launcher_would_undo_is_refused(tmp_path):
    curve = "design: {name: latency_curve, over: workload.rate, values: [1, 2]}"
    text = f"{FIXED}factors: {{cache: [none, radix]}}\n"
    (problem,) = problems_of(tmp_path, text + curve, "workload.rate=3")[:1]
    assert problem.startswith("workload.rate=3 is undone by factors.rate.1")
    (problem,) = problems_of(tmp_path, f"{text}launcher: joblib\nwarmup_runs: 2")
    assert problem.startswith("warmup_runs: a launcher's jobs are processes of their own")


def test_a_search_goes_one_by_one_and_says_so_where_a_launcher_or_jobs_are_asked_for(tmp_path):
    text = f"{FIXED}factors: {{cache: [none, radix]}}\ndesign: search\n"
    (problem,) = problems_of(tmp_path, f"{text}launcher: joblib")
    assert "launcher=joblib: design search makes one run after the other" in problem
    study = read_study(write(tmp_path, text), load_registry())
    with pytest.raises(ConfigError, match="launcher=joblib: design search"):
        changed_study(study, ("study.launcher=joblib",))
    with pytest.raises(ConfigError, match="--jobs 2: design search makes one run after the other"):
        main([str(tmp_path / "mine.yaml"), "--jobs", "2"], load_registry())


def test_what_is_no_metric_is_answered_with_the_form_of_one(tmp_path):
    text = FIXED + "factors: {cache: [none, radix]}\nmetrics: [{name: mean_itl_ms}]\n"
    (problem,) = problems_of(tmp_path, text)
    assert problem.endswith("{key: ..., better: lower or higher, scale: ratio or difference}")


def test_what_is_no_yaml_or_stands_twice_names_the_line(tmp_path):
    assert "not YAML" in problems_of(tmp_path, "factors: [")[0]
    doubled = "factors: {cache: [none, radix]}\nrepeats: 2\nrepeats: 3\n"
    assert problems_of(tmp_path, FIXED + doubled) == ["line 4: 'repeats' stands here a second time"]
    with pytest.raises(ConfigError, match="No such file"):
        read_study(tmp_path / "none.yaml", load_registry())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: &a [*a]\n", "nested too deeply, or an alias holds itself"),
        ("[" * 1000 + "]" * 1000, "nested too deeply"),
        (f"a: &a [x, x]\nb: &b [{'*a, ' * 600}]\nc: [{'*b, ' * 600}]\n", "more than 1,000,000"),
    ],
)  # fmt: skip
def test_a_file_that_holds_itself_or_unfolds_without_end_is_refused(tmp_path, text, said):
    (tmp_path / "study.yaml").write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_study(tmp_path / "study.yaml", load_registry())


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("name: ../x", "name='../x' is not"),
        ('name: "a\\nb"', "a folder has this name"),
        ("design: [pairwise]", "design"),
        ("design: {name: [pairwise]}", "design"),
        ("metrics: [{key: [a]}]", "is no key of summary.json"),
        ("metrics: {a: b}", "is no key of summary.json"),
        ("metrics: [mean_tftt_ms]", "metrics: no metric named 'mean_tftt_ms'; did you mean"),
    ],
)
def test_a_value_of_another_kind_is_a_problem_of_its_key(tmp_path, line, said):
    (problem,) = problems_of(tmp_path, f"{FIXED}factors: {{cache: [none, radix]}}\n{line}\n")
    assert said in problem


def test_a_design_that_would_never_end_is_refused_before_its_cells_are_made(tmp_path):
    factors = [f"  f{at}: {{{', '.join(f'l{n}: []' for n in range(5))}}}" for at in range(10)]
    text = "\n".join([FIXED + "factors:", *factors])
    (problem,) = problems_of(tmp_path, text)
    assert "9,765,625 cells" in problem
    assert "pairwise" in problem


@pytest.mark.parametrize(
    ("factors", "said"),
    [
        (
            "{a: {x: [cache=none], y: []}, b: {p: [cache=radix], q: []}}",
            "factors.b.p: cache=radix undoes cache=none of factors.a.x in cells that have both",
        ),
        ("{a: {x: [cache=none, cache=radix], y: []}}", "factors.a.x sets cache twice"),
        ("{cache: [none, none, radix]}", "factors.cache: 'none' stands here twice"),
        ("{'': {x: [cache=none], y: []}}", "factors: '' is no name"),
        ('{a: {"x\\e[31m": [cache=none], y: []}}', r"factors: 'x\\x1b\[31m' is no name"),
        (
            "{a: {x: [hydra.run.dir=here], y: []}}",
            "hydra.run.dir=here: a study has its own folders",
        ),
    ],
)
def test_levels_that_would_be_undone_or_ignored_or_cannot_be_shown_are_refused(
    tmp_path, factors, said
):
    (tmp_path / "mine.yaml").write_text(f"factors: {factors}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=said):
        read_study(tmp_path / "mine.yaml", load_registry())


def test_more_runs_than_anybody_waits_for_are_refused_before_they_are_listed(tmp_path):
    text = "base: [executor=fixed]\nfactors: {cache: [none, radix]}\nrepeats: 100000000\n"
    (tmp_path / "mine.yaml").write_text(text)
    study = read_study(tmp_path / "mine.yaml", load_registry())
    with pytest.raises(ConfigError, match="are 300,000,000 runs, and a study has 1,000,000 at"):
        plan_study(study, load_registry())
