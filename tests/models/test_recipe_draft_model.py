import pytest
import torch
from transformers import AutoModelForCausalLM

from interlock.models.recipe.drafters import draft_model
from tests.models.recipe_windows import facts, randomise, window

TOLERANCE = 2e-5  # relative; fp32 sums in another order


def small():
    sizes = {"hidden": 12, "intermediate": 20, "layers": 2, "heads": 2, "kv_heads": 1}
    head = randomise(draft_model.Head(facts(), **sizes))
    for weight in head.parameters():
        weight.data = weight.data.bfloat16().float()  # as it is stored
    return head


def published(head, folder, ids):
    """Logits in fp64 of the saved folder under transformers."""
    head.save(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    with torch.no_grad():
        return model(ids).logits


def test_loss_is_the_cross_entropy_of_the_saved_model_to_the_targets_law(tmp_path):
    head, data = small(), window(masked=[(0, 3), (1, 0)])
    logits = published(head, tmp_path, data.ids_BT)
    law = (data.features_BTE.double() @ head.target.head_VE.double().T).softmax(-1)
    entropies = -(law * logits.log_softmax(-1)).sum(-1)[data.mask_BT]
    loss, figures = head.loss(data)
    assert loss.item() == pytest.approx(entropies.mean().item(), rel=TOLERANCE)
    same = (logits.argmax(-1) == data.best_BT)[data.mask_BT].double().mean().item()
    assert figures["agree_1"] == pytest.approx(same)


def test_guesses_are_the_saved_models_next_tokens(tmp_path):
    head, data = small(), window()
    best = published(head, tmp_path, data.ids_BT).argmax(-1)
    guess = head.guess(data)
    for k in range(7):
        assert torch.equal(guess[:, : 9 - k, k], best[:, k:])


@pytest.mark.parametrize("options", [{"heads": 3}, {"heads": 4, "kv_heads": 3}])
def test_sizes_that_do_not_divide_are_refused(options):
    with pytest.raises(ValueError, match="must be an even multiple"):
        draft_model.Head(facts(), **options)
