"""cache.dtype=fp8 as a setting: what it saves, what it says, who refuses it, whom a NaN ends."""

import dataclasses
import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from interlock.conf import pool_size
from interlock.conf.hydra_edge import compose
from interlock.core.assemble import build_engine
from interlock.core.component import Component
from interlock.core.errors import ConfigError
from interlock.core.registry import load_registry
from interlock.core.request import Status
from interlock.driver.run import run
from tests.engine.serving import asking, configured, outputs, plus, serve


def in_fp8(config, dtype="fp8", **settings):
    return dataclasses.replace(
        config, cache=dataclasses.replace(config.cache, dtype=dtype, **settings)
    )


def test_only_known_dtypes_are_taken():
    with pytest.raises(ConfigError, match=r"cache\.dtype='fp9' is not one of auto, fp8"):
        compose(["cache.dtype=fp9"])


def test_a_simulation_refuses_it_with_the_executors_that_would_work():
    with pytest.raises(ConfigError) as refused:
        build_engine(in_fp8(configured()))
    text = str(refused.value)
    assert "cache.dtype=fp8: executor=fixed stores no rows that could be in fp8" in text
    assert "executor=torch" in text
    assert "cache.dtype=auto" in text


def test_a_backend_that_stores_none_is_refused_with_the_backends_that_do(model_of):
    known = load_registry().components["attention", "gqa"]

    def provides(config, model):
        offered = known.provides(config, model)
        return [one for one in offered if type(one).__name__ != "StoresFp8"]

    exact = Component("attention", "exact", known.config, known.build, "", provides=provides)
    registry = plus(exact)
    config = in_fp8(configured(model_of("gqa"), registry, attention="exact"))
    with pytest.raises(ConfigError) as refused:
        build_engine(config, registry)
    assert "cache.dtype=fp8: attention=exact stores no rows in fp8" in str(refused.value)
    assert "attention=reference, attention=gqa, cache.dtype=auto" in str(refused.value)
    build_engine(in_fp8(config, "auto"), registry).close()


@pytest.mark.parametrize(("kind", "attention"), [("gqa", "gqa"), ("mla_moe", "mla")])
def test_memory_holds_more_pages_by_as_much_as_the_planes_are_smaller(
    model_of, kind, attention, monkeypatch
):
    monkeypatch.setattr(pool_size, "_lendable_bytes", lambda _device: 200_000)
    pages, sizes = {}, {}
    for dtype in ("auto", "fp8"):
        config = configured(model_of(kind), attention=attention, max_requests=64)
        engine = build_engine(in_fp8(config, dtype, num_pages=None))
        planes = [p for layer in engine.planes.of_layer.values() for p in layer.values()]
        held = sum(p[:1].nbytes for p in planes) // engine.planes.page_size
        sizes[dtype] = engine.planes.layout.bytes_per_token(engine.dtype.itemsize)
        assert sizes[dtype] == held
        pages[dtype] = engine.core.cache.pools[0].num_pages
        engine.close()
    assert sizes["fp8"] * 2 < sizes["auto"]  # of fp64; a third of a small latent is a rotated key
    assert pages["fp8"] == pytest.approx(pages["auto"] * sizes["auto"] / sizes["fp8"], rel=0.02)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(("kind", "attention"), [("gqa", "gqa"), ("mla_moe", "mla")])
@pytest.mark.parametrize("spec", ["none", "eagle"])
def test_it_serves_runs_of_16_bits_and_measures_the_rounding_of_e4m3(
    model_of, kind, attention, dtype, spec
):
    config = in_fp8(configured(model_of(kind), attention=attention, spec=spec))
    engine = build_engine(dataclasses.replace(config, dtype=dtype))
    records = serve(engine, *(asking(index, 5 + 9 * index, 8) for index in range(3)))
    assert all(record.status is Status.FINISHED for record in records.values())
    lost = engine.losses()
    assert sorted(lost) == (["k", "v"] if kind == "gqa" else ["latent"])
    assert all(0.015 < error < 0.04 for error in lost.values())


def test_a_reference_run_measures_about_the_same_and_an_exact_one_nothing(model_of):
    found = {}
    for attention, dtype in (("reference", "fp8"), ("gqa", "fp8"), ("gqa", "auto")):
        engine = build_engine(in_fp8(configured(model_of("gqa"), attention=attention), dtype))
        serve(engine, asking(0, 30, 8))
        found[attention, dtype] = engine.losses()
    assert found["gqa", "auto"] == {}
    for name, error in found["reference", "fp8"].items():
        assert error == pytest.approx(found["gqa", "fp8"][name], rel=1e-9)


def test_report_summary_and_manifest_say_what_was_lost(tmp_path, capsys):
    overrides = ["model=tiny-gqa", "cache.dtype=fp8", "workload=synthetic", "progress=false",
                 "workload.num_requests=2", "threads=1"]  # fmt: skip
    assert run(compose(overrides), tmp_path, overrides) == 0
    for name in ("summary.json", "run.json"):
        lost = json.loads((tmp_path / name).read_text())["stored_error"]
        assert sorted(lost) == ["k", "v"]
        assert all(0.015 < error < 0.04 for error in lost.values())
    assert "error of cached rows" in capsys.readouterr().out


def test_pages_of_another_dtype_are_known_by_other_keys(model_of):
    salts = {
        build_engine(in_fp8(configured(model_of("gqa")), dtype)).core.intake.salt
        for dtype in ("auto", "fp8")
    }
    assert len(salts) == 2


@pytest.mark.parametrize(("kind", "attention"), [("gqa", "gqa"), ("mla_moe", "mla")])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_request_with_unusable_rows_fails_alone(model_of, tmp_path, kind, attention, bad):
    """The embedding of one token is NaN or infinite; pages it used serve others afterwards."""
    weights = load_file(model_of(kind) / "model.safetensors")
    weights["model.embed_tokens.weight"][63] = bad
    for name in ("config.json", "generation_config.json"):
        if (model_of(kind) / name).exists():
            (tmp_path / name).write_bytes((model_of(kind) / name).read_bytes())
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    config = in_fp8(configured(tmp_path, attention=attention), num_pages=16)
    good = [asking(index, 9 + index, 6) for index in range(2)]
    poisoned = dataclasses.replace(asking(2, 12, 6), prompt_token_ids=(*range(2, 12), 63, 5))
    alone = {}
    for one in good:
        alone |= outputs(serve(build_engine(config), one))
    engine = build_engine(config)
    records = serve(engine, *good, poisoned)
    assert records.pop(2).status is Status.FAILED
    assert outputs(records) == alone
    again = serve(engine, *(dataclasses.replace(one, arrival_s=0.0) for one in good))
    assert outputs(again) == alone
    assert all(torch.tensor(error).isfinite() for error in engine.losses().values())
