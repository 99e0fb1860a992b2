"""One oracle checkpoint a shape, made once a test session."""

import pytest

from tests.models.oracle import SHAPES, Oracle, write_oracle

_made: dict[str, Oracle] = {}


@pytest.fixture(params=sorted(SHAPES))
def oracle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    """The checkpoint of each shape in turn."""
    if request.param not in _made:
        _made[request.param] = write_oracle(tmp_path_factory.mktemp("model"), request.param)
    return _made[request.param]
