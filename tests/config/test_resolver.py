"""Compositions are accepted or refused by capabilities, with reasons and remedies that work."""

import dataclasses
from collections.abc import Iterable

import pytest

from interlock.core.capabilities import (
    Capability,
    CarriesTokens,
    Requirement,
    ServesAttention,
    ServesSinks,
    ServesSoftCaps,
    ServesWindows,
    needs,
)
from interlock.core.component import Component
from interlock.core.errors import ConfigError, PluginError
from interlock.core.model import AttentionSpec, ModelDescription
from interlock.core.plugin_loading import Contribution, Origin
from interlock.core.registry import Registry
from interlock.core.resolver import resolve
from interlock.core.seams import SEAMS
from interlock.core.settings import Choice, EngineConfig


@dataclasses.dataclass(frozen=True)
class NoOptions:
    pass


@dataclasses.dataclass(frozen=True)
class Moonlit(Capability):
    """A capability nobody in Interlock has heard of."""


def component(
    seam: str,
    name: str,
    provides: Iterable[Capability] = (),
    requires: Iterable[Requirement] = (),
    automatic: bool = False,
) -> Component:
    return Component(
        seam, name, NoOptions, "m:b", "", lambda *_: provides, lambda *_: requires, automatic
    )


def model(name: str = "toy", form: str = "heads", window: int | None = None) -> ModelDescription:
    spec = AttentionSpec(form, 2, 2, 4, 4, 0.5, window)  # type: ignore[arg-type]
    return ModelDescription(name, "toy", 8, 8, 3, 32, (spec,) * 3, "bfloat16", {})


def registry_with(*components: Component) -> Registry:
    """One plain component a seam, and these."""
    everything = (ServesAttention("heads"), ServesAttention("latent"), ServesWindows())
    registry = Registry()
    plain = [component(seam, "plain", everything if seam == "attention" else ()) for seam in SEAMS]
    registry.add(Contribution(Origin("test", "1"), components=[*plain, *components]))
    return registry


def config(**choices: str) -> EngineConfig:
    names = dict.fromkeys(SEAMS, "plain") | {k.replace("__", "/"): v for k, v in choices.items()}
    registry_default = {
        s: Choice(n, None if n == "auto" else NoOptions()) for s, n in names.items()
    }
    return EngineConfig(choices=registry_default)


HEADS = component("attention", "by_heads", [ServesAttention("heads")], automatic=True)
LATENT = component("attention", "by_latent", [ServesAttention("latent")], automatic=True)


@pytest.mark.parametrize(("form", "name"), [("heads", "by_heads"), ("latent", "by_latent")])
def test_auto_becomes_the_automatic_component_that_serves_the_model(form, name):
    resolution = resolve(config(attention="auto"), registry_with(HEADS, LATENT), [model(form=form)])
    assert resolution.require().chosen["attention"].component.name == name
    assert resolution.config.choices["attention"].name == name


def test_model_auto_becomes_the_first_one_that_the_chosen_attention_serves():
    models = [model("first", "heads"), model("second", "latent"), model("third", "latent")]
    resolution = resolve(config(attention="by_latent"), registry_with(HEADS, LATENT), models)
    assert resolution.require().config.model == "second"


@pytest.mark.parametrize(
    ("extras", "capability", "reason"),
    [
        ({"softcap": 50.0}, ServesSoftCaps(), "2 of 3 layers cap attention scores (at 50)"),
        ({"sinks": True}, ServesSinks(), "2 of 3 layers have attention sinks (one a query head)"),
    ],
)
def test_caps_and_sinks_of_a_model_need_attention_that_computes_them(extras, capability, reason):
    plain = model().attention[0]
    special = dataclasses.replace(plain, **extras)
    toy = dataclasses.replace(model(), attention=(special, plain, special))
    able = component("attention", "able", [ServesAttention("heads"), capability], automatic=True)
    registry = registry_with(HEADS, able)
    with pytest.raises(ConfigError) as error:
        resolve(config(attention="by_heads"), registry, [toy]).require()
    (problem,) = error.value.problems
    assert f"model=toy: {reason}, which attention=by_heads does not compute" in problem
    assert "attention=able" in problem
    resolution = resolve(config(attention="auto"), registry, [toy])
    assert resolution.require().chosen["attention"].component.name == "able"


def test_no_model_at_all_is_an_error_that_says_what_to_set():
    with pytest.raises(ConfigError, match="model=auto: no model is shipped here; set model="):
        resolve(config(), registry_with(), [])


