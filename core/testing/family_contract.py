"""The contract of a model family: subclass `FamilyContract`, define `make` and `config`.

Models are built with random weights; attention is the plainest that is right. Whether the numbers
are those of the architecture is for a test against another implementation to say.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from interlock.core.checkpoint import open_model
from interlock.core.errors import CheckpointError
from interlock.core.model import (
    AttentionInput,
    AttentionSpec,
    Decoder,
    HeadsInput,
    LatentInput,
    ModelDescription,
    ModelFamily,
    Taps,
)
from interlock.core.parallel import Placement
from interlock.core.registry import load_registry
from interlock.core.testing.random_weights import RandomWeights
from interlock.core.testing.tiny import dense_attend
from interlock.core.weights import WeightSource

CPU = torch.device("cpu")
LENGTH = 24
TOLERANCE = 1e-3  # fp32 against fp64, a few layers of small random matrices


class FamilyContract(ABC):
    """Every promise of `ModelFamily` and `Decoder`."""

    required: Sequence[str] = ("vocab_size",)
    """Fields without which a config cannot be described."""

    @abstractmethod
    def make(self) -> ModelFamily:
        """The family."""

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """config.json of a small model: at least 24 positions, vocabulary at most 1,000."""

    def described(self, **fields: Any) -> ModelDescription:
        """The small model, with some fields changed."""
        return self.make().describe({**self.config(), **fields}, "small")

    def built(
        self, dtype: torch.dtype = torch.float64, weights: WeightSource | None = None
    ) -> Decoder:
        """Its decoder, from random weights if none are given."""
        source = RandomWeights(0) if weights is None else weights
        with torch.no_grad():
            decoder = self.make().build(self.described(), source, Placement(dtype, CPU))
        assert source.finished or weights is None
        return decoder

    def ids(self) -> Tensor:
        """Some tokens."""
        draw = torch.Generator().manual_seed(0)
        return torch.randint(self.described().vocab_size, (LENGTH,), generator=draw)

    def logits(self, decoder: Decoder, ids_T: Tensor) -> Tensor:
        """[T, vocab_size] of one sequence."""
        attend = dense_attend(decoder.description)
        with torch.inference_mode():
            return decoder.logits(decoder.forward(ids_T, torch.arange(len(ids_T)), attend))

    def test_it_serves_the_architecture_of_its_configs(self) -> None:
        family = self.make()
        assert family.name
        assert set(self.config()["architectures"]) & set(family.architectures)

    def test_a_description_has_an_attention_for_each_layer_and_the_config(self) -> None:
        model, config = self.described(), self.config()
        assert model.family == self.make().name
        assert len(model.attention) == model.num_layers
        assert model.vocab_size == config["vocab_size"]
        assert model.max_positions >= LENGTH
        assert model.config == config
        assert all(size > 0 for size in (model.splits or {}).values())

    def test_a_field_that_is_missing_or_no_size_is_named(self) -> None:
        for field in self.required:
            for wrong in (None, 0, "many"):
                with pytest.raises(CheckpointError, match=field):
                    self.described(**{field: wrong})

    def test_attention_is_called_once_a_layer_in_order_with_what_its_spec_says(self) -> None:
        decoder, calls = self.built(), list[int]()
        model = decoder.description

        def attend(layer: int, spec: AttentionSpec, inputs: AttentionInput) -> Tensor:
            assert spec == model.attention[layer]
            calls.append(layer)
            _check_shapes(spec, inputs)
            return torch.zeros(LENGTH, spec.num_heads, spec.v_head_dim, dtype=torch.float64)

        features_TE = decoder.forward(self.ids(), torch.arange(LENGTH), attend)
        assert calls == list(range(model.num_layers))
        assert features_TE.shape == (LENGTH, model.hidden_size)
        assert decoder.embed(self.ids()).shape == (LENGTH, model.hidden_size)

    def test_layers_can_be_tapped_and_the_first_ones_input_given(self) -> None:
        decoder, ids_T = self.built(), self.ids()
        model, positions_T = decoder.description, torch.arange(LENGTH)
        attend, last = dense_attend(model), model.num_layers - 1
        plain_TE = decoder.forward(ids_T, positions_T, attend)
        taps = Taps((last, 0))
        assert torch.equal(decoder.forward(ids_T, positions_T, attend, taps), plain_TE)
        outputs = taps.outputs()
        assert [tuple(x_TE.shape) for x_TE in outputs] == [(LENGTH, model.hidden_size)] * 2
        assert last == 0 or not torch.equal(*outputs)
        inputs_TE = torch.randn(LENGTH, model.hidden_size, dtype=torch.float64)
        given_TE = decoder.forward(ids_T, positions_T, attend, None, inputs_TE)
        assert not torch.equal(given_TE, plain_TE)
        assert torch.equal(
            given_TE, decoder.forward(ids_T.flip(0), positions_T, attend, None, inputs_TE)
        )

    def test_logits_have_the_models_dtype_and_agree_in_every_dtype(self) -> None:
        ids_T, exact_TV = self.ids(), self.logits(self.built(), self.ids())
        assert exact_TV.shape == (LENGTH, self.described().vocab_size)
        assert exact_TV.dtype == torch.float64
        assert exact_TV.std() > 0
        single_TV = self.logits(self.built(torch.float32), ids_T)
        assert single_TV.dtype == torch.float32
        assert (single_TV - exact_TV).abs().max() < TOLERANCE
        assert self.logits(self.built(torch.bfloat16), ids_T).isfinite().all()

    def test_a_token_changes_no_row_before_it(self) -> None:
        decoder, ids_T, at = self.built(), self.ids(), LENGTH // 2
        changed_T = ids_T.clone()
        changed_T[at] = (changed_T[at] + 1) % decoder.description.vocab_size
        moved_T = (self.logits(decoder, ids_T) - self.logits(decoder, changed_T)).abs().amax(-1)
        assert moved_T[:at].max() < 1e-9
        assert moved_T[at:].min() > 1e-9

    def test_positions_count_but_not_where_a_token_lies_in_the_batch(self) -> None:
        """Rows of one step in another order are the same rows."""
        decoder, order_T = self.built(), torch.arange(LENGTH).flip(0)
        seen: dict[bool, AttentionInput] = {}

        def first_layer(positions_T: Tensor, flipped: bool) -> None:
            def attend(layer: int, spec: AttentionSpec, inputs: AttentionInput) -> Tensor:
                if layer == 0:
                    seen[flipped] = inputs
                return torch.zeros(LENGTH, spec.num_heads, spec.v_head_dim, dtype=torch.float64)

            decoder.forward(self.ids()[positions_T], positions_T, attend)

        first_layer(torch.arange(LENGTH), flipped=False)
        first_layer(order_T, flipped=True)
        for name in _per_token(seen[False]):
            plain, flipped = getattr(seen[False], name), getattr(seen[True], name)
            torch.testing.assert_close(flipped, plain[order_T])

    def test_each_tensor_is_taken_and_one_too_few_or_too_many_is_named(
        self, tmp_path: Path
    ) -> None:
        weights = RandomWeights(0, keep=True)
        expected_TV = self.logits(self.built(weights=weights), self.ids())
        assert weights.kept
        (tmp_path / "config.json").write_text("{}")
        file = tmp_path / "model.safetensors"
        save_file(weights.kept, file)
        stored = self.built(weights=_stored(tmp_path))
        assert torch.equal(self.logits(stored, self.ids()), expected_TV)
        tensors = load_file(file)
        name = sorted(tensors)[len(tensors) // 2]
        save_file({key: one for key, one in tensors.items() if key != name}, file)
        with pytest.raises(CheckpointError, match=name):
            self.built(weights=_stored(tmp_path))
        save_file({**tensors, "extra.weight": torch.zeros(2)}, file)
        with pytest.raises(CheckpointError, match=r"extra\.weight"):
            self.built(weights=_stored(tmp_path))


def _stored(directory: Path) -> WeightSource:
    return open_model(directory, list(load_registry().formats.values())).weights()


def _check_shapes(spec: AttentionSpec, inputs: AttentionInput) -> None:
    heads, keys = (LENGTH, spec.num_heads), (LENGTH, spec.num_kv_heads)
    if isinstance(inputs, HeadsInput):
        assert spec.form == "heads"
        assert inputs.q_THD.shape == (*heads, spec.head_dim)
        assert inputs.k_TKD.shape == (*keys, spec.head_dim)
        assert inputs.v_TKV.shape == (*keys, spec.v_head_dim)
        assert (inputs.sinks_H is not None) == spec.sinks
        return
    assert spec.form == "latent"
    assert inputs.q_nope_THN.shape == (*heads, spec.nope_dim)
    assert inputs.q_rope_THR.shape == (*heads, spec.rope_dim)
    assert inputs.latent_TC.shape == (LENGTH, spec.latent_rank)
    assert inputs.k_rope_TR.shape == (LENGTH, spec.rope_dim)


def _per_token(inputs: AttentionInput) -> tuple[str, ...]:
    if isinstance(inputs, LatentInput):
        return ("q_nope_THN", "q_rope_THR", "latent_TC", "k_rope_TR")
    return ("q_THD", "k_TKD", "v_TKV")
