"""What `adapters=` may say, and files that are no adapter."""

import dataclasses
import json
import os

import pytest
import torch
from safetensors.torch import load_file, save_file

from interlock.conf.hydra_edge import compose
from interlock.conf.read_adapters import read_adapters
from interlock.core.adapters import AdapterSet
from interlock.core.assemble import build_engine
from interlock.core.errors import CheckpointError, ConfigError, InterlockError
from interlock.core.request import Request, SamplingParams, Status
from interlock.core.settings import Choice
from interlock.core.testing.tiny import write_tiny_checkpoint
from interlock.core.testing.tiny_adapter import write_adapter, write_merged
from interlock.driver.run import run
from interlock.plugins.frontend import PromptsConfig
from interlock.plugins.models import model_families
from tests.engine.serving import configured, serve

FAMILIES = model_families()
PROMPT = tuple(2 + (7 * i * i + i) % 60 for i in range(19))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny_checkpoint(tmp_path_factory.mktemp("m") / "model", "gqa", FAMILIES)


def engine_with(model, *adapters, **choices):
    config = configured(model, **{"attention": "gqa", **choices})
    return build_engine(dataclasses.replace(config, adapters=tuple(map(str, adapters))))


def test_a_name_stands_before_a_colon_and_is_the_folders_otherwise(model, tmp_path, monkeypatch):
    real = write_adapter(tmp_path / "v3", model, ["q_proj"])
    (tmp_path / "lr=1e-4:b").mkdir()
    odd = write_adapter(tmp_path / "lr=1e-4:b" / "schön", model, ["q_proj"])
    (tmp_path / "linked").symlink_to(real)
    monkeypatch.chdir(real)
    stated = ["a b:.", ".", str(tmp_path / "linked"), str(odd), f"y:{odd}"]
    found = AdapterSet(read_adapters(stated))
    assert found.names == ("a b", "v3", "linked", "schön", "y")
    assert len(set(found.digests)) == 1
    with pytest.raises(ConfigError, match="two are called 'linked'"):
        read_adapters(["../linked", "../v3/../linked/"])


def test_the_command_line_takes_names_without_quotes():
    config = compose(["adapters=[fr:../a/french-2.1, /b/german]"])
    assert config.adapters == ("fr:../a/french-2.1", "/b/german")


@pytest.mark.parametrize(("stated", "reason"), [
    ("a=/nowhere", "a=/nowhere/adapter_config.json is missing"),
    ("/nowhere", "given as DIRECTORY or NAME:DIRECTORY"),
    (":/nowhere", "one has no name"),
    ("x" * 300, "File name too long"),
    ("a\0b", "embedded null byte"),
    ("~nobody-of-this-name/x", "is missing"),
])  # fmt: skip
def test_a_folder_that_is_none_is_refused_with_the_reason(stated, reason):
    with pytest.raises(ConfigError, match=reason):
        read_adapters([stated])


def test_a_file_that_cannot_be_read_is_named(model, tmp_path):
    adapter = write_adapter(tmp_path / "a", model, ["q_proj"])
    (adapter / "adapter_config.json").unlink()
    (adapter / "adapter_config.json").mkdir()
    with pytest.raises(ConfigError, match=r"adapter_config\.json cannot be read: Is a directory"):
        read_adapters([str(adapter)])


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is unreadable for root")
def test_a_folder_without_permission_is_named(model, tmp_path):
    adapter = write_adapter(tmp_path / "a", model, ["q_proj"])
    adapter.chmod(0)
    with pytest.raises(ConfigError, match="cannot be read: Permission denied"):
        read_adapters([str(adapter)])


@pytest.mark.parametrize(("change", "reason"), [
    ({"rank_pattern": {"q_proj": "x"}}, "rank_pattern={'q_proj': 'x'} does not map"),
    ({"rank_pattern": {"q_proj": 0}}, "does not map regular expressions to integers > 0"),
    ({"rank_pattern": {"q_(proj": 2}}, "does not map regular expressions to integers > 0"),
    ({"rank_pattern": ["q_proj"]}, "does not map regular expressions to integers > 0"),
    ({"alpha_pattern": {"q_proj": -1.5}}, "does not map regular expressions to numbers > 0"),
    ({"init_lora_weights": "pissa_niter_4"}, "belongs to changed weights of the model"),
    ({"use_bdlora": {"nblocks": 2}}, "use_bdlora={'nblocks': 2} is not served"),
])  # fmt: skip
def test_config_fields_that_cannot_be_followed_are_refused(model, change, reason, tmp_path):
    adapter = write_adapter(tmp_path / "a", model, ["q_proj"], **change)
    with pytest.raises(CheckpointError, match="adapter a") as caught:
        engine_with(model, adapter)
    assert reason in str(caught.value)