def test_attention_that_cannot_serve_the_model_is_refused_naming_both():
    registry = registry_with(HEADS, LATENT)
    with pytest.raises(ConfigError) as error:
        resolve(config(attention="by_heads"), registry, [model(form="latent")]).require()
    (problem,) = error.value.problems
    assert "model=toy: 3 of 3 layers have 'latent' attention" in problem
    assert "attention=by_heads does not compute" in problem
    assert "attention=plain, attention=by_latent" in problem


def test_windows_need_a_backend_that_computes_them():
    resolution = resolve(config(attention="by_heads"), registry_with(HEADS), [model(window=8)])
    (problem,) = resolution.problems
    assert "sliding-window layers (window 8)" in problem.reason
    assert problem.remedies == ("attention=plain",)


def test_a_strangers_capability_is_matched_by_value_and_every_remedy_works():
    wolf = component("spec", "wolf", requires=[needs(Moonlit(), "spec=wolf needs a moonlit index")])
    moon = component("cache/index", "moon", provides=[Moonlit()])
    sun = component("cache/index", "sun")
    registry = registry_with(wolf, moon, sun)
    resolution = resolve(config(spec="wolf", cache__index="sun"), registry, [model()])
    (problem,) = resolution.problems
    assert set(problem.remedies) == {"cache/index=moon", "spec=plain"}
    for remedy in problem.remedies:
        seam, _, name = remedy.partition("=")
        choices = {"spec": "wolf", "cache__index": "sun", seam.replace("/", "__"): name}
        assert not resolve(config(**choices), registry, [model()]).problems


def test_a_change_that_brings_another_problem_is_no_remedy():
    real = component("executor", "real", requires=[needs(CarriesTokens(), "it runs on tokens")])
    cursed = component(
        "workload", "cursed", [CarriesTokens()], [lambda _: "cursed workloads never run"]
    )
    resolution = resolve(config(executor="real"), registry_with(real, cursed), [model()])
    (problem,) = resolution.problems
    assert problem.remedies == ("executor=plain",)
    assert str(problem).startswith("executor=real: it runs on tokens; any of these would work")


def test_a_problem_without_a_single_remedy_says_so():
    both = component(
        "spec", "both", requires=[needs(Moonlit(), "no moon"), needs(CarriesTokens(), "no tokens")]
    )
    registry = registry_with(both)
    del registry.components["spec", "plain"]
    resolution = resolve(config(spec="both"), registry, [model()])
    assert [p.reason for p in resolution.problems] == ["no moon", "no tokens"]
    assert "no single other choice would work" in str(resolution.problems[0])


def test_requirements_see_device_dtype_and_settings():
    seen = []
    curious = component("spec", "curious", requires=[lambda c: seen.append(c)])
    chosen = dataclasses.replace(config(spec="curious"), device="cuda", dtype="auto", seed=5)
    resolution = resolve(chosen, registry_with(curious), [model()], cuda_devices=lambda: 1)
    assert not resolution.problems
    assert (seen[0].device, seen[0].dtype, seen[0].settings["seed"]) == ("cuda", "bfloat16", 5)
    assert seen[0].chosen["spec"][0] == "curious"


def test_a_dtype_that_a_component_refuses_names_dtypes_that_it_takes():
    picky = component(
        "attention",
        "picky",
        [ServesAttention("heads")],
        [lambda c: None if c.dtype == "float64" else f"dtype={c.dtype} is not float64"],
    )
    registry = registry_with(picky)
    (problem,) = resolve(config(attention="picky"), registry, [model()]).problems
    assert problem.remedies == ("attention=plain", "dtype=float64")


@pytest.mark.parametrize(
    ("device", "count", "reason"),
    [
        ("cuda", 0, "device=cuda: torch sees 0 CUDA devices; any of these would work: device=cpu"),
        ("cuda:2", 2, "device=cuda:2: torch sees 2 CUDA devices, 0 to 1"),
        ("cuda:1", 2, None),
        ("cpu", 0, None),
    ],
)
def test_a_device_that_is_not_there_is_refused(device, count, reason):
    chosen = dataclasses.replace(config(), device=device)
    problems = resolve(chosen, registry_with(), [model()], cuda_devices=lambda: count).problems
    assert [str(p).startswith(str(reason)) for p in problems] == ([True] if reason else [])


def test_a_component_that_fails_to_answer_is_named():
    dizzy = component("spec", "dizzy")
    dizzy = dataclasses.replace(dizzy, provides=lambda *_: 1 / 0)
    with pytest.raises(PluginError, match=r"spec=dizzy \(from test 1\) cannot say .*ZeroDivision"):
        resolve(config(spec="dizzy"), registry_with(dizzy), [model()])
