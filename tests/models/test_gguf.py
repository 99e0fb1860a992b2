"""GGUF files load as the models they were written from, and as transformers reads them itself."""

import pickle

import gguf
import pytest
import torch
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from interlock.conf.find_model import find_model
from interlock.core.checkpoint import describe_model, load_decoder
from interlock.core.model import Decoder
from interlock.core.parallel import Placement
from interlock.plugins.models import gguf_weights, model_formats
from tests.models.gguf_files import write_gguf
from tests.models.loading import FAMILIES, LOGIT_TOLERANCE, whole_logits
from tests.models.oracle import BASE, random_model_of

IDS = [(7 * i) % 128 for i in range(40)]
TYPES = gguf.GGMLQuantizationType
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
    "beta_fast": 16.0,
}
YARN_METADATA = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 128,
    "rope.scaling.yarn_beta_fast": 16.0,
    "rope.scaling.finetuned": True,
}
LINEAR_METADATA = {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0}
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "decoder_sparse_step": 1,
}
EXPERT_METADATA = {
    "expert_count": 4,
    "expert_used_count": 2,
    "expert_feed_forward_length": 32,
}
GEMMA_FIELDS = {
    **BASE,
    "num_hidden_layers": 7,
    "head_dim": 16,
    "query_pre_attn_scalar": 16,
    "sliding_window": 8,
    "tie_word_embeddings": True,
}
SHAPES = {
    "llama": ("Llama", BASE, {}),
    "llama of equal heads": ("Llama", {**BASE, "num_key_value_heads": 4}, {}),
    "llama of one key head": ("Llama", {**BASE, "num_key_value_heads": 1}, {}),
    "llama with a tied head": ("Llama", {**BASE, "tie_word_embeddings": True}, {}),
    "llama with long heads": ("Llama", {**BASE, "head_dim": 32}, {}),
    "llama with biases": ("Llama", {**BASE, "attention_bias": True, "mlp_bias": True}, {}),
    "llama with yarn": ("Llama", {**BASE, "rope_parameters": YARN}, YARN_METADATA),
    "llama scaled linearly": (
        "Llama",
        {**BASE, "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}},
        LINEAR_METADATA,
    ),
    "llama scaled as in old files": (
        "Llama",
        {**BASE, "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}},
        {"rope.scale_linear": 2.0},
    ),
    "mistral with a window": (
        "Mistral",
        {**BASE, "sliding_window": 8, "head_dim": 16},
        {"attention.sliding_window": 8},
    ),
    "qwen2": ("Qwen2", BASE, {"attention.causal": True, "expert_count": 0}),
    "qwen3": ("Qwen3", {**BASE, "head_dim": 32}, {}),
    "qwen2 with experts": (
        "Qwen2Moe",
        {**BASE, **EXPERTS, "shared_expert_intermediate_size": 48, "norm_topk_prob": False},
        {**EXPERT_METADATA, "expert_shared_feed_forward_length": 48},
    ),
    "qwen3 with experts": (
        "Qwen3Moe",
        {**BASE, **EXPERTS, "head_dim": 16, "norm_topk_prob": True},
        EXPERT_METADATA,
    ),
    "gemma2": (
        "Gemma2",
        {**GEMMA_FIELDS, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 10.0},
        {
            "attention.sliding_window": 8,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 10.0,
        },
    ),
    "gemma2 as wide as the largest": (
        "Gemma2",
        {**GEMMA_FIELDS, "num_hidden_layers": 46, "head_dim": 32, "hidden_size": 64},
        {
            "attention.sliding_window": 8,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
    ),
    "gemma3": (
        "Gemma3",
        {
            **GEMMA_FIELDS,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            },
        },
        {
            "attention.sliding_window": 8,
            "rope.freq_base_swa": 100.0,
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0,
        },
    ),
    "qwen2 with a tied head": ("Qwen2", {**BASE, "tie_word_embeddings": True}, {}),
}
"""transformers' class, its config, and metadata that the config stands for."""


def load_gguf(path, dtype=torch.float32) -> Decoder:
    described = describe_model(find_model(str(path), model_formats()), FAMILIES)
    return load_decoder(described, FAMILIES, Placement(dtype, torch.device("cpu")))


def logits_of(model, ids=IDS):
    with torch.inference_mode():
        return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_file_has_the_logits_of_the_model_it_was_written_from(shape, tmp_path):
    kind, fields, extra = SHAPES[shape]
    model = random_model_of(kind, fields)
    write_gguf(tmp_path / "m.gguf", model, extra=extra)
    difference = whole_logits(load_gguf(tmp_path / "m.gguf"), IDS) - logits_of(model)
    assert difference.abs().max() < LOGIT_TOLERANCE


def test_the_divisors_of_llama_3_are_read_as_its_rope_scaling(tmp_path):
    model = random_model_of("Llama", {**BASE, "head_dim": 64, "rope_parameters": LLAMA3})
    plain = 500000.0 ** -(torch.arange(0, 64, 2, dtype=torch.float64) / 64)
    factors = (plain / model.model.rotary_emb.inv_freq.double()).float().numpy()
    write_gguf(tmp_path / "m.gguf", model, tensors={"rope_freqs.weight": factors})
    difference = whole_logits(load_gguf(tmp_path / "m.gguf"), IDS) - logits_of(model)
    assert difference.abs().max() < LOGIT_TOLERANCE


@pytest.mark.parametrize(
    "kind",
    [
        *(TYPES.F16, TYPES.BF16, TYPES.Q8_0, TYPES.Q4_0, TYPES.Q4_1, TYPES.Q5_0, TYPES.Q5_1),
        *(TYPES.TQ1_0, TYPES.TQ2_0, TYPES.MXFP4),
    ],
    ids=lambda kind: kind.name,
)
def test_quantised_tensors_are_what_gguf_dequantises_in_every_dtype(kind, tmp_path):
    model = random_model_of("Llama", {**BASE, "hidden_size": 256, "intermediate_size": 256})
    stored = write_gguf(tmp_path / "m.gguf", model, kind)
    model.load_state_dict({name: torch.from_numpy(values) for name, values in stored.items()})
    decoder = load_gguf(tmp_path / "m.gguf")
    assert (whole_logits(decoder, IDS) - logits_of(model)).abs().max() < LOGIT_TOLERANCE
    double = load_gguf(tmp_path / "m.gguf", torch.float64).embed(torch.arange(128))
    assert torch.equal(double, model.model.embed_tokens.weight.double())


def test_transformers_reads_the_same_logits_from_the_file_itself(tmp_path):
    model = random_model_of("Llama", {**BASE, "hidden_size": 256, "intermediate_size": 256})
    tokens = {"ggml.tokens": [f"t{i}" for i in range(128)]}
    write_gguf(tmp_path / "m.gguf", model, TYPES.Q4_0, tokenizer=tokens)
    ours = whole_logits(load_gguf(tmp_path / "m.gguf"), IDS)
    assert (ours - logits_of(model)).abs().max() > LOGIT_TOLERANCE  # rounded to 4 bits
    theirs = load_gguf_checkpoint(
        str(tmp_path / "m.gguf"), return_tensors=True, model_to_load=model
    )
    model.load_state_dict(theirs["tensors"])
    assert (ours - logits_of(model)).abs().max() < LOGIT_TOLERANCE


@pytest.mark.parametrize("rows", [1, 3, 10**6])
def test_memory_is_bounded_by_chunks_without_changing_a_value(rows, tmp_path, monkeypatch):
    model = random_model_of("Llama", BASE)
    write_gguf(tmp_path / "m.gguf", model, TYPES.Q8_0)
    whole = whole_logits(load_gguf(tmp_path / "m.gguf"), IDS)
    monkeypatch.setattr(gguf_weights, "CHUNK_VALUES", rows * 64)
    assert torch.equal(whole_logits(load_gguf(tmp_path / "m.gguf"), IDS), whole)


def test_a_part_of_a_tensor_is_that_slice_of_the_whole(tmp_path):
    model = random_model_of("Llama", {**BASE, "attention_bias": True})
    write_gguf(tmp_path / "m.gguf", model, TYPES.Q8_0)
    files = find_model(str(tmp_path / "m.gguf"), model_formats())
    wanted = {
        "model.layers.0.self_attn.q_proj.weight": (slice(16, 32), slice(0, 64)),
        "model.layers.1.self_attn.k_proj.weight": (slice(0, 16),),
        "model.layers.0.self_attn.k_proj.bias": (slice(16, 32),),
        "model.layers.0.mlp.down_proj.weight": (slice(0, 64), slice(10, 47)),
    }
    for name, part in wanted.items():
        cpu = (torch.float32, torch.device("cpu"))
        source = files.weights()
        whole = source.read(name, source.shape(name), *cpu)
        assert torch.equal(source.read(name, source.shape(name), *cpu, part), whole[part])


def test_a_folder_with_one_file_is_that_model_and_with_two_must_be_chosen_from(tmp_path):
    write_gguf(tmp_path / "one.gguf", random_model_of("Llama", BASE))
    assert find_model(str(tmp_path), model_formats()).path == tmp_path / "one.gguf"
    (tmp_path / "two.gguf").touch()
    with pytest.raises(Exception, match=r"2 GGUF files; name one of them: one.gguf, two.gguf"):
        find_model(str(tmp_path), model_formats())


def test_a_file_is_known_by_its_content_whatever_its_name(tmp_path):
    write_gguf(tmp_path / "blob", random_model_of("Llama", BASE))
    assert load_gguf(tmp_path / "blob").description.num_layers == 2


def test_description_and_cache_identity_are_those_of_the_file(tmp_path):
    path = tmp_path / "m.gguf"
    write_gguf(path, random_model_of("Llama", {**BASE, "rms_norm_eps": 1e-5}), TYPES.F16)
    described = describe_model(find_model(str(path), model_formats()), FAMILIES)
    assert (described.name, described.dtype) == ("m.gguf", "float16")
    assert described.config["rms_norm_eps"] == 1e-5  # not the nearest fp32 number
    assert pickle.loads(pickle.dumps(described)).files.path == path
    before = described.files.identity()
    write_gguf(path, random_model_of("Llama", BASE, seed=1), TYPES.Q8_0)
    assert described.files.identity() != before
