"""`attention.kernel`: what it comes to, and refusals that say why and what to set."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from interlock.core.capabilities import Composition
from interlock.core.component import BuildContext
from interlock.core.errors import ConfigError
from interlock.core.model import AttentionSpec, ModelDescription
from interlock.plugins.attention import GqaConfig, MlaConfig, heads_limit
from interlock.plugins.attention.gqa import GqaAttention, NativeGqaAttention, build
from interlock.plugins.attention.kernel_choice import (
    kernel_requirement,
    reason_against_triton,
    runs_triton,
)
from interlock.plugins.native import library

HEADS = AttentionSpec("heads", 2, 2, 8, 8, 0.5)
MODEL = ModelDescription("m", "llama", 50, 16, 1, 64, (HEADS,), "float32", {})


def serves_all(_model):
    return None


def too_large(_model):
    return "head size 1000 is more than kernels have"


def reasons(config, device="cpu", limit=serves_all, **settings):
    composition = Composition({}, frozenset(), MODEL, device=device, settings=settings)
    found = [r(composition) for r in kernel_requirement(limit)(config, MODEL)]
    return [reason for reason in found if reason is not None]


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (HEADS, None),
        (AttentionSpec("heads", 128, 1, 256, 256, 0.5), None),
        (AttentionSpec("heads", 2, 2, 8, 288, 0.5), "heads of size 288"),
        (AttentionSpec("heads", 258, 2, 8, 8, 0.5), "129 query heads"),
    ],
)
def test_models_whose_heads_fit_no_tile_run_on_torch(spec, reason):
    model = replace(MODEL, attention=(HEADS, spec))
    assert runs_triton("auto", "cuda", "fast", model, heads_limit) == (reason is None)
    found = heads_limit(model)
    assert (found is None) if reason is None else (reason in (found or ""))


def test_fp64_runs_in_the_interpreter_only():
    assert not runs_triton("auto", "cuda", "fast", MODEL, serves_all, "float64")
    assert "float64" in (reason_against_triton("cuda", "fast", MODEL, serves_all, "float64") or "")


@pytest.mark.parametrize("config", [GqaConfig, MlaConfig])
def test_an_unknown_kernel_is_named_with_the_closest_match(config):
    with pytest.raises(ConfigError, match=r"no kernel named 'tritn'; did you mean 'triton'"):
        config(kernel="tritn")


@pytest.mark.parametrize("kernel", ["auto", "torch"])
def test_only_triton_asked_for_by_name_can_be_refused(kernel):
    assert reasons(GqaConfig(kernel=kernel), limit=too_large) == []


def test_triton_on_a_cpu_is_refused_with_what_to_set():
    (reason,) = reasons(GqaConfig(kernel="triton"))
    assert "attention.kernel=triton: device=cpu" in reason
    assert "TRITON_INTERPRET=1" in reason
    assert reason.endswith("or set attention.kernel=torch")


@pytest.mark.parametrize(
    ("device", "settings", "reason"),
    [
        ("cuda", {}, "device=cuda is no CPU"),
        ("cpu", {"dtype": "float16"}, "dtype=float16 is not one of bfloat16, float32, float64"),
        ("cpu", {"cache.dtype": "fp8"}, "cache.dtype=fp8 needs planes that it does not read"),
        ("cpu", {"numerics": "batch_invariant"}, "numerics=batch_invariant needs sums"),
    ],
)
def test_compiled_kernels_are_refused_where_they_do_not_run(device, settings, reason):
    (given,) = reasons(GqaConfig(kernel="native"), device=device, **settings)
    assert given.startswith(f"attention.kernel=native: {reason}")
    assert given.endswith("or set attention.kernel=torch")


def test_compiled_kernels_run_where_a_compiler_is_found():
    assert reasons(GqaConfig(kernel="native"), dtype="bfloat16") == []


@pytest.fixture
def no_compiler(monkeypatch):
    library.tried.cache_clear()
    monkeypatch.setattr(library, "COMPILERS", ("no-such-compiler",))
    yield
    library.tried.cache_clear()


@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler_auto_is_torch_and_native_is_refused():
    (reason,) = reasons(GqaConfig(kernel="native"))
    assert "no C++ compiler (no-such-compiler) is on the path; install a C++ compiler" in reason
    context = BuildContext(MODEL, torch.device("cpu"), torch.float32)
    assert type(build(GqaConfig(), context)) is GqaAttention


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [("auto", NativeGqaAttention), ("native", NativeGqaAttention), ("torch", GqaAttention)],
)
def test_on_a_cpu_the_option_decides_what_is_built(kernel, kind):
    context = BuildContext(MODEL, torch.device("cpu"), torch.bfloat16)
    assert type(build(GqaConfig(kernel=kernel), context)) is kind


def test_triton_is_refused_where_bits_must_not_depend_on_the_batch():
    (reason,) = reasons(GqaConfig(kernel="triton"), device="cuda", numerics="batch_invariant")
    assert "numerics=batch_invariant" in reason


def test_triton_is_refused_for_a_model_that_its_kernels_cannot_compute():
    (reason,) = reasons(GqaConfig(kernel="triton"), device="cuda:1", limit=too_large)
    assert "head size 1000" in reason


@pytest.mark.parametrize(
    ("kernel", "device", "numerics", "limit", "triton"),
    [
        ("auto", "cpu", "fast", serves_all, False),
        ("auto", "cuda", "fast", serves_all, True),
        ("auto", "cuda:1", "batch_invariant", serves_all, False),
        ("auto", "cuda", "fast", too_large, False),
        ("torch", "cuda", "fast", serves_all, False),
        ("triton", "cuda", "fast", serves_all, True),
    ],
)
def test_auto_is_triton_where_it_can_run_on_a_gpu(kernel, device, numerics, limit, triton):
    assert runs_triton(kernel, device, numerics, MODEL, limit) == triton


def test_without_the_package_auto_is_torch_and_triton_is_refused(monkeypatch):
    monkeypatch.setattr("interlock.plugins.attention.kernel_choice.find_spec", lambda _name: None)
    assert not runs_triton("auto", "cuda", "fast", MODEL, serves_all)
    assert "install triton" in (reason_against_triton("cuda", "fast", MODEL, serves_all) or "")


def test_in_the_interpreter_triton_may_be_asked_for_on_a_cpu():
    code = (
        "from interlock.plugins.attention.kernel_choice import reason_against_triton as why;"
        "print(why('cpu', 'fast', None, lambda model: None))"
    )
    env = {**os.environ, "TRITON_INTERPRET": "1"}
    told = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert told.stdout.strip() == "None", told.stderr
