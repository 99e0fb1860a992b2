"""Overrides become a typed configuration, or a list of everything that is wrong with them."""

import re
import shlex
from pathlib import Path

import pytest
import yaml
from hydra.core.global_hydra import GlobalHydra

from interlock.conf.hydra_edge import compose
from interlock.conf.hydra_overrides import plan_overrides
from interlock.conf.overrides import QUOTING
from interlock.conf.read_config import to_plain
from interlock.core.errors import ConfigError
from interlock.core.registry import load_registry
from interlock.core.seams import SEAMS
from interlock.core.settings import EngineConfig, flat_settings


def problems_of(*overrides: str, **more: object) -> list[str]:
    with pytest.raises(ConfigError) as error:
        compose(overrides, **more)
    return error.value.problems


def test_the_defaults_choose_something_for_every_seam():
    config = compose()
    assert config.choices.keys() == SEAMS.keys()
    assert {seam: config.choices[seam].name for seam in ("attention", "cache/index", "spec")} == {
        "attention": "auto",
        "cache/index": "radix",
        "spec": "none",
    }


def test_composed_defaults_equal_the_defaults_of_the_dataclasses():
    assert flat_settings(compose()) == flat_settings(EngineConfig())


def test_values_reach_their_typed_fields():
    config = compose(
        [
            "model=tiny-mla", "dtype=float64", "device=cuda:1", "seed=3", "cache.page_size=32",
            "cache.num_pages=9", "scheduler.budget_tokens=8", "scheduler.max_requests=2",
            "spec=ngram", "spec.num_drafts=7", "sampling.temperature=1", "limits.ttft_ms=200",
            "limits.tpot_ms=1e1", "executor=fixed", "rerun=somewhere", "workload=prompts",
            "workload.path=a.jsonl", "workload.max_tokens=5", "sampling.stop_token_ids=[1, 2]",
            "sampling.repetition_penalty=1.2", "sampling.logit_bias={5: 1.5, 7: -2}",
            "sampling.allowed_token_ids=[5, 6]",
        ]
    )  # fmt: skip
    assert (config.model, config.dtype, config.device, config.seed) == (
        "tiny-mla", "float64", "cuda:1", 3,
    )  # fmt: skip
    assert (config.cache.page_size, config.cache.num_pages) == (32, 9)
    assert (config.scheduler.budget_tokens, config.scheduler.max_requests) == (8, 2)
    assert config.choices["spec"].config.num_drafts == 7
    assert config.choices["workload"].config.path == "a.jsonl"
    assert config.choices["workload"].config.max_tokens == 5
    assert config.sampling.temperature == 1.0
    assert config.sampling.stop_token_ids == (1, 2)
    assert config.sampling.repetition_penalty == 1.2
    assert config.sampling.logit_bias == ((5, 1.5), (7, -2.0))
    assert config.sampling.allowed_token_ids == (5, 6)
    assert compose(["sampling.logit_bias=[[5, 1.5], [7, -2]]"]).sampling.logit_bias == (
        (5, 1.5),
        (7, -2.0),
    )
    assert (config.limits.ttft_ms, config.limits.tpot_ms) == (200.0, 10.0)
    assert config.rerun == "somewhere"


def test_a_preset_sets_the_choices_below_it_and_one_of_them_can_be_changed():
    config = compose(["cache=contiguous", "cache/eviction=fifo", "scheduler=fcfs"])
    chosen = {seam: choice.name for seam, choice in config.choices.items()}
    assert chosen["cache/allocator"] == "contiguous"
    assert chosen["cache/index"] == "none"
    assert chosen["cache/eviction"] == "fifo"
    assert chosen["scheduler/chunking"] == "prefill_first"


def test_all_mistakes_are_reported_at_once():
    found = problems_of(
        "cache=radx", "cache/indx=none", "spec.num_draft=3", "spec=ngram", "cache.page_size=0",
        "cache.num_pages=0", "seed=abc", "dtype=int8", "device=gpu", "sepc=none", "noequal",
        "sampling.top_p=2", "attention=mla", "++attention.heads=4", "+attention.rank=2",
        "scheduler.budget_tokens=0", "limits.ttft_ms=0", "~spec", "cache.eviction=lru",
    )  # fmt: skip
    expected = [
        "no cache named 'radx'; did you mean 'radix'? known: block_hash, contiguous, none, radix",
        "no config group named 'cache/indx'; did you mean 'cache/index'?",
        "no option of spec=ngram named 'num_draft'; did you mean 'num_drafts'?",
        "cache.page_size=0 is not from 1 to 512",
        "cache.num_pages=0 is not at least 1, or null",
        "seed='abc' is not a whole number",
        "dtype='int8' is not one of auto, float64, float32, bfloat16, float16",
        "device='gpu' is not cpu, cuda or cuda:N",
        "no option named 'sepc'; did you mean 'spec'?",
        "'noequal' is no override; write KEY=VALUE or GROUP=NAME",
        "sampling.top_p=2.0 is not a number from 0 to 1",
        "no option of attention=mla named 'heads'",
        "no option of attention=mla named 'rank'",
        "scheduler.budget_tokens=0 is not at least 1",
        "limits.ttft_ms=0.0 is not a finite number above 0, or null",
        "~spec: nothing can be removed from the configuration",
        "cache.eviction='lru' sets no options; to choose a component, write cache/eviction=lru",
    ]
    for message in expected:
        assert any(problem.startswith(message) for problem in found), message
    assert len(found) == len(expected)


