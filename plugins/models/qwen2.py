"""Qwen2 and Qwen2.5 (arXiv 2407.10671): Llama with biased queries, keys and values."""

from typing import TYPE_CHECKING

from interlock.plugins.models.fields import Fields
from interlock.plugins.models.heads import Windows
from interlock.plugins.models.llama import LlamaFamily
from interlock.plugins.models.windows import FULL, SLIDING, switched_windows

if TYPE_CHECKING:
    from interlock.plugins.models.mixers import MixerOptions


class Qwen2Family(LlamaFamily):
    """Layers from `max_window_layers` on have the window, if `use_sliding_window`."""

    name = "qwen2"
    architectures: tuple[str, ...] = ("Qwen2ForCausalLM",)
    positions = 32768

    def windows(self, fields: Fields, layers: int) -> Windows:
        """By layer type, or from one layer on."""
        first = fields.integer("max_window_layers", 28, least=0)
        kinds = [SLIDING if layer >= first else FULL for layer in range(layers)]
        return switched_windows(fields, kinds)

    def mixer(self, fields: Fields) -> "MixerOptions":
        """The biases are part of the architecture; no field speaks of them."""
        from interlock.plugins.models.mixers import MixerOptions

        return MixerOptions(biased=True)
