"""Loads a directory the way the engine does."""

from pathlib import Path

import torch

from interlock.core.checkpoint import describe_model, load_decoder
from interlock.core.model import Decoder
from interlock.core.parallel import Placement
from interlock.core.testing.tiny import dense_attend
from interlock.plugins.models import model_families
from interlock.plugins.models.hugging_face import HuggingFaceDirectory

FAMILIES = model_families()
LOGIT_TOLERANCE = 2e-4  # two fp32 sums of a few hundred terms in different orders


def load(directory: Path, dtype: torch.dtype = torch.float32, weights: str = "auto") -> Decoder:
    """The decoder of a directory on the CPU."""
    files = HuggingFaceDirectory(directory) if isinstance(directory, Path) else directory
    placement = Placement(dtype, torch.device("cpu"), weights=weights)
    return load_decoder(describe_model(files, FAMILIES), FAMILIES, placement)


@torch.inference_mode()
def whole_logits(decoder: Decoder, ids: list[int]) -> torch.Tensor:
    """[T, vocabulary] of one sequence without a cache."""
    attend = dense_attend(decoder.description)
    features = decoder.forward(torch.tensor(ids), torch.arange(len(ids)), attend)
    return decoder.logits(features)
