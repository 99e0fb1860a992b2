"""weights=int8 and int4: codes against their definition, kernels, and whole models."""

import copy
import dataclasses

import pytest
import torch

from interlock.core.assemble import assemble, build_engine
from interlock.core.errors import ConfigError
from interlock.core.request import Request, SamplingParams
from interlock.core.testing.thread_ranks import Meeting, ThreadRanks, run_on_ranks
from interlock.core.testing.tiny import write_tiny_checkpoint
from interlock.plugins.models import model_families
from interlock.plugins.models.quantised import GROUP, QUANTISED, can_run
from interlock.plugins.models.row_tiles import FAST, TILED
from tests.engine.serving import configured, serve
from tests.models.loading import LOGIT_TOLERANCE, load, whole_logits

F64 = torch.float64
BITS = sorted(QUANTISED)


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def defined(weight, bits):
    """The quantised matrix, number by number, from what the settings' help promises."""
    rows = []
    for row in weight.double().tolist():
        size = len(row) if bits == "int8" else GROUP
        out = []
        for at in range(0, len(row), size):
            part = row[at : at + size]
            part += [0.0] * (size - len(part))  # the last group is filled up
            if bits == "int8":
                scale, offset, least, most = max(map(abs, part)) / 127, 0.0, -127, 127
                scale = torch.tensor(scale).bfloat16().item() or 1.0
            else:
                scale, least, most = (max(part) - min(part)) / 15, -8, 7
                scale = torch.tensor(scale).bfloat16().item() or 1.0
                offset = torch.tensor(min(part) + 8 * scale).bfloat16().item()
            steps = [min(most, max(least, round((w - offset) / scale))) for w in part]
            out += [step * scale + offset for step in steps]
        rows.append(out[: len(row)])
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 1), (5, 31), (16, 32), (33, 100)])
def test_a_quantised_matrix_is_what_its_definition_says(bits, outputs, inputs):
    weight = normal(outputs, inputs)
    weight[0] = 0  # nothing to scale
    product = QUANTISED[bits](weight)
    kept = product.weight(slice(None), F64)
    torch.testing.assert_close(kept, defined(weight, bits), rtol=0, atol=1e-12)
    lost = float((kept - weight).square().sum())
    assert product.squared_error == pytest.approx(lost, rel=1e-12)
    assert product.squared_weight == pytest.approx(float(weight.square().sum()), rel=1e-12)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("tokens", [1, 2, 16, 17, 63])
@pytest.mark.parametrize(("outputs", "inputs"), [(48, 64), (37, 50)])
def test_a_product_multiplies_by_the_quantised_matrix(bits, dtype, tokens, outputs, inputs):
    """The first shape is one that kernels take in bfloat16, the second one that none takes."""
    weight, x = normal(outputs, inputs).bfloat16().to(dtype), normal(tokens, inputs, seed=1)
    bias, x = normal(outputs, seed=2).to(dtype), x.to(dtype)
    product = QUANTISED[bits](weight, bias)
    matrix = defined(weight, bits).abs()
    wanted = x.double() @ defined(weight, bits).T + bias.double()
    with torch.inference_mode():
        result = product(x)
    assert result.dtype == dtype
    rounded = torch.finfo(dtype).eps * (x.double().abs() @ matrix.T + wanted.abs() + 1)
    assert ((result.double() - wanted).abs() <= 4 * rounded).all()


@pytest.mark.parametrize("bits", BITS)
def test_the_kernels_are_used_where_torch_has_them(bits):
    fused = QUANTISED[bits](normal(48, 64).bfloat16())
    assert (fused._kernel_tokens > 0) == can_run(bits)
    assert fused.nbytes < 48 * 64 * 2 * (0.6 if bits == "int8" else 0.35)


@pytest.mark.parametrize("bits", BITS)
def test_ranks_that_share_the_inputs_have_the_codes_of_the_whole_matrix(bits):
    weight = normal(9, 128)

    def part(ranks):
        columns = slice(64 * ranks.rank, 64 * ranks.rank + 64)
        return QUANTISED[bits](weight[:, columns], None, FAST, ranks).weight(slice(None), F64)

    parts = run_on_ranks(2, part)
    assert torch.equal(torch.cat(parts, -1), QUANTISED[bits](weight).weight(slice(None), F64))


