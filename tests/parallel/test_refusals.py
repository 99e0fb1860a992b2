"""Splits that cannot be are refused before a weight is read, with the numbers."""

import dataclasses
import socket

import pytest

from interlock.core.component import BuildContext
from interlock.core.errors import ConfigError, RankError
from interlock.core.registry import load_registry
from interlock.core.resolver import resolve
from interlock.core.settings import Choice
from interlock.core.testing.tiny import tiny_description
from interlock.plugins.parallel import NoneConfig, TensorConfig
from interlock.plugins.parallel.alone import build as build_alone
from interlock.plugins.parallel.launched import Launch, join_launched
from interlock.plugins.parallel.tensor import build as build_tensor
from tests.engine.serving import base_config


def problems(
    kind="gqa", size=2, devices=0, fields=None, changes=None, executor="torch", **settings
):
    """Why a tiny model of this kind is not split; its first reasons."""
    registry = load_registry()
    model = tiny_description(kind, list(registry.families.values()), **(fields or {}))
    model = dataclasses.replace(model, **(changes or {}))
    base = base_config()
    choices = {
        **base.choices,
        "executor": Choice(executor, registry.components["executor", executor].config()),
        "parallel": Choice("tensor", TensorConfig(size=size)),
    }
    config = dataclasses.replace(base, choices=choices, **settings)
    found = resolve(config, registry, [model], cuda_devices=lambda: devices).problems
    return "\n".join(map(str, found))


@pytest.mark.parametrize("kind", ["gqa", "mha", "mqa", "mla", "mla_moe", "hybrid", "caps", "sinks"])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_four_heads_are_split_over_one_two_or_four_ranks(kind, size):
    assert not problems(kind, size)


def test_heads_that_three_ranks_cannot_share():
    found = problems(size=3)
    assert "parallel.size=3 does not split tiny-gqa: 4 query heads are no multiple of 3" in found
    assert "2 key/value heads are no multiple of 3, nor is 3 a multiple of them" in found
    assert "intermediate_size=64 is no multiple of 3" in found
    assert "parallel.size can be 1, 2, 4" in found
    assert "parallel=none" in found


def test_three_key_value_heads_on_two_ranks():
    fields = {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 8}
    found = problems(fields=fields)
    assert "3 key/value heads are no multiple of 2, nor is 2 a multiple of them" in found
    assert "query heads" not in found
    assert not problems(size=3, fields={**fields, "intermediate_size": 66})
    assert not problems(size=6, fields={**fields, "intermediate_size": 66})


def test_experts_that_do_not_divide():
    found = problems("mla_moe", fields={"n_routed_experts": 6, "n_group": 1}, size=4)
    assert "n_routed_experts=6 is no multiple of 4" in found


def test_a_family_that_builds_whole_models_only():
    found = problems(changes={"splits": None})
    assert "the family 'llama' builds whole models only" in found
    assert not problems(changes={"splits": None}, size=1)


def test_an_executor_that_runs_no_model():
    found = problems(executor="fixed")
    assert "splits a model over parallel.size=2 ranks, and executor=fixed runs no model" in found


def test_numbers_that_depend_on_the_batch():
    found = problems(numerics="batch_invariant")
    assert "parallel=tensor adds up what the ranks computed in an order that depends on" in found
    assert not problems(numerics="batch_invariant", size=1)


@pytest.mark.parametrize(("device", "devices"), [("cuda", 1), ("cuda:1", 4), ("cuda", 0)])
def test_devices_that_are_not_there(device, devices):
    found = problems(device=device, devices=devices)
    assert "2 ranks use cuda:0 to cuda:1 (device=cuda); torch sees" in found


def test_a_device_for_each_rank_is_enough():
    assert not problems(device="cuda", devices=2)


@pytest.mark.parametrize("size", [0, 1025])
def test_sizes_out_of_range(size):
    with pytest.raises(ValueError, match=f"size={size} is not from 1 to 1024"):
        TensorConfig(size=size)


TOLD = {
    "RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "host", "MASTER_PORT": "29500", "TORCHELASTIC_USE_AGENT_STORE": "True",
}  # fmt: skip


def context(**environment):
    model = tiny_description("gqa", list(load_registry().families.values()))
    return BuildContext(model, environment=environment)


def test_what_torchrun_says_is_read():
    assert Launch.of(TOLD) == Launch(1, 4, 1, "host", 29500, True, True)
    assert Launch.of({}) is None
    assert Launch.of({**TOLD, "WORLD_SIZE": "1"}) is None


def test_variables_of_a_launcher_that_are_not_whole():
    with pytest.raises(ConfigError, match=r"WORLD_SIZE is set, but .*MASTER_PORT=None"):
        Launch.of({name: value for name, value in TOLD.items() if name != "MASTER_PORT"})


def test_a_launcher_that_started_another_number_of_processes():
    with pytest.raises(ConfigError, match=r"parallel.size=2, but torchrun started 4 .*size=4"):
        build_tensor(TensorConfig(), context(**TOLD))
    with pytest.raises(ConfigError, match="parallel=none: torchrun started 4 processes"):
        build_alone(NoneConfig(), context(**TOLD))
    assert build_alone(NoneConfig(), context()).world_size == 1


def test_a_port_that_somebody_else_has():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        launch = Launch(0, 2, 0, "127.0.0.1", port, False, True)
        with pytest.raises(RankError, match=rf"rank 0 cannot listen on .* MASTER_PORT={port}: "):
            join_launched(launch, cuda=False)
