"""The decoder by itself: precision, routing rules that no released checkpoint uses, tiny models."""

from pathlib import Path

import pytest
import torch

from interlock.core.cache_spec import CacheLayout, Full, Window
from interlock.core.model import cache_groups_of
from interlock.core.parallel import Placement
from interlock.core.testing.random_weights import RandomWeights
from interlock.core.testing.tiny import KINDS, TinyKind, tiny_model, write_tiny_checkpoint
from interlock.core.text import load_codec
from interlock.plugins.models.layers import Loader
from interlock.plugins.models.moe import MoeMLP, MoeSpec, Router
from tests.models.loading import FAMILIES, load, whole_logits

CPU = torch.device("cpu")
IDS = torch.randint(64, (40,), generator=torch.Generator().manual_seed(0)).tolist()


@pytest.fixture
def _no_narrowing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every way to less than fp64 fail."""

    def refuse(*_args: object, **_kwargs: object) -> torch.Tensor:
        raise AssertionError("a tensor was narrowed")

    to = torch.Tensor.to

    def only_fp64(tensor: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        narrow = {torch.float32, torch.float16, torch.bfloat16}
        assert not narrow & {a for a in args if isinstance(a, torch.dtype)}
        return to(tensor, *args, **kwargs)

    for name in ("float", "half", "bfloat16", "type"):
        monkeypatch.setattr(torch.Tensor, name, refuse)
    monkeypatch.setattr(torch.Tensor, "to", only_fp64)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("_no_narrowing")
def test_nothing_in_an_fp64_forward_is_narrowed(kind: TinyKind) -> None:
    decoder = tiny_model(kind, FAMILIES, dtype=torch.float64)
    assert whole_logits(decoder, IDS).dtype == torch.float64


@pytest.mark.parametrize("kind", KINDS)
def test_a_tiny_model_is_the_same_in_every_dtype_and_says_different_things(kind: TinyKind) -> None:
    exact = whole_logits(tiny_model(kind, FAMILIES, dtype=torch.float64), IDS)
    single = whole_logits(tiny_model(kind, FAMILIES, dtype=torch.float32), IDS)
    assert (single - exact).abs().max() < 2e-4
    assert whole_logits(tiny_model(kind, FAMILIES, dtype=torch.bfloat16), IDS).isfinite().all()
    assert not torch.equal(exact, whole_logits(tiny_model(kind, FAMILIES, 1, torch.float64), IDS))
    assert len(set(exact.argmax(-1).tolist())) > 8


def test_the_hybrid_has_two_cache_groups_and_its_windows_matter() -> None:
    decoder = tiny_model("hybrid", FAMILIES, dtype=torch.float64)
    layout = CacheLayout.of(cache_groups_of(decoder.description.attention))
    assert layout.lifetimes == (Full(), Window(8))
    wide = tiny_model("hybrid", FAMILIES, dtype=torch.float64, sliding_window=512)
    difference = (whole_logits(decoder, IDS) - whole_logits(wide, IDS)).abs().amax(-1)
    assert difference[:8].max() == 0
    assert difference[8:].min() > 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_written_checkpoint_is_the_tiny_model(tmp_path: Path, kind: TinyKind) -> None:
    write_tiny_checkpoint(tmp_path, kind, FAMILIES, seed=3)
    assert torch.equal(
        whole_logits(load(tmp_path), IDS), whole_logits(tiny_model(kind, FAMILIES, 3), IDS)
    )


def test_a_written_checkpoint_can_have_a_tokenizer_that_fits(tmp_path: Path) -> None:
    write_tiny_checkpoint(tmp_path, "gqa", FAMILIES, tokenizer=True)
    description, codec = load(tmp_path).description, load_codec(tmp_path)
    assert codec is not None
    assert codec.vocab_size == description.vocab_size == 257
    assert codec.decode(codec.encode("größer")) == "größer"
    assert codec.decode(list(description.eos_token_ids)) == ""


def router(spec: MoeSpec, bias: list[float] | None = None) -> Router:
    """A router whose logits are its input."""
    made = Router(
        Loader(RandomWeights(0), Placement(torch.float64, CPU)), "gate", spec.experts, spec
    )
    made.weight_XE = torch.eye(spec.experts, dtype=torch.float64)
    if made.bias_X is not None:
        made.bias_X = torch.tensor(bias or [0.0] * spec.experts, dtype=torch.float64)
    return made


def route(spec: MoeSpec, logits: list[float], bias: list[float] | None = None) -> dict[int, float]:
    experts, weights = router(spec, bias)(torch.tensor([logits], dtype=torch.float64))
    return dict(zip(experts[0].tolist(), weights[0].tolist(), strict=True))


def test_v2_scales_weights_only_when_they_are_not_normalised() -> None:
    spec = MoeSpec(4, 2, 8, 0, "greedy", scaling=16.0)
    p = torch.tensor([1.0, 3.0, 2.0, 0.0], dtype=torch.float64).softmax(0)
    assert route(spec, [1, 3, 2, 0]) == pytest.approx({1: 16 * p[1].item(), 2: 16 * p[2].item()})
    normalised = MoeSpec(4, 2, 8, 0, "greedy", scaling=16.0, normalised=True)
    share = (p[1] / (p[1] + p[2])).item()
    assert route(normalised, [1, 3, 2, 0]) == pytest.approx({1: share, 2: 1 - share})


def test_v2_ranks_groups_by_their_best_expert_and_v3_by_their_two_best() -> None:
    logits = [3.0, -9.0, 2.0, 1.9]
    v2 = MoeSpec(4, 2, 8, 0, "group_limited_greedy", groups=2, chosen_groups=1)
    v3 = MoeSpec(4, 2, 8, 0, "noaux_tc", groups=2, chosen_groups=1)
    assert route(v2, logits).keys() == {0, 1}
    assert route(v3, logits).keys() == {2, 3}


def test_v3s_correction_bias_steers_the_choice_but_not_the_weights() -> None:
    spec = MoeSpec(4, 1, 8, 0, "noaux_tc")
    sigmoid = torch.sigmoid(torch.tensor(-1.0, dtype=torch.float64)).item()
    assert route(spec, [0, 1, -1, 0], bias=[0, 0, 9, 0]) == pytest.approx({2: sigmoid})
    negative = [-9.0, -9.0, -8.0, -9.0]  # a masked expert must stay behind these
    grouped = MoeSpec(4, 2, 8, 0, "noaux_tc", groups=2, chosen_groups=1)
    assert route(grouped, [0, 0, 0, 0], bias=negative).keys() == {2, 3}


def test_equal_experts_are_taken_from_the_lowest_index() -> None:
    assert route(MoeSpec(8, 3, 8, 0, "greedy"), [0, 1, 1, 1, 1, 0, 0, 1]).keys() == {1, 2, 3}


def test_an_expert_layer_is_the_weighted_sum_of_its_experts_token_by_token() -> None:
    spec = MoeSpec(5, 2, 7, 1, "noaux_tc", normalised=True, scaling=2.5)
    moe = MoeMLP(Loader(RandomWeights(1), Placement(torch.float64, CPU)), "mlp", 6, spec)
    x = torch.randn(9, 6, dtype=torch.float64)
    experts, weights = moe.router(x)
    assert moe.shared is not None
    for token in range(9):
        row = x[token : token + 1]
        expected = moe.shared(row) + sum(
            weights[token, choice] * moe.experts[int(experts[token, choice])](row)
            for choice in range(2)
        )
        torch.testing.assert_close(moe(x)[token : token + 1], expected)
