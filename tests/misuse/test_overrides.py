"""Wrong overrides: each is named with its value and what is allowed, all of them at once."""

import json
import shlex

import pytest

from interlock.conf.hydra_edge import compose
from interlock.core.errors import ConfigError
from tests.misuse.conftest import SHORT


def problems_of(*overrides):
    with pytest.raises(ConfigError) as caught:
        compose(overrides)
    return caught.value.problems


def test_every_typo_of_a_command_is_named_with_the_closest_name(run):
    typos = ("cahce=radix", "cache.pagesize=3", "spec=egle", "++foo.bar=1", "+sampling.tmp=1")
    problems = "\n".join(run(*SHORT, "workload.nmu_requests=3", *typos).problems)
    for hint in ("'cahce'; did you mean 'cache'", "'pagesize'; did you mean 'page_size'",
                 "'egle'; did you mean 'eagle'", "'nmu_requests'; did you mean 'num_requests'",
                 "no option named 'foo'", "no sampling option named 'tmp'"):  # fmt: skip
        assert hint in problems


def test_values_out_of_range_are_all_named():
    assert problems_of(
        "cache.page_size=513", "cache.num_pages=0", "scheduler.budget_tokens=-1",
        "scheduler.max_requests=0", "seed=9223372036854775808", "threads=100000",
        "max_model_len=0", "limits.ttft_ms=-1", "device=tpu", "dtype=int8",
        "sampling.temperature=-1", "sampling.top_p=1.5", "sampling.top_k=-5", "sampling.min_p=2",
        "sampling.max_tokens=0", "sampling.logprobs=101", "sampling.stop_token_ids=[-1]",
        "sampling.repetition_penalty=0", "sampling.min_tokens=1", "sampling.logit_bias={5: 101}",
    ) == [
        "sampling.temperature=-1.0 is not a finite number >= 0",
        "sampling.top_k=-5 is not an integer from 0 to 2**63 - 1 (0: off)",
        "sampling.top_p=1.5 is not a number from 0 to 1",
        "sampling.min_p=2.0 is not a number from 0 to 1",
        "sampling.max_tokens=0 is not an integer from 1 to 2**63 - 1",
        "sampling.logprobs=101 is not an integer from 0 to 100, or null",
        "sampling.stop_token_ids=(-1,) is not token ids >= 0",
        "sampling.repetition_penalty=0.0 is not a number from 0.01 to 100 (1: off)",
        "sampling.min_tokens=1 is not an integer from 0 to max_tokens=0",
        "sampling.logit_bias=((5, 101.0),) is not biases from -100 to 100 of different token ids "
        ">= 0",
        "limits.ttft_ms=-1.0 is not a finite number above 0, or null",
        "cache.page_size=513 is not from 1 to 512",
        "cache.num_pages=0 is not at least 1, or null",
        "scheduler.budget_tokens=-1 is not at least 1",
        "scheduler.max_requests=0 is not at least 1",
        "dtype='int8' is not one of auto, float64, float32, bfloat16, float16",
        "device='tpu' is not cpu, cuda or cuda:N",
        "seed=9223372036854775808 is not from 0 to 2**63 - 1",
        "threads=100000 is not from 1 to 1024, or null",
        "max_model_len=0 is not at least 1, or null",
    ]  # fmt: skip


def test_values_of_wrong_types_are_all_named():
    problems = problems_of(
        "cache.page_size=null", "scheduler.budget_tokens=1.5", "progress=maybe", "seed=[1]",
        "sampling.temperature=hot", "sampling.logprobs=true", "sampling=3", "model=null",
        "spec.num_drafts=2",
    )  # fmt: skip
    assert {problem.partition("; it is an option of spec=dflash, ")[0] for problem in problems} == {
        "cache.page_size=None is not a whole number",
        "scheduler.budget_tokens=1.5 is not a whole number",
        "progress='maybe' is not true or false",
        "seed=[1] is not a whole number",
        "sampling=3 is not a group of options",
        "model=None is not text",
        "no option of spec=none named 'num_drafts'; known: (none)",
    }
    assert problems_of("sampling.logit_bias={a: 1}", "sampling.banned_token_ids=5") == [
        "sampling.logit_bias={'a': 1} is not a list [...], each item a pair [a whole number, a "
        "finite number], or {a whole number: a finite number} or null",
        "sampling.banned_token_ids=5 is not a list [...], each item a whole number; write "
        "sampling.banned_token_ids=[5]",
    ]


