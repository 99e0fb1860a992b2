"""A decoder built on the shares of several ranks computes what the whole one does."""

import dataclasses
import re
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from interlock.core.checkpoint import describe_model, load_decoder
from interlock.core.model import Decoder
from interlock.core.parallel import ALONE, Placement, Ranks
from interlock.core.testing.thread_ranks import Meeting, ThreadRanks, run_on_ranks
from interlock.core.testing.tiny import dense_attend, write_tiny_checkpoint
from interlock.plugins.models.hugging_face import HuggingFaceDirectory
from interlock.plugins.parallel.splits import requirements
from tests.models.loading import FAMILIES
from tests.models.oracle import SHAPES, random_model

TOLERANCE = 1e-9  # sums of a few hundred fp64 terms of size 1 in other orders
IDS = torch.tensor([5, 17, 3, 99, 42, 17, 64, 8, 127, 0, 31, 90, 12])


@torch.inference_mode()
def logits_and_embeddings(directory: Path, ranks: Ranks) -> tuple[torch.Tensor, torch.Tensor]:
    """What this rank gets for IDS, without a cache."""
    description = describe_model(HuggingFaceDirectory(directory), FAMILIES)
    placement = Placement(torch.float64, torch.device("cpu"), ranks)
    decoder: Decoder = load_decoder(description, FAMILIES, placement)
    local = tuple(spec.on(ranks) for spec in description.attention)
    attend = dense_attend(dataclasses.replace(description, attention=local))
    features = decoder.forward(IDS, torch.arange(len(IDS)), attend)
    return decoder.logits(features), decoder.embed(IDS)


def splits(directory: Path, size: int) -> bool:
    _, sizes = requirements(size, describe_model(HuggingFaceDirectory(directory), FAMILIES))
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


def expected_bytes(tensors: dict[str, torch.Tensor], size: int) -> int:
    """Of one rank: everything is split but norms, routers, and a latent's way down and up."""
    whole = re.compile(r"norm|mlp\.gate\.|q_a_proj|kv_a_proj")
    total = 0
    for name, tensor in tensors.items():
        copies = 2 if size == 4 and re.search(r"k_proj|v_proj", name) else 1  # 2 heads, 4 ranks
        total += tensor.nbytes if whole.search(name) else copies * tensor.nbytes // size
    return total


@pytest.mark.parametrize("kind", ["gqa", "mla_moe"])
@pytest.mark.parametrize("size", [2, 4])
def test_a_rank_reads_its_own_slices_and_nothing_else(kind, size, tmp_path, monkeypatch):
    write_tiny_checkpoint(tmp_path, kind, FAMILIES)
    read = []

    class Recorded:
        """An open file of which every tensor that comes out is noted."""

        def __init__(self, *arguments, **options):
            self.file = safe_open(*arguments, **options)

        def get_tensor(self, name):
            read.append(self.file.get_tensor(name))
            return read[-1]

        def get_slice(self, name):
            return Sliced(self.file.get_slice(name))

    class Sliced:
        def __init__(self, stored):
            self.stored = stored

        def __getitem__(self, part):
            read.append(self.stored[part])
            return read[-1]

    monkeypatch.setattr("interlock.plugins.models.safetensors.safe_open", Recorded)
    description = describe_model(HuggingFaceDirectory(tmp_path), FAMILIES)
    expected = expected_bytes(load_file(tmp_path / "model.safetensors"), size)
    for rank in range(size):
        read.clear()
        ranks = ThreadRanks(rank, Meeting(size))
        placement = Placement(torch.float32, torch.device("cpu"), ranks)
        weights = description.files.weights()
        load_decoder(description, FAMILIES, placement, weights)
        assert sum(tensor.nbytes for tensor in read) == weights.given_bytes == expected
