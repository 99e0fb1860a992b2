import subprocess
import sys

import pytest

from interlock.core.capabilities import (
    BatchInvariant,
    Composition,
    ServesAttention,
    ServesSinks,
    ServesSoftCaps,
    ServesTrees,
    ServesWindows,
)
from interlock.core.component import BuildContext
from interlock.core.errors import ConfigError
from interlock.core.model import AttentionSpec, ModelDescription
from interlock.plugins.attention import MlaConfig, components
from interlock.plugins.attention.gqa import GqaAttention
from interlock.plugins.attention.mla import MlaAttention

HEADS = AttentionSpec("heads", 2, 2, 8, 8, 0.5)
LATENT = AttentionSpec("latent", 3, 1, 6, 4, 0.4, None, 8, 4, 2)
MODEL = ModelDescription("m", "llama", 50, 16, 1, 64, (HEADS,), "float32", {})


def test_every_component_builds_a_backend_that_serves_the_forms_it_provides() -> None:
    for component in components():
        config = component.config()
        assert config.name == component.name
        backend = component.make(config, BuildContext(MODEL))
        provided = set(component.provides(config, MODEL))
        assert {ServesWindows(), ServesTrees()} <= provided
        heads = ServesAttention("heads") in provided
        assert (ServesSoftCaps() in provided) == (ServesSinks() in provided) == heads
        for spec in (HEADS, LATENT):
            if ServesAttention(spec.form) in provided:
                assert backend.cache_groups((spec,), 0)[0].layers == (0,)
            else:
                with pytest.raises(ConfigError, match=f"attention={component.name}"):
                    backend.cache_groups((spec,), 0)


def test_layers_of_a_form_that_is_not_served_are_named() -> None:
    with pytest.raises(ConfigError, match=r"attention=gqa .*layers \[4\] have form 'latent'"):
        GqaAttention().cache_groups((HEADS, LATENT), 3)
    with pytest.raises(ConfigError, match=r"attention=mla .*layers \[3\] have form 'heads'"):
        MlaAttention().cache_groups((HEADS, LATENT), 3)


def test_mla_form_is_an_option_of_its_config() -> None:
    component = next(c for c in components() if c.name == "mla")
    backend = component.make(component.config(form="absorbed"), BuildContext(MODEL))
    assert backend.form == "absorbed"


def test_batch_invariant_backends_are_built_when_numerics_says_so() -> None:
    for component in components():
        provided = set(component.provides(component.config(), MODEL))
        if BatchInvariant() in provided:
            context = BuildContext(MODEL, numerics="batch_invariant")
            built = component.make(component.config(), context)
            assert type(built).__name__.startswith("Invariant")
            assert isinstance(built, type(component.make(component.config(), BuildContext(MODEL))))


@pytest.mark.parametrize(
    ("form", "numerics", "refused"),
    [
        ("expanded", "batch_invariant", True),
        ("expanded", "fast", False),
        ("absorbed", "batch_invariant", False),
        ("cost", "batch_invariant", False),
    ],
)
def test_batch_invariant_mla_has_one_form(form: str, numerics: str, refused: bool) -> None:
    config = MlaConfig(form=form)
    component = next(c for c in components() if c.name == "mla")
    settings = {"numerics": numerics}
    reason = component.requires(config, MODEL)[0](
        Composition({}, frozenset(), MODEL, settings=settings)
    )
    assert (reason is not None) == refused
    assert reason is None or "set attention.form=absorbed" in reason


def test_listing_the_components_imports_no_torch() -> None:
    code = (
        "import sys; from interlock.plugins.attention import components; components();"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
