"""`interlock explain`: what would run, what stands in its way, and who needs whom."""

import shutil

import pytest

from interlock.conf.find_model import describe_models, find_model
from interlock.conf.hydra_edge import compose
from interlock.core.capabilities import KeepsPages, RunsModel, ServesAttention, SharesPages
from interlock.core.errors import ConfigError
from interlock.core.registry import load_registry
from interlock.core.resolver import resolve
from interlock.driver.explain import chain, explanation, main, offered, refusals


def resolution(*overrides):
    config = compose(overrides)
    return resolve(config, load_registry(), describe_models(config, load_registry()))


def explained(*overrides):
    found = resolution(*overrides)
    return list(explanation(found, refusals(found)))


def test_an_accepted_composition_is_explained_with_its_chain(capsys):
    assert main(["attention=mla", "cache=contiguous", "spec=eagle2"], load_registry()) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "This would run."
    assert "  spec=eagle2 looks for RunsModel: executor=torch" in lines
    assert "  model=tiny-mla looks for ServesAttention(latent): attention=mla" in lines
    assert not any("efused" in line for line in lines)


def test_a_refused_one_gives_every_reason_and_the_changes_that_would_work(capsys):
    chosen = ["model=tiny-mla", "attention=gqa", "cache=radix", "cache/allocator=contiguous"]
    assert main(chosen, load_registry()) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "This would NOT run."
    problems = lines[lines.index("Refused:") + 1 :]
    assert len(problems) == 2
    assert any("any of these would work: attention=" in line for line in problems)
    assert any("cache/allocator=paged" in line for line in problems)
    assert "  cache/index=radix looks for SharesPages: nobody (refused)" in lines


def test_a_length_that_the_model_does_not_have_is_refused_as_a_run_refuses_it(capsys):
    assert main(["max_model_len=5000"], load_registry()) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "This would NOT run."
    assert "  - max_model_len=5000 is beyond the 1024 positions of model tiny-gqa" in lines
    assert main(["max_model_len=5000", "executor=fixed"], load_registry()) == 0


def test_a_workload_that_lacks_its_file_is_refused_as_a_run_refuses_it(capsys):
    assert main(["workload=trace", "executor=fixed"], load_registry()) == 1
    said = capsys.readouterr().out
    assert said.startswith("This would NOT run.")
    assert "workload.path" in said[said.index("Refused:") :]
    found = ["workload=trace", "workload.path=/anywhere", "executor=fixed"]
    assert main(found, load_registry()) == 0


def test_each_change_that_it_names_works():
    found = resolution("model=tiny-gqa", "cache=radix", "cache/allocator=contiguous")
    (problem,) = found.problems
    for remedy in problem.remedies:
        changes = ["cache/allocator=contiguous", "cache=radix", remedy]
        keys = [change.partition("=")[0] for change in changes]
        kept = [c for c, key in zip(changes, keys, strict=True) if keys.count(key) == 1] + [remedy]
        kept = list(dict.fromkeys(kept))
        assert not resolution("model=tiny-gqa", *kept).problems, remedy


def test_the_chain_names_what_was_looked_for_and_every_provider():
    found = resolution("model=tiny-gqa", "cache=radix", "cache/tiers=cpu")
    links = {(link.source, link.capability): link for link in chain(found)}
    assert links["cache/index=radix", SharesPages()].providers == ("cache/allocator=paged",)
    assert links["cache/tiers=cpu", KeepsPages()].providers == ("cache/index=radix",)
    heads = links[f"model={found.model.name}", ServesAttention("heads")]
    assert heads.providers == ("attention=gqa",)
    assert all(link.met for link in links.values())
    for link in links.values():
        for provider in link.providers:
            assert link.capability in offered(found)[provider]


def test_one_of_two_capabilities_is_enough_and_the_missing_one_is_no_alarm():
    lines = explained("model=tiny-gqa", "executor=fixed", "spec=eagle")
    assert lines[0] == "This would run."
    assert "  spec=eagle looks for RunsModel: nobody (works without)" in lines
    assert "  spec=eagle looks for SimulatesDrafts: executor=fixed" in lines


def test_looking_for_what_must_not_be_there_is_met_by_nobody():
    found = resolution("model=tiny-gqa", "executor=fixed", "numerics=batch_invariant")
    links = [link for link in chain(found) if link.capability == RunsModel()]
    assert any(not link.met for link in links)


def test_all_components_are_shown_and_those_of_strangers_with_their_package():
    lines = explained("model=tiny-gqa")
    for seam in load_registry().components:
        assert any(line.strip().startswith(f"{seam[0]}=") for line in lines)


def test_no_weight_is_read(tmp_path):
    """A model directory of which only the description is there is explained all the same."""
    formats = list(load_registry().formats.values())
    shipped = find_model("tiny-gqa", formats).path
    shutil.copytree(shipped, tmp_path / "model", ignore=shutil.ignore_patterns("*.safetensors"))
    (tmp_path / "model" / "model.safetensors").write_bytes(b"no weights")
    assert main([f"model={tmp_path / 'model'}"], load_registry()) == 0


@pytest.mark.parametrize(
    ("argument", "wrong"),
    [("-m", "choices and settings only"), ("spec=egale", "did you mean 'eagle'")],
)
def test_a_mistyped_argument_is_refused(argument, wrong):
    with pytest.raises(ConfigError, match=wrong):
        main([argument], load_registry())
