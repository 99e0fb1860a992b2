"""A config.json with any field replaced by anything is described or refused, at once."""

import time
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.core.errors import CheckpointError
from interlock.core.model import ModelDescription
from tests.models.loading import FAMILIES
from tests.models.test_family_contract import SHAPE_OF, config_of

CONFIGS = {name: config_of(shape) for name, shape in SHAPE_OF.items()}
ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(-4, 4), st.sampled_from([10**9, 10**30]),
    st.floats(), st.text(max_size=4), st.lists(st.integers(-2, 9), max_size=3),
    st.dictionaries(st.sampled_from(["rope_type", "factor", "rope_theta"]), st.floats()),
)  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
@settings(max_examples=25, deadline=None)
@given(st.data())
def test_a_garbled_field_is_described_or_refused_at_once(name: str, data: Any) -> None:
    config = dict(CONFIGS[name])
    for key in data.draw(st.lists(st.sampled_from(sorted(config)), min_size=1, max_size=3)):
        config[key] = data.draw(ANYTHING)
    family = next(f for f in FAMILIES if f.name == name)
    start_s = time.process_time()
    with suppress(CheckpointError):
        assert isinstance(family.describe(config, name), ModelDescription)
    assert time.process_time() - start_s < 2
