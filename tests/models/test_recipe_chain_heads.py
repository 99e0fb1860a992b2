"""EAGLE-3, Medusa and Hydra in training against drafting one token at a time, in fp64."""

import json
import math

import pytest
import torch
from safetensors.torch import load_file

from interlock.models.recipe.drafters import KINDS, eagle3, head_class, hydra, medusa
from interlock.models.recipe.drafters.facts import Window
from interlock.models.recipe.drafters.fusion import TapFusion, default_taps
from tests.models.recipe_windows import UNUSED, facts, randomise, window

TOLERANCE = 1e-5  # relative; fp32 sums in another order, a few steps deep
TOKENS, HIDDEN, HEAD, EPS, THETA = 9, 16, 8, 1e-5, 100.0


def rms(x, weight):
    return x / (x.square().mean() + EPS).sqrt() * weight


def rotate(x_HD, position):
    rates = THETA ** (-torch.arange(0, HEAD, 2, dtype=torch.float64) / HEAD)
    cos, sin = (position * rates).cos(), (position * rates).sin()
    a, b = x_HD[:, : HEAD // 2], x_HD[:, HEAD // 2 :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=1)


class CachedLayer:
    """The stored EAGLE-3 layer, a row at a time, with the keys and values of its rows kept."""

    def __init__(self, tensors, embed_VE):
        self.w = {name.removeprefix("midlayer."): x.double() for name, x in tensors.items()}
        self.embed = embed_VE.double()
        self.keys, self.values = [], []

    def row(self, token, g, position):
        """The layer's output for one more row; logits over the draft vocabulary."""
        w = self.w
        e = rms(self.embed[token], w["input_layernorm.weight"])
        pair = torch.cat([e, rms(g, w["hidden_norm.weight"])])
        q, k, v = ((w[f"self_attn.{n}_proj.weight"] @ pair).view(-1, HEAD) for n in "qkv")
        self.keys.append(rotate(k, position))
        self.values.append(v)
        keys, values = torch.stack(self.keys)[:, 0], torch.stack(self.values)[:, 0]
        weights = (rotate(q, position) @ keys.T / math.sqrt(HEAD)).softmax(-1)
        x = g + w["self_attn.o_proj.weight"] @ (weights @ values).flatten()
        y = rms(x, w["post_attention_layernorm.weight"])
        gate = torch.nn.functional.silu(w["mlp.gate_proj.weight"] @ y)
        x = x + w["mlp.down_proj.weight"] @ (gate * (w["mlp.up_proj.weight"] @ y))
        return x, w["lm_head.weight"] @ rms(x, w["norm.weight"])

    def keep(self, rows):
        del self.keys[rows:], self.values[rows:]


def chained_logits(head, given, row, last, steps):
    """Logits of `steps` drafts of a chain whose last committed row is `last`."""
    layer = CachedLayer(head.state_dict(), head.target.embed_VE)
    ids = given.ids_BT[row].tolist()
    taps = given.taps_BTXE[row].flatten(1).double()
    for place in range(last + 1):
        g, logits = layer.row(ids[place + 1], head.fc.weight.double() @ taps[place], place)
    found = [logits]
    for step in range(1, steps):
        g, logits = layer.row(ids[last + 1 + step], g, last + step)
        found.append(logits)
    return found


def close(found, wanted):
    return (found.double() - wanted).norm() < TOLERANCE * wanted.norm()


def eagle3_head(**options):
    head = eagle3.Head(facts(), intermediate=24, **options)
    head.fc(window().taps_BTXE)  # finds the scale of each tap
    return randomise(head)


def test_the_training_time_test_is_real_chains_with_a_cache():
    head, given = eagle3_head(), window()
    unrolled = head.unroll(given, 4)
    for last in range(TOKENS - 1):
        steps = min(4, TOKENS - 1 - last)
        for step, logits in enumerate(chained_logits(head, given, 1, last, steps)):
            assert close(head.logits(unrolled[step][1, last]), logits)


def cross_entropy(logits, law):
    return -(law * logits.double().log_softmax(-1)).sum()


def test_the_loss_is_that_of_the_chains_over_the_draft_vocabulary():
    masked = [(0, 3), (1, 8)]
    given = window(masked=masked)
    head = eagle3_head(ttt=3, draft_vocab_size=7)
    known = head.draft_ids.tolist()
    assert UNUSED not in known
    assert len(known) == 7
    expected = 0.0
    for step in range(3):
        terms = []
        for row in range(2):
            for last in range(TOKENS - 1 - step):
                at = last + 1 + step
                goal = head.target.head_VE.double() @ given.features_BTE[row, at].double()
                if (row, at) in masked or goal.argmax().item() not in known:
                    continue
                logits = chained_logits(head, given, row, last, step + 1)[step]
                terms.append(cross_entropy(logits, goal[known].softmax(-1)))
        assert 0 < len(terms) < 2 * (TOKENS - 1 - step)
        expected += 0.8**step * sum(terms) / len(terms)
    loss, figures = head.loss(given)
    assert loss.item() == pytest.approx(expected.item(), rel=TOLERANCE)
    assert list(figures) == ["agree_1", "agree_2", "agree_3"]


def test_without_the_training_time_test_only_the_first_draft_is_learnt():
    head = eagle3.Head(facts(), intermediate=24, ttt=1)
    _, figures = head.loss(window())
    assert list(figures) == ["agree_1"]
    with pytest.raises(ValueError, match="ttt=0 is not from 1 to 7"):
        eagle3.Head(facts(), ttt=0)


def medusa_logits(tensors, given, row, place, k):
    f = given.features_BTE[row, place].double()
    w = {name: x.double() for name, x in tensors.items() if f"medusa_head.{k}." in name}
    weight, bias, out = (
        w[f"medusa_head.{k}.{n}"] for n in ("0.linear.weight", "0.linear.bias", "1.weight")
    )
    return out @ (f + torch.nn.functional.silu(weight @ f + bias))


def hydra_logits(tensors, given, row, place, k):
    tokens = given.ids_BT[row, place + 1 : place + 2 + k]
    x = torch.cat([given.features_BTE[row, place], *facts().embed_VE[tokens]]).double()
    w = {name: x.double() for name, x in tensors.items()}
    first, second = f"hydra_mlp.{k}.0", f"hydra_mlp.{k}.1"
    y = w[f"{first}.res_connection.weight"] @ x + w[f"{first}.res_connection.bias"]
    y = y + torch.nn.functional.silu(w[f"{first}.linear.weight"] @ x + w[f"{first}.linear.bias"])
    y = y + torch.nn.functional.silu(w[f"{second}.linear.weight"] @ y + w[f"{second}.linear.bias"])
    return w[f"hydra_lm_head.{k}.weight"] @ y + w[f"hydra_lm_head.{k}.bias"]


@pytest.mark.parametrize("kind", ["medusa", "hydra"])
def test_heads_learn_the_law_of_the_place_that_they_guess(kind, tmp_path):
    masked = [(0, 3), (1, 8)]
    given = window(masked=masked)
    if kind == "medusa":
        head, logits_of, decay = medusa.Head(facts(), heads=3), medusa_logits, 0.8
    else:
        head, logits_of, decay = hydra.Head(facts(), heads=3, layers=2), hydra_logits, 1.0
    randomise(head)
    head.save(tmp_path)
    for weight in head.parameters():  # as they are stored
        weight.data = weight.data.bfloat16().float()
    tensors = load_file(tmp_path / "model.safetensors")
    expected = 0.0
    for k in range(3):
        terms = []
        for row in range(2):
            for place in range(TOKENS - 1 - k):
                at = place + 1 + k
                if (row, at) in masked:
                    continue
                law = (head.target.head_VE @ given.features_BTE[row, at]).double().softmax(-1)
                terms.append(cross_entropy(logits_of(tensors, given, row, place, k), law))
        expected += decay**k * sum(terms) / len(terms)
    # The stored product of Hydra's matrices and its scale is rounded once more.
    assert head.loss(given)[0].item() == pytest.approx(expected.item(), rel=0.02)


@pytest.mark.parametrize("kind", KINDS)
def test_a_draft_reads_features_before_its_anchor_and_tokens_up_to_the_draft_before(kind):
    options = {"draft_model": {"hidden": 16}}.get(kind, {})
    head = randomise(head_class(kind)(facts(), **options))
    given, other = window(seed=1), window(seed=2)
    before = head.guess(given)
    assert before.shape == (2, TOKENS, head.depth)
    changed = 0
    for anchor in range(1, TOKENS - 1):
        for k in range(min(head.depth, TOKENS - anchor - 1)):

            def mixed(name, kept):
                x = getattr(given, name).clone()
                x[:, kept:] = getattr(other, name)[:, kept:]
                return x

            fields = ("features_BTE", "hidden_BTE", "taps_BTXE")
            seen = {name: mixed(name, anchor) for name in fields}
            ids = mixed("ids_BT", anchor + k + 1)
            after = head.guess(Window(ids, **seen, best_BT=given.best_BT, mask_BT=given.mask_BT))
            assert torch.equal(after[:, anchor, k], before[:, anchor, k])
            changed += not torch.equal(after, before)
    assert changed


def test_eagle3_files_have_the_published_names_and_map_drafts_to_tokens(tmp_path):
    head = eagle3_head(draft_vocab_size=7)
    head.save(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    layer = [f"self_attn.{n}_proj" for n in "qkvo"] + [f"mlp.{n}_proj" for n in ("gate", "up")]
    layer += ["mlp.down_proj", "hidden_norm", "input_layernorm", "post_attention_layernorm"]
    assert set(tensors) == {
        *(f"midlayer.{name}.weight" for name in layer),
        *("fc.weight", "norm.weight", "lm_head.weight", "d2t", "t2d"),
    }
    assert tensors["fc.weight"].shape == (HIDDEN, 3 * HIDDEN)
    assert tensors["midlayer.self_attn.q_proj.weight"].shape == (2 * HEAD, 2 * HIDDEN)
    ids = torch.arange(7) + tensors["d2t"]
    assert torch.equal(ids, head.draft_ids)
    assert torch.equal(tensors["t2d"].nonzero().flatten(), ids)
    assert torch.equal(tensors["fc.weight"], head.fc.weight.bfloat16())
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert config["draft_vocab_size"] == 7
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [2, 4, 5]
    assert head.taps == (1, 3, 4)


def test_saved_eagle3_weights_make_the_same_drafts(tmp_path):
    head, data = eagle3_head(), window()
    before = head.unroll(data, 3)[2]
    head.round_weights()
    assert (head.unroll(data, 3)[2] - before).norm() < 0.05 * before.norm()
    head.save(tmp_path)
    again = eagle3.Head(facts(), intermediate=24)
    tensors = {n: t.float() for n, t in load_file(tmp_path / "model.safetensors").items()}
    again.fc.set_weight(tensors.pop("fc.weight"))
    own = {n: t for n, t in tensors.items() if n not in ("d2t", "t2d")}
    assert "lm_head.weight" not in own  # the target's
    with torch.no_grad():
        again.lm_head.weight.copy_(head.lm_head.weight)
    again.load_state_dict(again.state_dict() | own)
    assert torch.equal(head.guess(data), again.guess(data))
    assert torch.equal(head.unroll(data, 3)[2], again.unroll(data, 3)[2])


def test_eagle3_keeps_the_targets_rows_of_the_tokens_that_it_can_draft():
    head = eagle3.Head(facts(), intermediate=24, draft_vocab_size=7)
    assert torch.equal(head.lm_head.weight, facts().head_VE[head.draft_ids])
    assert not head.lm_head.weight.requires_grad
    loss, _ = head.loss(window())
    loss.backward()
    trained = [n for n, p in head.named_parameters() if p.grad is not None]
    assert "fc.matrix.weight" in trained
    assert set(trained) == {n for n, _ in head.named_parameters()} - {"lm_head.weight"}


def test_taps_of_any_size_count_alike_in_training_and_are_stored_as_they_come():
    taps_BTXE = torch.randn(2, 50, 3, 16) * torch.tensor([2.0, 30.0, 400.0])[:, None]
    taps_BTXE[:, 0] *= 1000  # as the first rows of many models are
    fusion = TapFusion(3, 16)
    assert torch.equal(fusion.weight, fusion.matrix.weight)  # nothing is known of the taps yet
    fused = fusion(taps_BTXE)
    sizes = (taps_BTXE * fusion.scale_X[:, None])[:, 1:].square().mean((0, 1, 3)).sqrt()
    assert all(0.8 < size < 1.25 for size in sizes.tolist())
    raw = taps_BTXE.double().flatten(2) @ fusion.weight.double().T
    assert close(fused, raw)


@pytest.mark.parametrize("layers", range(1, 40))
def test_taps_are_different_layers_and_never_the_last_of_several(layers):
    taps = default_taps(layers)
    assert list(taps) == sorted(set(taps))
    assert all(0 <= tap < max(1, layers - 1) for tap in taps)


def test_a_new_medusa_or_hydra_head_guesses_what_the_target_would():
    given = window()
    for head in (medusa.Head(facts()), hydra.Head(facts())):
        logits = given.features_BTE @ facts().head_VE.T
        assert torch.equal(head.guess(given)[:, 1:, 0], logits.argmax(-1)[:, :-1])
