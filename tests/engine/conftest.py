"""Tiny random models, written once."""

from collections.abc import Callable
from pathlib import Path

import pytest

from interlock.core.registry import load_registry
from interlock.core.testing.tiny import TinyKind, write_tiny_checkpoint
from interlock.core.testing.tiny_eagle import write_tiny_eagle

ModelOf = Callable[..., Path]


@pytest.fixture(scope="session")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> ModelOf:
    """The directory of a tiny model of this kind, with a random EAGLE head in `eagle`."""
    written: dict[tuple[TinyKind, int, int], Path] = {}

    def model(kind: TinyKind = "gqa", seed: int = 0, positions: int = 512) -> Path:
        key = (kind, seed, positions)
        if key not in written:
            folder = tmp_path_factory.mktemp(f"models-{seed}-{positions}")
            families = list(load_registry().families.values())
            written[key] = write_tiny_checkpoint(
                folder / kind, kind, families, seed=seed, max_position_embeddings=positions
            )
            write_tiny_eagle(written[key] / "eagle", written[key], seed=seed)
        return written[key]

    return model
