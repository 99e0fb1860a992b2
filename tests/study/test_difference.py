"""What stands between a study and the folder of another, in words of their files."""

from dataclasses import replace

import pytest

from interlock.core.errors import ConfigError
from interlock.study.difference import differences
from interlock.study.read_study import changed_study
from interlock.study.spec import Factor, Level, Metric, Study

STUDY = Study(
    "mine", (Factor("cache", (Level("none", ("cache=none",)), Level("radix", ("cache=radix",)))),),
    "full_factorial", base=("executor=fixed", "cache.num_pages=64"),
    metrics=(Metric("mean_ttft_ms"), Metric("mean_itl_ms")), timeout_s=1.0,
)  # fmt: skip


def test_each_difference_is_a_line_that_names_what_only_one_of_two_studies_has():
    none = Level("none", ("cache=none",))
    now = replace(
        STUDY,
        base=("executor=fixed", "cache.num_pages=32"),
        factors=(
            Factor("cache", (none, Level("radix", ("cache=radix", "cache.page_size=8"), True))),
            Factor("spec", (none,)),
        ),
        metrics=(Metric("mean_itl_ms"), Metric("mean_ttft_ms")),
        design_options={"runs": "8"},
        repeats=5,
    )
    assert differences(STUDY, now) == [
        "design_options: none there, runs 8 now",
        "repeats: 3 there, 5 now",
        "base: cache.num_pages=64 is only there",
        "base: cache.num_pages=32 is only now",
        "metrics: mean_ttft_ms, mean_itl_ms there, in another order now",
        "factors: spec is only now",
        "factors.cache.radix: cache.page_size=8 is only now",
        "factors.cache.radix.lossy: False there, True now",
    ]
    assert differences(STUDY, STUDY) == []


def test_a_resumed_study_takes_what_changes_no_run_and_nothing_else():
    asked = ("study.timeout_s=600", "study.launcher=joblib", "study.confidence=0.9")
    now = changed_study(STUDY, asked)
    assert (now.timeout_s, now.launcher, now.confidence) == (600.0, {"name": "joblib"}, 0.9)
    assert differences(STUDY, now) == []
    with pytest.raises(ConfigError) as caught:
        changed_study(STUDY, ("study.repeats=5", "cache=none", "study.timeout_s=never"))
    first, second, third = caught.value.problems
    assert first.startswith("study.repeats=5: a resumed study stays as it is; what may change: ")
    assert second.startswith("cache=none: ")
    assert third == "timeout_s='never' is not from above 0 to 1000000 s"
