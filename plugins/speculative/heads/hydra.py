"""Builds the Hydra drafter."""

from interlock.core.component import BuildContext
from interlock.plugins.speculative.heads.directory import open_head
from interlock.plugins.speculative.heads.feature_heads import FeatureHeadsDrafter
from interlock.plugins.speculative.heads.hydra_network import HydraNetwork
from interlock.plugins.speculative.heads.medusa import drafter
from interlock.plugins.speculative.heads.medusa_options import HydraConfig


def build(config: HydraConfig, context: BuildContext) -> FeatureHeadsDrafter:
    """The drafter with the weights of `config.path`, in the engine's dtype.

    Raises CheckpointError that names fields or tensors when the heads are not what was trained for
    this target; ConfigError when they do not reach as far as the options ask.
    """
    files = open_head(config, context, "hydra")
    stated, weights = files.json("config.json") or {}, files.weights()
    network = HydraNetwork(stated, weights, context)
    return drafter(config, network)
