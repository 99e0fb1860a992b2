"""The Python side: an engine of overrides, or of a configuration."""

import os
from collections.abc import Sequence

from interlock.conf.assembly import build_engine as build_engine
from interlock.conf.hydra_edge import compose
from interlock.core.engine import Engine
from interlock.core.errors import ConfigError
from interlock.core.registry import Registry, load_registry


def assemble(overrides: Sequence[str] = (), registry: Registry | None = None) -> Engine:
    """The engine that these overrides choose, as on the command line.

        engine = assemble(["attention=mla", "cache=radix", "spec=eagle"])
        engine.submit("def main():")
        for output in engine.outputs(): ...

    In a process that torchrun started as a rank other than 0, this serves rank 0 and exits.

    Raises:
        ConfigError: every problem of the configuration at once.
        CheckpointError: the model's files are not what they should be.
    """
    if isinstance(overrides, str):
        raise ConfigError(f"overrides={overrides!r} is one text; give a list of them")
    registry = registry or load_registry()
    config = compose(overrides, registry)
    if config.rerun is not None:
        raise ConfigError(f"rerun={config.rerun}: only the command line runs a run again")
    return build_engine(config, registry, environment=os.environ)
