"""A decoder built on the shares of several ranks computes what the whole one does."""

import dataclasses
from pathlib import Path

import pytest
import torch

from interlock.core.checkpoint import describe_model, load_decoder
from interlock.core.model import Decoder
from interlock.core.parallel import ALONE, Placement, Ranks
from interlock.core.testing.thread_ranks import run_on_ranks
from interlock.core.testing.tiny import dense_attend
from interlock.plugins.parallel.splits import requirements
from tests.models.loading import FAMILIES
from tests.models.oracle import SHAPES, random_model

TOLERANCE = 1e-9  # sums of a few hundred fp64 terms of size 1 in other orders
IDS = torch.tensor([5, 17, 3, 99, 42, 17, 64, 8, 127, 0, 31, 90, 12])


@torch.inference_mode()
def logits_and_embeddings(directory: Path, ranks: Ranks) -> tuple[torch.Tensor, torch.Tensor]:
    """What this rank gets for IDS, without a cache."""
    description = describe_model(directory, FAMILIES)
    placement = Placement(torch.float64, torch.device("cpu"), ranks)
    decoder: Decoder = load_decoder(description, FAMILIES, placement)
    local = tuple(spec.on(ranks) for spec in description.attention)
    attend = dense_attend(dataclasses.replace(description, attention=local))
    features = decoder.forward(IDS, torch.arange(len(IDS)), attend)
    return decoder.logits(features), decoder.embed(IDS)


def splits(directory: Path, size: int) -> bool:
    _, sizes = requirements(size, describe_model(directory, FAMILIES))
    return sizes(None) is None


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_every_rank_gets_the_logits_of_the_whole_model(name, tmp_path):
    random_model(name).save_pretrained(tmp_path)
    logits, embeddings = logits_and_embeddings(tmp_path, ALONE)
    sizes = [size for size in (2, 4) if splits(tmp_path, size)]
    assert 2 in sizes
    for size in sizes:
        for split in run_on_ranks(size, lambda ranks: logits_and_embeddings(tmp_path, ranks)):
            torch.testing.assert_close(split, (logits, embeddings), rtol=0, atol=TOLERANCE)
