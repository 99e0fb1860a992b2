"""LoRA adapters against models into which they were merged."""

import dataclasses
import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from interlock.conf.read_adapters import read_adapters
from interlock.core.adapters import AdapterSet
from interlock.core.assemble import build_engine
from interlock.core.checkpoint import describe_model, load_decoder
from interlock.core.errors import CheckpointError, ConfigError
from interlock.core.parallel import Placement
from interlock.core.request import Request, SamplingParams, Status
from interlock.core.testing.tiny import dense_attend, write_tiny_checkpoint
from interlock.core.testing.tiny_adapter import write_adapter, write_merged
from interlock.core.testing.tiny_eagle import write_tiny_eagle
from interlock.driver import cli
from interlock.plugins.models import model_families
from interlock.plugins.models.hugging_face import HuggingFaceDirectory
from tests.engine.serving import configured, serve

CPU = torch.device("cpu")
FAMILIES = model_families()
ATTENTION = ("q_proj", "v_proj", "o_proj", "q_b_proj", "q_a_proj", "kv_a_proj_with_mqa")
EVERYTHING = (*ATTENTION, "k_proj", "gate_proj", "up_proj", "down_proj")
PROMPT = tuple(2 + (7 * i * i + i) % 60 for i in range(19))


@pytest.fixture(scope="module", params=["gqa", "mla_moe"])
def model(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp(request.param) / "model"
    write_tiny_checkpoint(directory, request.param, FAMILIES)
    write_tiny_eagle(directory / "eagle", directory)
    return directory


def logits(directory, adapters=(), of=None, ids=PROMPT):
    placed = AdapterSet(read_adapters([str(one) for one in adapters]))
    placement = Placement(torch.float64, CPU, adapters=placed)
    decoder = load_decoder(
        describe_model(HuggingFaceDirectory(directory), FAMILIES), FAMILIES, placement
    )
    placed.select(None if of is None else torch.tensor(of))
    attend = dense_attend(decoder.description)
    with torch.inference_mode():
        return decoder.logits(decoder.forward(torch.tensor(ids), torch.arange(len(ids)), attend))


@pytest.mark.parametrize("modules", [ATTENTION, EVERYTHING], ids=["attention", "everything"])
def test_logits_equal_those_of_the_merged_model(model, modules, tmp_path):
    adapter = write_adapter(tmp_path / "a", model, modules, seed=3)
    merged = write_merged(tmp_path / "merged", model, adapter)
    ours = logits(model, [adapter], [0] * len(PROMPT))
    torch.testing.assert_close(ours, logits(merged), rtol=0, atol=1e-9)
    assert (ours - logits(model)).abs().max() > 0.1


def test_transformers_gives_the_same_logits_for_the_merged_model(model, tmp_path):
    transformers = pytest.importorskip("transformers")
    adapter = write_adapter(tmp_path / "a", model, EVERYTHING)
    merged = write_merged(tmp_path / "merged", model, adapter)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        merged, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    with torch.inference_mode():
        expected = theirs(input_ids=torch.tensor([PROMPT]), use_cache=False).logits[0]
    ours = logits(model, [adapter], [0] * len(PROMPT))
    assert (ours - expected).abs().max() < 2e-4


@pytest.mark.parametrize("config", [
    {"use_rslora": True, "lora_alpha": 3},
    {"r": 8, "lora_alpha": 4, "rank_pattern": {"_proj": 2}, "alpha_pattern": {".*q_.*proj": 3}},
    {"r": 8, "lora_alpha": 4, "rank_pattern": {".*": 2}},
])  # fmt: skip
def test_the_scale_follows_rank_and_alpha(config, tmp_path):
    model = write_tiny_checkpoint(tmp_path / "model", "gqa", FAMILIES)
    adapter = write_adapter(tmp_path / "a", model, ["q_proj"], **config)
    if "rank_pattern" not in config:
        scale = 3 / 2**0.5
    elif "_proj" in config["rank_pattern"]:  # matches a whole last name only: q_proj keeps r=8
        with pytest.raises(CheckpointError, match="misshapen"):
            logits(model, [adapter])
        return
    else:
        scale = 4 / 2
    merged = write_merged(tmp_path / "merged", model, adapter, scale)
    ours = logits(model, [adapter], [0] * len(PROMPT))
    torch.testing.assert_close(ours, logits(merged), rtol=0, atol=1e-9)


@pytest.mark.parametrize("spec", ["none", "ngram", "eagle"])
@pytest.mark.parametrize("index", ["radix", "block_hash"])
def test_a_mixed_batch_gives_each_request_the_tokens_of_its_own_merged_model(
    model, index, spec, tmp_path
):
    adapters = [write_adapter(tmp_path / n, model, EVERYTHING, seed) for seed, n in enumerate("ab")]
    models = {None: model}
    for path in adapters:
        models[path.name] = write_merged(tmp_path / f"merged-{path.name}", model, path)
    engine = engine_with(model, adapters, index=index, spec=spec, num_pages=24, budget_tokens=24)
    sampled = SamplingParams(temperature=0.8, seed=4, max_tokens=12)
    asked = [
        Request(i, PROMPT, sampled if i % 2 else SamplingParams(max_tokens=12), adapter=name)
        for i, name in enumerate([None, "a", "b", "b", "a", None])
    ]
    records = serve(engine, *asked)
    again = serve(engine, *(dataclasses.replace(one, index=6 + one.index) for one in asked))
    for request in asked:
        alone = build_engine(
            configured(models[request.adapter], attention="reference", index="none")
        )
        right = serve(alone, dataclasses.replace(request, adapter=None))[request.index]
        assert records[request.index].output_token_ids == right.output_token_ids
        assert again[6 + request.index].output_token_ids == right.output_token_ids
        assert again[6 + request.index].cached_tokens >= 16 - 4


def engine_with(model, adapters, **choices):
    config = configured(model, attention="reference", **choices)
    return build_engine(dataclasses.replace(config, adapters=tuple(map(str, adapters))))


def test_pages_are_shared_by_the_content_of_an_adapter_not_by_its_name(tmp_path):
    model = write_tiny_checkpoint(tmp_path / "model", "gqa", FAMILIES)
    one = write_adapter(tmp_path / "one", model, ["q_proj"], seed=1)
    same = write_adapter(tmp_path / "same", model, ["q_proj"], seed=1)
    other = write_adapter(tmp_path / "other", model, ["q_proj"], seed=2)
    engine = engine_with(model, [one, same, other], index="radix")
    hits = [
        serve(engine, Request(i, PROMPT, SamplingParams(max_tokens=1), adapter=name))[i]
        for i, name in enumerate([None, "one", "same", "other", "other"])
    ]
    assert [record.cached_tokens for record in hits] == [0, 0, 16, 0, 16]


def test_an_unknown_adapter_ends_only_its_request(tmp_path):
    model = write_tiny_checkpoint(tmp_path / "model", "gqa", FAMILIES)
    adapter = write_adapter(tmp_path / "french", model, ["q_proj"])
    sampling = SamplingParams(max_tokens=2)
    records = serve(
        engine_with(model, [adapter]),
        Request(0, PROMPT, sampling, adapter="frensh"),
        Request(1, PROMPT, sampling, adapter="french"),
        Request(2, PROMPT, sampling, adapter=7),
    )
    assert "did you mean 'french'" in records[0].error
    assert records[1].status is Status.FINISHED
    assert "adapter=7 is not a name" in records[2].error
    without = serve(engine_with(model, []), Request(0, PROMPT, sampling, adapter="french"))[0]
    assert "this engine has none" in without.error


def test_adapters_that_are_not_there_or_share_a_name_are_refused_together(tmp_path):
    model = write_tiny_checkpoint(tmp_path / "model", "gqa", FAMILIES)
    adapter = write_adapter(tmp_path / "a", model, ["q_proj"])
    with pytest.raises(ConfigError) as caught:
        read_adapters([str(adapter), f"a:{adapter}", str(tmp_path / "nothing")])
    assert "two are called 'a'" in str(caught.value)
    assert "nothing/adapter_model.safetensors is missing" in str(caught.value)
    assert [one.name for one in read_adapters([f"x:{adapter}"])] == ["x"]


@pytest.mark.parametrize(("change", "reason"), [
    ({"use_dora": True}, "use_dora=True"),
    ({"bias": "all"}, "bias='all'"),
    ({"peft_type": "IA3"}, "peft_type='IA3'"),
    ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
    ({"r": 0}, "r=0"),
    ({"lora_alpha": "x"}, "lora_alpha='x'"),
])  # fmt: skip
def test_what_is_no_plain_low_rank_adapter_is_refused_by_field(change, reason, tmp_path):
    model = write_tiny_checkpoint(tmp_path / "model", "gqa", FAMILIES)
    adapter = write_adapter(tmp_path / "a", model, ["q_proj"], **change)
    with pytest.raises(CheckpointError, match="adapter a") as caught:
        logits(model, [adapter])
    assert reason in str(caught.value)


@pytest.mark.parametrize("damage", ["extra", "shape", "half", "embedding", "truncated"])
def test_tensors_that_do_not_fit_the_model_are_named(damage, tmp_path):
    model = write_tiny_checkpoint(tmp_path / "model", "gqa", FAMILIES)
    adapter = write_adapter(tmp_path / "a", model, ["q_proj"])
    file = adapter / "adapter_model.safetensors"
    tensors = load_file(file)
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    if damage == "extra":
        tensors[name.replace("layers.0", "layers.9")] = tensors[name].clone()
    elif damage == "shape":
        tensors[name] = tensors[name][:, :-1].clone()
    elif damage == "half":
        del tensors[name]
    elif damage == "embedding":
        tensors["base_model.model.model.embed_tokens.lora_embedding_A"] = torch.ones(2, 64)
    save_file(tensors, file)
    if damage == "truncated":
        file.write_bytes(file.read_bytes()[:-8])
        name = str(file)
    with pytest.raises(CheckpointError) as caught:
        logits(model, [adapter])
    expected = {"extra": "layers.9", "embedding": "lora_embedding_A"}.get(damage, name)
    assert expected in str(caught.value)


def test_a_family_that_serves_no_adapters_is_refused(tmp_path):
    llama = next(one for one in FAMILIES if "LlamaForCausalLM" in one.architectures)

    class Deaf(type(llama)):
        def build(self, description, weights, placement):
            without = dataclasses.replace(placement, adapters=AdapterSet())
            return super().build(description, weights, without)

    model = write_tiny_checkpoint(tmp_path / "model", "gqa", [Deaf()])
    adapter = write_adapter(tmp_path / "a", model, ["q_proj"])
    placement = Placement(torch.float32, CPU, adapters=AdapterSet(read_adapters([str(adapter)])))
    with pytest.raises(ConfigError, match="serves none"):
        load_decoder(describe_model(HuggingFaceDirectory(model), [Deaf()]), [Deaf()], placement)


def test_a_workload_line_names_its_adapter_and_a_run_can_be_served_again(tmp_path, monkeypatch):
    model = write_tiny_checkpoint(tmp_path / "model", "gqa", FAMILIES)
    write_adapter(tmp_path / "a", model, ["q_proj"])
    lines = [{"prompt_token_ids": list(PROMPT), "adapter": name} for name in (None, "a", "b")]
    path = tmp_path / "w.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    monkeypatch.chdir(tmp_path)
    first = [f"model={model}", f"adapters=[{tmp_path / 'a'}]", "workload=prompts"]
    assert command(monkeypatch, *first, f"workload.path={path}", "hydra.run.dir=first") == 0
    written = (tmp_path / "first/requests.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in written]
    assert [row["adapter"] for row in rows] == [None, "a", "b"]
    assert rows[0]["output_token_ids"] != rows[1]["output_token_ids"]
    assert "no adapter named 'b'" in rows[2]["error"]
    assert command(monkeypatch, "rerun=first", "hydra.run.dir=second") == 0


def command(monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["interlock", "run", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code
