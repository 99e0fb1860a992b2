"""Mistral (arXiv 2310.06825): Llama with one window for all layers; Ministral: windows by layer."""

from interlock.plugins.models.fields import Fields
from interlock.plugins.models.heads import Windows
from interlock.plugins.models.llama import LlamaFamily
from interlock.plugins.models.windows import FULL, SLIDING, kinds_or, stated_window, windows_of


class MistralFamily(LlamaFamily):
    """All layers have the window that the config states; `layer_types` is not Mistral's."""

    name = "mistral"
    architectures = ("MistralForCausalLM",)
    positions = 131072

    def windows(self, fields: Fields, layers: int) -> Windows:
        """One window, or none."""
        window, kinds = stated_window(fields), fields.config.get("layer_types")
        wanted = FULL if window is None else SLIDING
        fields.require(
            kinds is None or kinds == [wanted] * layers,
            f"layer_types={kinds!r}: transformers ignores it in {self.architectures[0]} and sees "
            f"{wanted} everywhere, other engines do not; use MinistralForCausalLM for windows by "
            "layer, or remove the field",
        )
        return (window,) * layers


class MinistralFamily(MistralFamily):
    """`layer_types` says which layers have the window; all where it is absent."""

    name = "ministral"
    architectures = ("MinistralForCausalLM",)

    def windows(self, fields: Fields, layers: int) -> Windows:
        """By layer type."""
        if fields.config.get("layer_types") is None and stated_window(fields) is None:
            return (None,) * layers
        return windows_of(fields, kinds_or(fields, [SLIDING] * layers), default=4096)
