"""What a GPT-2 config says (Radford et al., 2019; field names of Hugging Face)."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from interlock.core.errors import CheckpointError
from interlock.core.model import AttentionSpec, Decoder, ModelDescription, ModelFamily
from interlock.core.parallel import Placement

if TYPE_CHECKING:
    from interlock.core.weights import WeightSource

FIXED: dict[str, Any] = {
    "activation_function": "gelu_new",
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
}
"""Fields that change the arithmetic, with the only value that this decoder computes."""


class GPT2Family(ModelFamily):
    """Decoders with learned positions; each query head has a key/value head of its own."""

    name = "gpt2"
    architectures = ("GPT2LMHeadModel",)

    def describe(self, config: Mapping[str, Any], name: str) -> ModelDescription:
        """Raises CheckpointError with every field that is missing, wrong or not supported."""
        sizes = ("vocab_size", "n_embd", "n_layer", "n_head", "n_positions")
        values = {key: config.get(key) for key in sizes}
        values["n_inner"] = inner_size(config)
        problems = [
            f"{key}={value!r} is not an integer >= 1"
            for key, value in values.items()
            if type(value) is not int or value < 1
        ]
        problems += [
            f"{key}={config[key]!r} is not supported, only {value!r}"
            for key, value in FIXED.items()
            if config.get(key, value) != value
        ]
        hidden, heads = config.get("n_embd"), config.get("n_head")
        if not problems and hidden % heads:
            problems.append(f"n_embd={hidden} is not a multiple of n_head={heads}")
        if problems:
            raise CheckpointError("; ".join(problems))
        head_dim, layers = hidden // heads, config["n_layer"]
        spec = AttentionSpec("heads", heads, heads, head_dim, head_dim, head_dim**-0.5)
        return ModelDescription(
            name=name,
            family=self.name,
            vocab_size=config["vocab_size"],
            hidden_size=hidden,
            num_layers=layers,
            max_positions=config["n_positions"],
            attention=(spec,) * layers,
            dtype="float32",
            config=config,
            limited_by="GPT-2 has a learned vector for each position and none beyond",
        )

    def build(
        self, description: ModelDescription, weights: "WeightSource", placement: Placement
    ) -> Decoder:
        """The decoder; CheckpointError lists tensors that do not match."""
        from interlock_example_gpt2.decoder import GPT2Decoder

        return GPT2Decoder(description, weights, placement)


def inner_size(config: Mapping[str, Any]) -> Any:
    """Size inside an MLP: `n_inner`, or four times the hidden size."""
    stated, hidden = config.get("n_inner"), config.get("n_embd")
    return 4 * hidden if stated is None and type(hidden) is int else stated
