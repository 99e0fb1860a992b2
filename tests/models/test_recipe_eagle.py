import pytest
import torch
from safetensors import safe_open

from interlock.models.recipe.acceptance import measure_acceptance
from interlock.models.recipe.decode import continue_prompts
from interlock.models.recipe.eagle import EagleHead, load_head, save_head
from interlock.models.recipe.network import Decoder, Shape

SMALL = {"vocab_size": 50, "hidden": 32, "intermediate": 48, "layers": 2, "head_dim": 8}
SMALL_LATENT = {**SMALL, "kv_lora_rank": 12, "nope_dim": 8, "rope_dim": 4}
TOLERANCE = 1e-5  # relative; fp32 sums in another order, a few layers deep


def randomise(module, std=0.3):
    torch.manual_seed(1)
    for weight in module.parameters():
        if weight.ndim == 2:
            torch.nn.init.normal_(weight, std=std)
    return module.requires_grad_(False)


def small_target(attention="gqa"):
    sizes = SMALL if attention == "gqa" else SMALL_LATENT
    return randomise(Decoder(Shape(attention=attention, **sizes)))


def small_head():
    head = EagleHead(Shape(attention="gqa", **SMALL))
    head.fc.token_scale = 3.0
    return randomise(head)


@pytest.mark.parametrize("attention", ["gqa", "mla"])
def test_greedy_continuations_are_the_argmax_of_the_dense_network(attention):
    target = small_target(attention)
    ids = continue_prompts(target, torch.randint(50, (3, 7)), 9, torch.zeros(3))
    dense = target.logits(target.features(ids[:, :-1])).argmax(-1)
    assert torch.equal(ids[:, 7:], dense[:, 6:])


def test_rows_of_one_batch_can_have_their_own_temperature():
    target = small_target()
    prompts = torch.randint(50, (1, 5)).repeat(2, 1)
    greedy, sampled = continue_prompts(target, prompts, 12, torch.tensor([0.0, 5.0]), seed=3)
    again = continue_prompts(target, prompts, 12, torch.tensor([0.0, 5.0]), seed=3)
    assert not torch.equal(greedy, sampled)
    assert torch.equal(again[1], sampled)


def chain(head, target, embedded, features, count):
    """Greedy drafts by whole passes over a growing prefix, without any unrolling."""
    drafts = []
    for _ in range(count):
        estimate = head.unroll(embedded, features, 1)[0][:, -1:]
        drafts.append(target.logits(estimate)[0, 0].argmax().item())
        features = torch.cat([features, estimate], dim=1)
        embedded = torch.cat([embedded, target.embed_tokens(torch.tensor([drafts[-1:]]))], dim=1)
    return drafts


def test_unrolled_steps_are_the_estimates_of_real_chains():
    head, length, depth = small_head(), 9, 4
    embedded, features = torch.randn(2, length, 32), torch.randn(2, length, 32)
    unrolled = head.unroll(embedded, features, depth)
    for last in range(length):
        known = features[:, : last + 1]
        for step in range(min(depth, length - last)):
            estimate = head.unroll(embedded[:, : last + step + 1], known, 1)[0][:, -1:]
            wanted = unrolled[step][:, last + step]
            assert (estimate[:, 0] - wanted).norm() < TOLERANCE * wanted.norm()
            known = torch.cat([known, estimate], dim=1)


def test_acceptance_is_that_of_cycles_that_draft_and_verify_one_request_at_a_time():
    target, head = small_target(), small_head()
    # A head that copies features agrees now and then with a target that loops.
    head.fc.feature.weight.copy_(torch.eye(32))
    stream = torch.randint(50, (400,), generator=torch.Generator().manual_seed(0))
    sizes = {"prompts": 5, "prompt_tokens": 6, "output_tokens": 20, "drafts": 3}
    measured = measure_acceptance(target, head, stream, **sizes)
    passes = emitted = 0
    for start in torch.linspace(0, 394, 5).long().tolist():
        ids = continue_prompts(target, stream[None, start : start + 6], 20, torch.zeros(1))
        anchor = 6
        while anchor < 25:
            features = target.features(ids[:, :anchor])
            embedded = target.embed_tokens(ids[:, 1 : anchor + 1])
            drafts = chain(head, target, embedded, features, min(3, 24 - anchor))
            truth = ids[0, anchor + 1 :].tolist()
            run = 0
            while run < len(drafts) and drafts[run] == truth[run]:
                run += 1
            passes, emitted, anchor = passes + 1, emitted + run + 1, anchor + run + 1
    assert emitted == 5 * 19
    assert measured.emitted_per_pass == emitted / passes
    assert emitted > passes


def test_a_stream_shorter_than_a_prompt_is_refused():
    with pytest.raises(ValueError, match="30 held-out tokens are fewer than a prompt of 64"):
        measure_acceptance(small_target(), small_head(), torch.zeros(30, dtype=torch.long))


def test_a_saved_head_has_the_published_names_and_computes_the_same(tmp_path):
    head = small_head()
    save_head(head, tmp_path)
    with safe_open(str(tmp_path / "model.safetensors"), framework="pt") as stored:
        assert set(stored.keys()) == {
            "fc.weight",
            *(f"layers.0.self_attn.{n}_proj.weight" for n in "qkvo"),
            *(f"layers.0.mlp.{n}_proj.weight" for n in ("gate", "up", "down")),
            "layers.0.post_attention_layernorm.weight",
        }
        assert stored.get_tensor("fc.weight").shape == (32, 64)
    loaded = load_head(tmp_path)
    embedded, features = torch.randn(1, 6, 32), torch.randn(1, 6, 32)
    for found, wanted in zip(
        loaded.unroll(embedded, features, 2), head.unroll(embedded, features, 2), strict=True
    ):
        assert (found - wanted).norm() < 0.05 * wanted.norm()  # weights are rounded to bf16
