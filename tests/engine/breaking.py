"""Runs a busy engine with one component of the test's own until it is stopped."""

import pytest

from interlock.core.capabilities import (
    DrivesVirtualTime,
    KeepsPages,
    SharesPages,
    none_provided,
)
from interlock.core.errors import ContractError
from tests.engine.serving import Client, asking, build, registry_with, tokens

PROVIDED = {
    "allocator": lambda _config, _model: (SharesPages(),),
    "index": lambda _config, _model: (KeepsPages(),),
    "executor": lambda _config, _model: (DrivesVirtualTime(),),
}


def stopped(seam, make, model=None, **settings):
    """The message with which a busy engine with this component stops."""
    registry = registry_with(seam, make, provides=PROVIDED.get(seam, none_provided))
    settings = {"num_pages": 12, "budget_tokens": 12, seam: "ours", **settings}
    client = Client(build(model, registry, **settings))
    shared = tokens(9, salt=1)
    client.submit(*(asking(i, (*shared, i + 2), 12) for i in range(4)))
    client.submit(*(asking(4 + i, (*shared, i + 2), 12, arrival_s=9.0) for i in range(4)))
    with pytest.raises(ContractError) as caught:
        client.finish()
    return str(caught.value)
