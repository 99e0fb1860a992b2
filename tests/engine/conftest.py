"""Tiny random models, written once."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from interlock.core.assemble import assemble
from interlock.core.registry import load_registry
from interlock.core.testing.tiny import TinyKind, write_tiny_checkpoint
from interlock.core.testing.tiny_eagle import write_tiny_eagle
from tests.engine.tiers import KINDS, base, outputs, serve, tiny

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


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The directory of a tiny model of every kind of cache group, by kind."""
    return {kind: tiny(tmp_path_factory.mktemp("tiered"), kind) for kind in KINDS}


@pytest.fixture(scope="session")
def alone(models: dict[str, Path]) -> Callable[..., list[tuple[int, ...]]]:
    """Tokens of prompts each run alone without a cache, on a model of this kind."""
    known: dict[tuple[str, tuple[int, ...]], tuple[int, ...]] = {}

    def of(kind: str, prompts: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
        for prompt in prompts:
            if (kind, prompt) not in known:
                engine = assemble(base(models[kind], "cache=none"))
                known[kind, prompt] = outputs(serve(engine, [prompt]))[0]
        return [known[kind, prompt] for prompt in prompts]

    return of
