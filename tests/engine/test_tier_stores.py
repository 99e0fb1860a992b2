"""Engines over the stores that ship: a restart finds its pages, and nobody else's."""

import contextlib
import os

import pytest

from interlock.core.assemble import assemble
from interlock.core.errors import ConfigError
from tests.cache.servers import start_valkey
from tests.engine.tiers import assert_nothing_held, base, drain, outputs, serve, tiny, tokens

PROMPTS = [tokens(29, salt) for salt in range(4)]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return [tiny(tmp_path_factory.mktemp("models"), "gqa", seed) for seed in range(2)]


@pytest.fixture(scope="module")
def alone(models):
    return [
        [outputs(serve(assemble(base(model, "cache=none")), [prompt]))[0] for prompt in PROMPTS]
        for model in models
    ]


@contextlib.contextmanager
def engine_over(model, *tiers):
    engine = assemble(base(model, "cache/load=always", "cache.num_pages=12", *tiers))
    try:
        yield engine
    finally:
        engine.close()


def served(engine):
    """Tokens of every prompt, one after the other, and how many pages came from a tier."""
    before = engine.core.cache.tiers.counters.loaded
    tokens_ = [outputs(serve(engine, [prompt]))[0] for prompt in PROMPTS]
    drain(engine)
    assert_nothing_held(engine)
    return tokens_, engine.core.cache.tiers.counters.loaded - before


def on_disk(folder, *more):
    return ("cache/tiers=disk", f"cache.tiers.directory={folder}", *more)


def test_pages_on_a_disk_outlive_the_process_and_are_never_another_models(models, alone, tmp_path):
    with engine_over(models[0], *on_disk(tmp_path)) as engine:
        assert served(engine) == (alone[0], 0)
    with engine_over(models[0], *on_disk(tmp_path)) as engine:
        tokens_, loaded = served(engine)
        assert tokens_ == alone[0]
        assert loaded == 7 * len(PROMPTS)
    with engine_over(models[1], *on_disk(tmp_path)) as engine:
        assert served(engine) == (alone[1], 0)


def test_damage_between_two_processes_is_computed_again(models, alone, tmp_path):
    with engine_over(models[0], *on_disk(tmp_path)) as engine:
        served(engine)
    files = sorted(tmp_path.glob("*/*/*.kv1"))
    for number, file in enumerate(files):
        if number % 8 == 1:
            os.truncate(file, file.stat().st_size // 2)
        elif number % 8 == 5:
            content = bytearray(file.read_bytes())
            content[-number] ^= 1
            file.write_bytes(content)
    with engine_over(models[0], *on_disk(tmp_path)) as engine:
        tokens_, loaded = served(engine)
        assert tokens_ == alone[0]
        assert 0 < loaded < 7 * len(PROMPTS)
        assert engine.core.cache.tiers.counters.missed > 0


def test_memory_before_a_disk_answers_and_the_disk_remembers(models, alone, tmp_path):
    tiers = (
        "cache/tiers=cpu", "cache.tiers.capacity_mib=1", "cache/tiers/below=disk",
        f"cache.tiers.below.directory={tmp_path}",
    )  # fmt: skip
    for loads in (False, True):
        with engine_over(models[0], *tiers) as engine:
            tokens_, loaded = served(engine)
            assert tokens_ == alone[0]
            assert (loaded > 0) == loads
            tokens_, loaded = served(engine)
            assert tokens_ == alone[0]
            assert loaded > 0


def test_engines_share_pages_through_a_server(models, alone):
    with start_valkey() as server:
        tiers = ("cache/tiers=remote", f"cache.tiers.url={server.url}")
        with engine_over(models[0], *tiers) as first, engine_over(models[0], *tiers) as second:
            assert served(first) == (alone[0], 0)
            tokens_, loaded = served(second)
            assert tokens_ == alone[0]
            assert loaded == 7 * len(PROMPTS)


def test_folder_that_is_in_use_stops_the_second_engine_with_the_reason(models, tmp_path):
    with engine_over(models[0], *on_disk(tmp_path)):
        with pytest.raises(ConfigError, match="in use by process"):
            assemble(base(models[0], *on_disk(tmp_path)))


def test_option_out_of_range_is_named(models):
    with pytest.raises(ConfigError, match="capacity_mib=0"):
        assemble(base(models[0], "cache/tiers=cpu", "cache.tiers.capacity_mib=0"))