def test_an_adapter_without_tensors_is_refused(model, tmp_path):
    adapter = write_adapter(tmp_path / "a", model, ["no_such_layer"])
    with pytest.raises(CheckpointError, match=r"adapter_model\.safetensors holds no tensors"):
        engine_with(model, adapter)


@pytest.mark.parametrize("module", ["kv_b_proj", "mlp.gate", "lm_head"])
def test_a_module_that_takes_no_adapter_is_refused_by_name(module, tmp_path):
    latent = write_tiny_checkpoint(tmp_path / "model", "mla_moe", FAMILIES)
    adapter = write_adapter(tmp_path / "a", latent, ["q_b_proj", module])
    with pytest.raises(CheckpointError, match="but not to kv_b_proj") as caught:
        engine_with(latent, adapter, attention="mla")
    assert f"{module}.lora_A.weight" in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("rank", [1, 40])
def test_any_rank_and_stored_dtype_on_some_layers_gives_the_merged_tokens(
    model, rank, dtype, tmp_path
):
    one = write_adapter(tmp_path / "a", model, ["1.self_attn.v_proj", "0.mlp.up_proj"], 5, rank)
    tensors = load_file(one / "adapter_model.safetensors")
    save_file({k: x.to(dtype) for k, x in tensors.items()}, one / "adapter_model.safetensors")
    merged = write_merged(tmp_path / "merged", model, one)
    sampled = SamplingParams(max_tokens=20, temperature=1.0, seed=3)
    ours = serve(engine_with(model, one), Request(0, PROMPT, sampled, adapter="a"))[0]
    right = serve(engine_with(merged), Request(0, PROMPT, sampled))[0]
    assert ours.output_token_ids == right.output_token_ids


@pytest.mark.parametrize("spec", ["none", "ngram"])
def test_an_adapter_with_a_nan_fails_its_own_requests_alone(model, spec, tmp_path):
    good, bad = (write_adapter(tmp_path / name, model, ["k_proj", "v_proj"]) for name in "ab")
    tensors = load_file(bad / "adapter_model.safetensors")
    next(iter(tensors.values()))[:] = torch.nan
    save_file(tensors, bad / "adapter_model.safetensors")
    sampling = SamplingParams(max_tokens=8)
    asked = [Request(i, PROMPT[i:], sampling, adapter=(None, "a", "b")[i % 3]) for i in range(9)]
    made = engine_with(model, good, bad, index="radix", spec=spec, num_pages=20)
    records = serve(made, *asked)
    single = {
        r.index: serve(engine_with(model, good), r)[r.index] for r in asked if r.index % 3 < 2
    }
    for index, record in records.items():
        if index % 3 == 2:
            assert record.status is Status.FAILED
            assert "a logit is NaN" in record.error
        else:
            assert record.output_token_ids == single[index].output_token_ids


def test_a_failed_step_leaves_no_adapter_selected(model, tmp_path):
    adapter = write_adapter(tmp_path / "a", model, ["q_proj"])
    made = engine_with(model, adapter)
    adapters, decoder = made.core.intake.adapters, made.executor._decoder

    def broken(*_inputs):
        assert [number for number, _ in adapters.active] == [0]
        raise RuntimeError("broken")

    decoder.forward = broken
    made.submit(Request(0, PROMPT, adapter="a"))
    with pytest.raises(RuntimeError, match="broken"):
        made.step()
    assert adapters.active == ()


def test_a_run_records_its_adapters_and_is_not_repeated_with_other_ones(model, tmp_path, capsys):
    adapter = write_adapter(tmp_path / "a", model, ["q_proj"])
    path = tmp_path / "w.jsonl"
    path.write_text(json.dumps({"prompt_token_ids": PROMPT, "adapter": "fr", "max_tokens": 3}))
    config = configured(model, attention="gqa", workload=PromptsConfig(path=str(path)))
    config = dataclasses.replace(config, adapters=(f"fr:{adapter}",))
    assert isinstance(config.choices["workload"], Choice)
    assert run(config, tmp_path / "first", []) == 0
    manifest = json.loads((tmp_path / "first/run.json").read_text())
    digest = read_adapters([str(adapter)])[0].digest.hex()
    assert manifest["adapters"] == {"fr": {"directory": str(adapter), "digest": digest}}
    assert manifest["config"]["adapters"] == [f"fr:{adapter}"]
    assert manifest["counters"]["adapter fr"] == {"requests": 1}
    composition = capsys.readouterr().out
    assert any(line.split()[:2] == ["adapter", "fr"] for line in composition.splitlines())
    again = dataclasses.replace(config, rerun=str(tmp_path / "first"))
    assert run(again, tmp_path / "second", []) == 0
    rerun = json.loads((tmp_path / "second/run.json").read_text())["rerun"]
    assert rerun["same_tokens"]
    write_adapter(adapter, model, ["q_proj"], seed=1)
    with pytest.raises(InterlockError, match="the files of adapter fr have changed since"):
        run(again, tmp_path / "third", [])