def test_a_schema_given_as_a_mapping_is_shown_as_the_text_that_it_must_be():
    (found,) = problems_of("sampling.json_schema={type: object, required: [a]}")
    (override,) = shlex.split(found.partition("; write ")[2])
    schema = json.loads(compose([override]).sampling.json_schema)
    assert schema == {"type": "object", "required": ["a"]}


def test_a_list_that_cannot_be_read_is_shown_with_quotes_that_can():
    (found,) = problems_of("adapters=[fr:/x/lr=1e-4,/y#2]")
    suggested = """'adapters=["fr:/x/lr=1e-4","/y#2"]'"""
    assert f"for a list of texts {suggested} (see Quoting" in found
    (override,) = shlex.split(suggested)
    assert compose([override]).adapters == ("fr:/x/lr=1e-4", "/y#2")


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1" + "0" * 400])
def test_numbers_that_are_not_finite_are_refused_because_json_lacks_them(value):
    (ours, optional) = problems_of(f"sampling.temperature={value}", f"limits.e2el_ms={value}")
    assert ours.endswith("is not a finite number")
    assert optional.endswith("is not a finite number or null")


def test_astronomic_options_of_a_workload_are_refused():
    problems = problems_of(
        "workload.prompt_tokens=10000000000000000000", "workload.output_spread=1e300",
        "workload.rate=0", "workload.think_s=1e400", "workload.arrivals=poison",
    )  # fmt: skip
    assert set(problems) == {
        "workload.think_s=inf is not a finite number",
        "workload.prompt_tokens=10000000000000000000 is not from 1 to 1e+09",
        "workload.output_spread=1e+300 is not from 0 to 100",
        "workload: no arrivals named 'poison'; did you mean 'poisson'? known: at_once, constant, "
        "gamma, poisson",
        "workload.rate=0.0 is not a finite number above 0",
    }


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("+cache.page_size=8", "cache.page_size is there already; write it without '+'"),
        ("+cache=radix", "cache is chosen already; write it without '+'"),
        ("++spec=ngram", "spec is chosen already; write it without '+'"),
        ("~cache", "nothing can be removed from the configuration"),
        ("cache@foo=radix", "write cache=... without '@'"),
        ("cache=radix,none", "several values make a sweep, which needs -m"),
        ("spec.name=ngram", "to choose a component, write spec=ngram"),
        ("foo", "'foo' is no override; write KEY=VALUE"),
        ("spec/length.num=3", "options are set with dots; write 'spec.length.num=3'"),
        ("x=[1,", "cannot read the override 'x=[1,'"),
        ("seed=${nope}", "Interpolation key 'nope' not found"),
        ("spec=null", "no spec named 'None'; did you mean 'none'"),
    ],
)
def test_a_form_that_means_nothing_here_says_what_to_type(override, problem):
    (found,) = problems_of(override)
    assert problem in found


def test_an_engine_from_python_refuses_what_it_would_ignore():
    from interlock.core.assemble import assemble

    with pytest.raises(ConfigError, match="is one text; give a list"):
        assemble("attention=gqa")
    with pytest.raises(ConfigError, match="only the command line runs a run again"):
        assemble(["executor=fixed", "rerun=x"])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"defaults: [\n", "while parsing a flow node"),
        (b"\xff\xfe", "can't decode byte 0xff"),
        (b"defaults:\n  - nosuch: thing\n", "Could not find 'cache/nosuch/thing'"),
    ],
)
def test_a_preset_that_cannot_be_read_is_refused_when_it_is_chosen(run, tmp_path, text, problem):
    (tmp_path / "conf" / "cache").mkdir(parents=True)
    (tmp_path / "conf" / "cache" / "mine.yaml").write_bytes(text)
    folder = f"hydra.searchpath=[file://{tmp_path / 'conf'}]"
    assert any(problem in found for found in run("cache=mine", folder).problems)
    arguments = ("executor=fixed", "workload.num_requests=1", "progress=false")
    assert run(*arguments, folder, "hydra.run.dir=run").status == 0
