import json
import math

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig
from transformers.models.deepseek_v3.modeling_deepseek_v3 import (
    DeepseekV3DecoderLayer,
    DeepseekV3RotaryEmbedding,
)
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

from interlock.models.recipe.drafters import mtp
from tests.models.recipe_windows import LATENT, LLAMA, facts, randomise, window

TOLERANCE = 2e-5  # relative; fp32 sums in another order, a few steps deep
CONFIGS = {"gqa": LLAMA, "mla": LATENT}


def small(attention="gqa", **options):
    return randomise(mtp.Head(facts(CONFIGS[attention]), **options))


def rms(x, weight, eps=1e-5):
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def published_layer(attention, tensors):
    """transformers' decoder layer over fused rows in fp64, from the stored tensors."""
    config = AutoConfig.for_model(**CONFIGS[attention])
    config._attn_implementation = "eager"
    kinds = {
        "gqa": (LlamaDecoderLayer, LlamaRotaryEmbedding),
        "mla": (DeepseekV3DecoderLayer, DeepseekV3RotaryEmbedding),
    }
    layer, rotary = (kind(config, *place) for kind, place in zip(kinds[attention], ((0,), ())))  # noqa: B905
    own = {"enorm.weight", "hnorm.weight", "eh_proj.weight", "shared_head.norm.weight"}
    layer.load_state_dict({n: t for n, t in tensors.items() if n not in own})
    layer, rotary = layer.double().eval(), rotary.double()

    def run(x_TE):
        tokens = len(x_TE)
        mask = torch.full((tokens, tokens), -torch.inf, dtype=torch.float64).triu(1)
        places = torch.arange(tokens)[None]
        out = layer(
            x_TE[None],
            attention_mask=mask[None, None],
            position_ids=places,
            position_embeddings=rotary(x_TE[None], places),
        )
        return (out[0] if isinstance(out, tuple) else out).view(tokens, -1)

    return run


def stored(head, folder):
    """The tensors of a saved head without their prefix, in fp64."""
    head.save(folder)
    tensors = load_file(folder / "model.safetensors")
    assert all(name.startswith("model.layers.6.") for name in tensors)
    return {n.removeprefix("model.layers.6."): t.double() for n, t in tensors.items()}


def chain(tensors, run, embedded_TE, hidden_TE, last, steps):
    """Outputs [steps, E] of a real chain: the layer runs again over a prefix that grows."""
    hidden, outputs = hidden_TE[: last + 1].double(), []
    for step in range(steps):
        rows = embedded_TE[: last + 1 + step].double()
        fused = torch.cat(
            [rms(rows, tensors["enorm.weight"]), rms(hidden, tensors["hnorm.weight"])], -1
        )
        outputs.append(run(fused @ tensors["eh_proj.weight"].T)[-1])
        hidden = torch.cat([hidden, outputs[-1][None]])
    return torch.stack(outputs)


@pytest.mark.parametrize("attention", ["gqa", "mla"])
def test_unrolled_steps_of_saved_heads_are_chains_of_published_layers(attention, tmp_path):
    head, data, steps = small(attention), window(), 3
    for weight in head.parameters():
        weight.data = weight.data.bfloat16().float()
    tensors = stored(head, tmp_path)
    run = published_layer(attention, tensors)
    embedded = head.target.embed(data.ids_BT[:, 1:])
    unrolled = head.layer.unroll(embedded, data.hidden_BTE[:, :-1], steps)
    for row in range(2):
        for last in range(8 - steps):
            wanted = chain(tensors, run, embedded[row], data.hidden_BTE[row], last, steps)
            for step in range(steps):
                got = unrolled[step][row, last + step]
                assert (got - wanted[step]).norm() < TOLERANCE * wanted[step].norm()


def test_loss_weighs_every_step_by_beta_and_counts_only_marked_rows():
    head, data = small(unrolled=3, beta=0.5), window(masked=[(0, 5), (1, 2), (1, 3)])
    target, layer = head.target, head.layer
    outputs = layer.unroll(target.embed(data.ids_BT[:, 1:]), data.hidden_BTE[:, :-1], 3)
    total = weights = 0.0
    for k, output in enumerate(outputs):
        entropies = []
        for row in range(2):
            for i in range(k, 8):  # row i guesses the token at i + 2, whose law is at i + 1
                if data.mask_BT[row, i + 1]:
                    normed = rms(output[row, i].double(), layer.shared_head.norm.weight.double())
                    logits = target.head_VE.double() @ normed
                    law = (target.head_VE @ data.features_BTE[row, i + 1]).double().softmax(-1)
                    entropies.append(-(law * logits.log_softmax(-1)).sum().item())
        total += 0.5**k * math.fsum(entropies) / len(entropies)
        weights += 0.5**k
    loss, figures = head.loss(data)
    assert loss.item() == pytest.approx(total / weights, rel=TOLERANCE)
    assert set(figures) == {"agree_1", "agree_2", "agree_3"}


def test_guesses_are_the_tokens_that_real_chains_draft(tmp_path):
    """Drafts are fed back here; guesses assume the window's tokens, so equal prefixes only."""
    head, data = small(), window(tokens=12)
    guess = head.guess(data)
    assert guess.shape == (2, 12, 7)
    compared = 0
    for row in range(2):
        for anchor in range(1, 12):
            ids, hidden = data.ids_BT[row : row + 1, : anchor + 1], data.hidden_BTE[row : row + 1]
            hidden = hidden[:, :anchor]
            for k in range(min(7, 11 - anchor)):
                output = head.layer.unroll(head.target.embed(ids[:, 1:]), hidden, 1)[0][:, -1:]
                logits = head.target.logits(head.layer.shared_head.norm(output))
                draft = logits.argmax(-1)
                assert guess[row, anchor, k] == draft.item()
                compared += 1
                # Teacher forcing: the window's token goes on, whatever was drafted.
                ids = data.ids_BT[row : row + 1, : anchor + 2 + k]
                hidden = torch.cat([hidden, output], dim=1)
    assert compared > 80


def test_config_is_the_targets_with_one_prediction_layer(tmp_path):
    small("mla").save(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text()) == {
        **LATENT, "num_nextn_predict_layers": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model_type": "qwen2"}, "model_type='qwen2'"),
        ({"rope_scaling": {"factor": 2.0}}, "rope_scaling"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "rope_parameters"),
        ({"attention_bias": True}, "attention_bias=True"),
    ],
)
def test_layers_that_the_recipe_cannot_write_are_refused_by_name(change, named):
    with pytest.raises(ValueError, match=named):
        mtp.Head(facts({**LLAMA, **change}))
    with pytest.raises(ValueError, match="first_k_dense_replace=1"):
        mtp.Head(facts({**LATENT, "first_k_dense_replace": 1}))


@pytest.mark.parametrize("options", [{"unrolled": 0}, {"unrolled": 8}, {"beta": 0.0}])
def test_options_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match="must be from 1 to 7"):
        mtp.Head(facts(), **options)