def test_a_choice_written_as_a_value_is_an_error_that_shows_the_right_spelling():
    assert "write cache/index=radix" in problems_of("cache.index=radix")[0]
    assert "write cache/index=none" in problems_of("cache.index.name=none")[0]
    assert "write cache/index=..." in problems_of("cache/index@x=none")[0]


def test_an_option_of_another_choice_says_whose_it_is():
    problem = problems_of("spec.num_drafts=3")[0]
    said = "no option of spec=none named 'num_drafts'; known: (none); it is an option of spec="
    assert problem.startswith(said)
    assert " spec=eagle," in problem


def test_options_are_refused_when_the_resolver_makes_the_choice():
    assert "choose a component to set them" in problems_of("++attention.form=absorbed")[0]


def test_true_is_no_number_and_a_group_takes_no_value():
    assert problems_of("seed=true", "limits=3") == [
        "seed=True is not a whole number",
        "limits=3 is not a group of options",
    ]


def test_a_refusal_of_a_components_own_dataclass_names_its_key():
    assert problems_of("executor=fixed", "executor.acceptance=2") == [
        "executor.acceptance=2.0 is not a number from 0 to 1"
    ]


@pytest.mark.parametrize(
    ("override", "suggestion"),
    [
        ("workload.path=a=b.jsonl", 'workload.path="a=b.jsonl"'),
        ("workload.path=a#1.jsonl", 'workload.path="a#1.jsonl"'),
        ("workload.path=a,b.jsonl", 'workload.path="a,b.jsonl"'),
        ("workload.path=(x).jsonl", 'workload.path="(x).jsonl"'),
        ('workload.path=say "a#b".jsonl', 'workload.path="say \\"a#b\\".jsonl"'),
    ],
)
def test_a_value_that_needs_quotes_is_an_error_whose_suggestion_works(override, suggestion):
    (problem,) = problems_of("workload=prompts", override)
    assert suggestion in problem
    config = compose(["workload=prompts", suggestion])
    assert config.choices["workload"].config.path == override.partition("=")[2]


def test_the_documented_quoting_works_as_printed():
    lines = [line.strip() for line in QUOTING.splitlines()[1:] if "-m" not in line]
    typed = [re.split(r"\s{3,}", line)[0] for line in lines]
    assert len(typed) == 7
    overrides = [override for command in typed for override in shlex.split(command)]
    paths = [compose(["workload=prompts", o]).choices["workload"].config.path for o in overrides]
    assert "a=b,c #1.jsonl" in paths
    assert "my file.jsonl" in paths
    config = compose(["sampling.stop_token_ids=[1, 2]", "sampling.min_p=1e-3"])
    assert config.sampling.min_p == 0.001


def test_a_sweep_is_judged_value_by_value_and_needs_multirun():
    assert "several values make a sweep, which needs -m" in problems_of("cache=radix,none")[0]
    plan = plan_overrides(["cache=radix,nine", "seed=1,2"], load_registry(), sweeps=True)
    assert len(plan.problems) == 1
    assert plan.problems[0].startswith("no cache named 'nine'; did you mean 'none'?")


def test_interpolations_are_resolved_and_a_bad_one_is_a_problem():
    assert compose(["seed=4", "cache.num_pages=${seed}"]).cache.num_pages == 4
    assert "nowhere" in problems_of("seed=${nowhere}")[0]


def test_composing_leaves_a_running_hydra_job_alone():
    marker = object()
    GlobalHydra.instance().hydra = marker  # type: ignore[assignment]
    try:
        compose()
        assert GlobalHydra.instance().hydra is marker
    finally:
        GlobalHydra.instance().clear()


@pytest.mark.parametrize("cache", ["cache=none", "cache/eviction=fifo", "cache/index=block_hash"])
def test_a_saved_configuration_is_read_back_as_it_was(tmp_path: Path, cache: str):
    config = compose(["spec=ngram", "spec.num_drafts=2", cache])
    saved = tmp_path / "saved.yaml"
    saved.write_text("# @package _global_\n" + yaml.safe_dump(to_plain(config)))
    folder = tmp_path / "folder" / "experiment"
    folder.mkdir(parents=True)
    saved.rename(folder / "again.yaml")
    again = compose(["+experiment=again"], config_folders=[tmp_path / "folder"])
    assert again == config


def test_a_strangers_component_and_preset_are_composed_like_built_in_ones(install, registry_of):
    site = install(
        "afar",
        '''
from pathlib import Path

@dataclass(frozen=True)
class Config:
    """Options."""
    depth: int = option(3, "how deep")
    modes: tuple[str, ...] = option(("a",), "which ways")

@hookimpl
def interlock_components():
    return [Component("spec", "afar", Config, "afar:build", "drafts from afar")]

@hookimpl
def interlock_config_dirs():
    return [str(Path(__file__).parent / "presets")]
''',
    )
    preset = site / "presets" / "scheduler" / "hasty.yaml"
    preset.parent.mkdir(parents=True)
    preset.write_text(
        "defaults: [order: arrival, admission: when_it_fits, chunking: prefill_first, "
        "victim: latest]\nmax_requests: 3\n"
    )
    registry = registry_of(site)
    config = compose(
        ["spec=afar", "spec.depth=5", "spec.modes=[b, c]", "scheduler=hasty"], registry
    )
    assert config.choices["spec"].config.depth == 5
    assert config.choices["spec"].config.modes == ("b", "c")
    assert config.scheduler.max_requests == 3
    assert problems_of("spec=afar", "spec.modes=b", "spec.dept=1", registry=registry) == [
        "no option of spec=afar named 'dept'; did you mean 'depth'? known: depth, modes",
        "spec.modes='b' is not a list [...], each item text; write spec.modes=[b]",
    ]
