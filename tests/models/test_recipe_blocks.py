import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from interlock.models.recipe.drafters import dflash, dspark
from interlock.models.recipe.drafters.blocks import block_weights, draw_anchors, unused_token
from tests.models.recipe_windows import UNUSED, facts, randomise, window

TOLERANCE = 2e-5  # relative; fp32 sums in another order, two layers deep


def rms(x, weight, eps):
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def rotated(row, position, theta):
    """Pairs (i, i + D/2) turned by position * theta**(-2i/D), as complex numbers."""
    half = len(row) // 2
    angles = position * theta ** (-torch.arange(half, dtype=torch.float64) * 2 / len(row))
    turned = torch.complex(row[:half], row[half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([turned.real, turned.imag])


def naive_block(weights, shape, embedded_JE, taps_TXE, anchor):
    """One block after one anchor, row by row in fp64; its context is cut off, nothing is masked."""
    w = {name: weight.double() for name, weight in weights.items()}
    context = rms(taps_TXE[:anchor].double().flatten(1) @ w["fc.weight"].T, w["hidden_norm.weight"],
                  shape.norm_eps)  # fmt: skip
    x = embedded_JE.double()
    for number in range(shape.layers):
        at = lambda name, n=number: w[f"layers.{n}.{name}.weight"]  # noqa: E731
        normed = rms(x, at("input_layernorm"), shape.norm_eps)
        rows = torch.cat([context, normed])
        mixed = []
        for head in range(shape.heads):
            group = head // (shape.heads // shape.kv_heads)
            pick = lambda name, h: at(f"self_attn.{name}").unflatten(0, (-1, shape.head_dim))[h]  # noqa: B023, E731
            q = rms(normed @ pick("q_proj", head).T, at("self_attn.q_norm"), shape.norm_eps)
            k = rms(rows @ pick("k_proj", group).T, at("self_attn.k_norm"), shape.norm_eps)
            v = rows @ pick("v_proj", group).T
            q = torch.stack([rotated(r, anchor + j, shape.rope_theta) for j, r in enumerate(q)])
            k = torch.stack([rotated(r, i, shape.rope_theta) for i, r in enumerate(k)])
            mixed.append((q @ k.T / math.sqrt(shape.head_dim)).softmax(-1) @ v)
        x = x + torch.cat(mixed, -1) @ at("self_attn.o_proj").T
        normed = rms(x, at("post_attention_layernorm"), shape.norm_eps)
        gate = normed @ at("mlp.gate_proj").T
        x = x + (gate * gate.sigmoid() * (normed @ at("mlp.up_proj").T)) @ at("mlp.down_proj").T
    return rms(x, w["norm.weight"], shape.norm_eps)


def naive_rows(head, data, row, anchor):
    """[J, E] of a block in fp64."""
    ids = torch.tensor([data.ids_BT[row, anchor].item()] + [UNUSED] * (head.slots - 1))
    embedded = head.target.embed_VE[ids]
    shape = head.network.shape
    return naive_block(head.network.tensors(), shape, embedded, data.taps_BTXE[row], anchor)


def small(kind, **options):
    head = {"dflash": dflash, "dspark": dspark}[kind].Head(facts(), block_size=4, **options)
    head.network.fc(window().taps_BTXE)  # finds the scale of each tap
    return randomise(head)


@pytest.mark.parametrize("kind", ["dflash", "dspark"])
def test_blocks_side_by_side_are_the_blocks_of_single_anchors(kind):
    head, data = small(kind, intermediate=20), window()
    anchors = torch.tensor([[1, 4, 8], [2, 3, 6]])
    rows = head.rows(data, anchors)
    for row in range(2):
        for place, anchor in enumerate(anchors[row].tolist()):
            wanted = naive_rows(head, data, row, anchor)[-head.depth :]
            assert (rows[row, place] - wanted).norm() < TOLERANCE * wanted.norm()


def naive_loss(head, data, anchors, per_draft):
    """Weighted mean over anchors and drafts of `per_draft(row_E, k, law_V, previous, logits)`."""
    total = weight_sum = 0.0
    target, tokens = head.target, data.ids_BT.shape[1]
    for row in range(len(anchors)):
        for anchor in anchors[row].tolist():
            rows = naive_rows(head, data, row, anchor)[-head.depth :]
            for k in range(head.depth):
                at = anchor + k
                if at >= tokens - 1 or not data.mask_BT[row, anchor : at + 1].all():
                    break
                law = (target.head_VE.double() @ data.features_BTE[row, at].double()).softmax(-1)
                logits = target.head_VE.double() @ rows[k]
                weight = math.exp(-k / 4.0)
                total += weight * per_draft(rows[k], law, data.ids_BT[row, at], logits)
                weight_sum += weight
    return float(total / weight_sum)


ANCHORS = torch.tensor([[0, 1, 4, 8], [2, 3, 5, 8]])


def test_dflash_loss_is_the_weighted_cross_entropy_of_every_counting_draft():
    head, data = small("dflash"), window(masked=[(0, 6), (1, 4)])
    entropy = lambda row, law, before, logits: -(law * logits.log_softmax(-1)).sum()  # noqa: E731
    loss, figures = head.block_loss(data, ANCHORS)
    wanted = naive_loss(head, data, ANCHORS, entropy)
    assert loss.item() == pytest.approx(wanted, rel=TOLERANCE)
    assert set(figures) == {"agree_1", "agree_2", "agree_3"}


def test_dspark_loss_adds_distance_and_confidence_under_the_markov_head():
    head, data = small("dspark", markov_rank=5), window(masked=[(0, 6), (1, 4)])
    w1 = head.markov_head.markov_w1.weight.double()
    w2 = head.markov_head.markov_w2.weight.double()
    proj = head.confidence_head.proj

    def per_draft(row, law, previous, logits):
        logits = logits + w2 @ w1[previous]
        distance = (logits.softmax(-1) - law).abs().sum()
        inputs = torch.cat([row, w1[previous]])
        chance = (proj.weight[0].double() @ inputs + proj.bias.double()).sigmoid()
        accepted = 1 - distance / 2
        doubt = -(accepted * chance.log() + (1 - accepted) * (1 - chance).log())
        return -0.1 * (law * logits.log_softmax(-1)).sum() + 0.9 * distance + doubt

    loss, _ = head.block_loss(data, ANCHORS)
    assert loss.item() == pytest.approx(naive_loss(head, data, ANCHORS, per_draft), rel=TOLERANCE)


def test_confidence_learns_but_never_moves_what_it_scores():
    head, data = small("dspark"), window()
    head.requires_grad_(True)
    head.block_loss(data, ANCHORS)[0].backward()
    assert head.confidence_head.proj.weight.grad.norm() > 0
    moved = head.confidence_head.proj.weight.detach() + 1.0
    logits = head.draft_logits(data, ANCHORS, head.rows(data, ANCHORS))
    head.confidence_head.proj.weight.data = moved
    assert torch.equal(logits, head.draft_logits(data, ANCHORS, head.rows(data, ANCHORS)))


@pytest.mark.parametrize("kind", ["dflash", "dspark"])
def test_guesses_of_every_anchor_are_those_of_its_own_block(kind, monkeypatch):
    monkeypatch.setattr(dflash, "ROWS_AT_ONCE", 16)  # several parts
    head, data = small(kind), window()
    guess = head.guess(data)
    assert guess.shape == (2, 9, head.depth)
    for row in range(2):
        for anchor in range(9 - head.depth):
            rows = naive_rows(head, data, row, anchor)[-head.depth :]
            logits = rows @ head.target.head_VE.double().T
            if kind == "dspark":
                markov = head.markov_head
                previous = markov.markov_w1.weight[data.ids_BT[row, anchor : anchor + head.depth]]
                logits = logits + (previous @ markov.markov_w2.weight.T).double()
            assert guess[row, anchor].tolist() == logits.argmax(-1).tolist()


@settings(deadline=None, max_examples=50)
@given(st.integers(2, 12), st.integers(1, 15), st.integers(0, 10**6))
def test_anchors_are_distinct_counting_places_and_fillers_have_no_weight(tokens, count, seed):
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(3, tokens, generator=generator) < 0.6
    anchors = draw_anchors(mask, count)
    weights = block_weights(mask, anchors, drafts=3, decay=4.0)
    for row in range(3):
        counting = [a for a in anchors[row].tolist() if a < tokens - 1]
        assert len(set(counting)) == len(counting)
        assert len(counting) == min(count, int(mask[row, :-1].sum()))
        assert mask[row, counting].all()
        fillers = anchors[row] == tokens - 1
        assert (weights[row][fillers] == 0).all()
        assert (weights[row, ~fillers, 0] == 1).all()


DFLASH_NAMES = {
    "fc.weight", "hidden_norm.weight", "norm.weight",
    *(
        f"layers.{n}.{part}.weight"
        for n in range(2)
        for part in (
            "input_layernorm", "post_attention_layernorm",
            "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
            "self_attn.q_norm", "self_attn.k_norm",
            "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
        )
    ),
}  # fmt: skip
DSPARK_NAMES = DFLASH_NAMES | {
    "markov_head.markov_w1.weight", "markov_head.markov_w2.weight",
    "confidence_head.proj.weight", "confidence_head.proj.bias",
}  # fmt: skip


def test_dflash_files_have_the_published_names_and_settings(tmp_path):
    head = small("dflash")
    head.save(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    assert set(tensors) == DFLASH_NAMES
    assert tensors["fc.weight"].shape == (16, 3 * 16)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["block_size"] == 4
    assert config["num_target_layers"] == 6
    assert config["dflash_config"] == {"mask_token_id": UNUSED, "target_layer_ids": list(head.taps)}


def test_dspark_files_have_the_published_names_and_tables_only_when_asked(tmp_path):
    small("dspark").save(tmp_path / "lean")
    small("dspark", self_contained=True).save(tmp_path / "whole")
    lean = load_file(tmp_path / "lean" / "model.safetensors")
    whole = load_file(tmp_path / "whole" / "model.safetensors")
    assert set(lean) == DSPARK_NAMES
    assert set(whole) == DSPARK_NAMES | {"embed_tokens.weight", "lm_head.weight"}
    assert torch.equal(whole["lm_head.weight"], facts().head_VE.bfloat16())
    config = json.loads((tmp_path / "lean" / "config.json").read_text())
    assert config["architectures"] == ["Qwen3DSparkModel"]
    assert (config["block_size"], config["markov_rank"], config["mask_token_id"]) == (4, 64, UNUSED)


@pytest.mark.parametrize("kind", ["dflash", "dspark"])
def test_saved_weights_make_the_same_drafts(kind, tmp_path):
    head, data = small(kind), window()
    before = head.rows(data, ANCHORS)
    head.round_weights()
    assert (head.rows(data, ANCHORS) - before).norm() < 0.05 * before.norm()
    head.save(tmp_path)
    again = small(kind)
    tensors = {n: t.float() for n, t in load_file(tmp_path / "model.safetensors").items()}
    for part in ("markov_head", "confidence_head"):
        own = {n: tensors.pop(n) for n in list(tensors) if n.startswith(part)}
        if own:
            getattr(again, part).load_state_dict({n[len(part) + 1 :]: t for n, t in own.items()})
    again.network.take(tensors)
    assert torch.equal(head.guess(data), again.guess(data))
    assert torch.equal(head.rows(data, ANCHORS), again.rows(data, ANCHORS))


def test_mask_token_is_one_that_no_text_holds():
    assert unused_token(torch.tensor([3, 0, 2, 0, 5])) == 3
    with pytest.raises(ValueError, match="every token id occurs"):
        unused_token(torch.ones(5, dtype=torch.long))
