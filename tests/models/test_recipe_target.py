import json

import pytest
import torch

from interlock.core.errors import CheckpointError
from interlock.core.testing.tiny import KINDS, write_tiny_checkpoint
from interlock.models.recipe.checkpoint import save_decoder
from interlock.models.recipe.drafters.store import Store, open_store
from interlock.models.recipe.drafters.target import Target
from interlock.models.recipe.drafters.texts import Group, Plan
from interlock.models.recipe.network import Decoder, Shape
from interlock.plugins.models import model_families
from tests.models.loading import load, whole_logits

TOLERANCE = 1e-4  # relative; fp32 sums in another order
SMALL = {"vocab_size": 50, "hidden": 32, "intermediate": 48, "layers": 3, "head_dim": 8}
SMALL_LATENT = {**SMALL, "kv_lora_rank": 12, "nope_dim": 8, "rope_dim": 4}


def small(folder, attention="gqa", seed=1):
    torch.manual_seed(seed)
    network = Decoder(Shape(attention=attention, **(SMALL if attention == "gqa" else SMALL_LATENT)))
    for weight in network.parameters():
        if weight.ndim == 2:
            torch.nn.init.normal_(weight, std=0.2)
        weight.data = weight.data.bfloat16().float()
    save_decoder(network, folder)
    return network.requires_grad_(False)


def close(found, wanted):
    return (found - wanted).norm() < TOLERANCE * wanted.norm()


@pytest.mark.parametrize("kind", KINDS)
def test_windows_side_by_side_are_sequences_on_their_own(tmp_path, kind):
    write_tiny_checkpoint(tmp_path, kind, model_families())
    decoder = load(tmp_path)
    ids_BT = torch.randint(64, (3, 20), generator=torch.Generator().manual_seed(0))
    computed = Target(str(tmp_path)).compute(ids_BT)
    for ids, features, best in zip(ids_BT, computed.features_BTE, computed.best_BT, strict=True):
        logits = whole_logits(decoder, ids.tolist())
        assert close(decoder.logits(features), logits)
        assert torch.equal(best, logits.argmax(-1))


@pytest.mark.parametrize("attention", ["gqa", "mla"])
def test_taps_and_facts_are_those_of_the_recipes_own_network(tmp_path, attention):
    network = small(tmp_path, attention)
    ids_BT = torch.randint(50, (2, 11), generator=torch.Generator().manual_seed(0))
    target = Target(str(tmp_path))
    computed = target.compute(ids_BT, [1, 0])
    x, outputs = network.embed_tokens(ids_BT), []
    for layer in network.layers:
        x = layer(x)
        outputs.append(x)
    assert close(computed.hidden_BTE, x)
    assert close(computed.features_BTE, network.norm(x))
    assert list(computed.outputs) == [1, 0]
    assert all(close(found, outputs[layer]) for layer, found in computed.outputs.items())
    facts = target.facts(torch.zeros(50, dtype=torch.long))
    assert torch.equal(facts.embed_VE, network.embed_tokens.weight)
    assert torch.equal(facts.head_VE, facts.embed_VE)
    assert (facts.layers, facts.heads, facts.kv_heads, facts.head_dim) == (3, 4, 2, 8)
    assert close(facts.logits(computed.features_BTE), network.logits(computed.features_BTE))


class FixedPlan(Plan):
    """Two groups of given ids."""

    def digest(self):
        return "fixed"

    def groups(self, target):
        generator = torch.Generator().manual_seed(0)
        draw = lambda *shape: torch.randint(50, shape, generator=generator)  # noqa: E731
        short, held = draw(5, 8), draw(3, 12)
        mask = torch.ones_like(short, dtype=torch.bool)
        mask[1, 4:] = False
        return [
            Group("own", short, mask, 1.0),
            Group("held_out", held, torch.ones_like(held, dtype=torch.bool), 0.0),
        ]


def test_a_store_gives_back_what_the_target_computed_rounded_to_bf16(tmp_path):
    network = small(tmp_path / "model")
    target = Target(str(tmp_path / "model"))
    store = open_store(tmp_path / "store", target, FixedPlan())
    store.require(target, [1])
    plan = FixedPlan().groups(target)
    window = store.draw(16, torch.Generator().manual_seed(3), [1])
    assert window.ids_BT.shape == (2, 8)
    rows = [(plan[0].ids_NT == ids).all(-1).nonzero().item() for ids in window.ids_BT]
    assert torch.equal(window.mask_BT, plan[0].mask_NT[rows])
    wanted = network.features(window.ids_BT)
    assert (window.features_BTE - wanted).norm() < 0.01 * wanted.norm()
    assert window.taps_BTXE.shape == (2, 8, 1, 32)
    (held,) = store.held_out(100, [])
    assert torch.equal(held.ids_BT, plan[1].ids_NT)
    assert held.taps_BTXE.shape == (3, 12, 0, 32)
    counts = store.counts(50)
    assert torch.equal(counts, torch.bincount(plan[0].ids_NT[plan[0].mask_NT], minlength=50))


def test_the_target_runs_once_for_all_heads_and_again_only_for_new_taps(tmp_path):
    small(tmp_path / "model")
    root, plan = tmp_path / "store", FixedPlan()
    target = Target(str(tmp_path / "model"))
    open_store(root, target, plan).require(target, [0])
    (folder,) = root.iterdir()
    ids, features = folder / "own.ids", folder / "own.features"
    marked = features.read_bytes()[::-1]
    features.write_bytes(marked)  # would be repaired by a pass that writes it
    again = Target(str(tmp_path / "model"))
    store = open_store(root, again, plan)
    store.require(again, [0])
    assert again.loaded is None
    store.require(again, [0, 1])
    assert again.loaded is not None
    assert features.read_bytes() == marked
    assert Store(folder).layers == (0, 1)
    assert len(ids.read_bytes()) == 5 * 8 * 4
    assert (folder / "own.layer1").stat().st_size == 5 * 8 * 32 * 2


def test_another_models_store_is_not_read(tmp_path):
    small(tmp_path / "model", seed=1)
    target = Target(str(tmp_path / "model"))
    first = open_store(tmp_path / "store", target, FixedPlan())
    small(tmp_path / "model", seed=2)
    second = open_store(tmp_path / "store", Target(str(tmp_path / "model")), FixedPlan())
    wide = Target(str(tmp_path / "model"), torch.float64)
    assert len({first.folder, second.folder, open_store(tmp_path, wide, FixedPlan()).folder}) == 3


def test_a_missing_target_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="no directory or file of this name"):
        Target(str(tmp_path / "nothing"))
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["BertModel"]}))
    with pytest.raises(CheckpointError, match="BertModel"):
        Target(str(tmp_path))
