"""The decoder by itself: precision and tiny models."""

from pathlib import Path

import pytest
import torch

from interlock.core.cache_spec import CacheLayout, Full, Window
from interlock.core.testing.tiny import KINDS, TinyKind, tiny_model, write_tiny_checkpoint
from interlock.plugins.attention.stored import cache_groups_of
from interlock.plugins.models.hugging_face import HuggingFaceDirectory
from interlock.plugins.models.text import load_codec
from tests.models.loading import FAMILIES, load, whole_logits

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
    description, codec = load(tmp_path).description, load_codec(HuggingFaceDirectory(tmp_path))
    assert codec is not None
    assert codec.vocab_size == description.vocab_size == 257
    assert codec.decode(codec.encode("größer")) == "größer"
    assert codec.decode(list(description.eos_token_ids)) == ""