def test_groups_that_ranks_would_cut_are_refused():
    ranks = ThreadRanks(0, Meeting(2))
    with pytest.raises(ConfigError, match="weights=int4: 2 ranks have 48 inputs"):
        QUANTISED["int4"](normal(9, 48), None, FAST, ranks)


@pytest.mark.parametrize("bits", BITS)
def test_batch_invariant_rows_keep_their_bits(bits):
    product = QUANTISED[bits](normal(48, 64).bfloat16(), None, TILED)
    x = normal(21, 64, seed=1).bfloat16()
    with torch.inference_mode():
        together = product(x)
        for at in (0, 7, 20):
            assert torch.equal(product(x[at : at + 1])[0], together[at])


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("oracle", ["llama_gqa", "gemma3", "qwen2"], indirect=True)
def test_logits_equal_transformers_with_the_quantised_matrices(oracle, bits):
    ours = whole_logits(load(oracle.directory, F64, bits), oracle.prompt)
    plain = oracle.logits(oracle.prompt)
    model = copy.deepcopy(oracle.model).double()
    for name, module in model.named_modules():
        if name.endswith("_proj"):
            module.weight.data = defined(module.weight.data, bits)
    with torch.inference_mode():
        theirs = model(input_ids=torch.tensor([oracle.prompt]), use_cache=False).logits[0]
    assert (ours - theirs).abs().max() < LOGIT_TOLERANCE
    assert (ours - plain).abs().max() > 10 * LOGIT_TOLERANCE, "nothing was quantised"


@pytest.mark.parametrize("kind", ["gqa", "mla_moe"])
@pytest.mark.parametrize("bits", BITS)
def test_requests_together_give_the_tokens_of_each_alone(kind, bits, tmp_path):
    model = write_tiny_checkpoint(tmp_path / "model", kind, model_families())
    attention = "mla" if kind == "mla_moe" else "gqa"

    def engine(**choices):
        config = configured(model, **{"attention": attention, **choices})
        return build_engine(dataclasses.replace(config, weights=bits))

    prompts = [tuple(2 + (7 * k * i + i) % 60 for i in range(3 + 9 * k)) for k in range(5)]
    requests = [Request(k, p, SamplingParams(max_tokens=6)) for k, p in enumerate(prompts)]
    together = serve(engine(index="radix", spec="ngram"), *requests)
    for request in requests:
        alone = serve(engine(index="none", spec="none"), dataclasses.replace(request, index=0))
        assert together[request.index].output_token_ids == alone[0].output_token_ids


@pytest.mark.parametrize("bits", BITS)
def test_errors_and_bytes_of_quantised_weights_are_stated(bits, tmp_path):
    model = write_tiny_checkpoint(tmp_path / "model", "gqa", model_families())
    facts = {}
    for weights in ("auto", bits):
        made = build_engine(
            dataclasses.replace(configured(model, attention="gqa"), weights=weights)
        )
        facts[weights] = made.ranks
    assert facts["auto"]["weight_errors"] == {}
    kinds = {"q_proj+k_proj+v_proj", "o_proj", "gate_proj+up_proj", "down_proj"}
    assert facts[bits]["weight_errors"].keys() == kinds
    least, most = {"int8": (0.002, 0.02), "int4": (0.04, 0.15)}[bits]  # of normal numbers
    assert all(least < error < most for error in facts[bits]["weight_errors"].values())
    assert facts[bits]["weight_bytes"][0] < facts["auto"]["weight_bytes"][0]


def test_a_simulation_has_no_weights_to_quantise():
    with pytest.raises(ConfigError, match=r"weights=int8.*executor=fixed reads no weights"):
        assemble(["executor=fixed", "weights=int8"])


def test_an_unknown_number_of_bits_is_refused():
    with pytest.raises(ConfigError, match=r"weights='int3' is not one of auto, int8, int4"):
        assemble(["weights=int3"])
