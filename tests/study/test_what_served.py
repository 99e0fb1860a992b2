"""What differs between runs, by seam, read from their manifests."""

from interlock.study.what_served import acted, chosen

CONFIG = {
    "seed": 3,
    "cache": {"num_pages": 9, "index": {"name": "radix"}, "eviction": {"name": "lru"}},
    "spec": {"name": "eagle", "depth": 5, "length": {"name": "fixed"}},
    "executor": {"name": "fixed", "noise_run": 4},
}


def test_options_stand_with_their_seam_and_settings_by_themselves():
    found = chosen({"config": CONFIG})
    assert set(found) == {
        "cache.num_pages", "cache/index", "cache/eviction", "spec", "spec/length", "executor"
    }  # fmt: skip
    deeper = {**CONFIG, "seed": 4, "spec": {**CONFIG["spec"], "depth": 6}}
    other = chosen({"config": deeper})
    assert [key for key in found if found[key] != other[key]] == ["spec"]


def test_runs_of_one_composition_do_not_differ_by_seed_and_number():
    again = {**CONFIG, "seed": 9, "executor": {"name": "fixed", "noise_run": 7}}
    assert chosen({"config": again}) == chosen({"config": CONFIG})


def test_seams_with_a_counter_above_zero_acted():
    counters = {
        "cache/index": {"hits": 2},
        "cache/eviction": {"evicted_pages": 0},
        "tokens": {"x": 1},
    }
    assert acted({"counters": counters}) == ("cache/index",)
    assert acted({}) == ()
