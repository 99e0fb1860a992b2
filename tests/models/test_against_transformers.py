"""Our decoders against transformers on tiny random checkpoints, whole sequences without a cache."""

from pathlib import Path

import pytest
import torch

from interlock.core.checkpoint import describe_model, load_decoder
from interlock.core.model import Decoder
from interlock.core.testing.tiny import dense_attend
from interlock.plugins.models import model_families
from tests.models.oracle import SHAPES, Oracle, write_oracle

LOGIT_TOLERANCE = 2e-4  # two fp32 sums of a few hundred terms in different orders
FAMILIES = model_families()
CPU = torch.device("cpu")


def load(directory: Path, dtype: torch.dtype = torch.float32) -> Decoder:
    return load_decoder(describe_model(directory, FAMILIES), FAMILIES, dtype, CPU)


@torch.inference_mode()
def our_logits(decoder: Decoder, ids: list[int]) -> torch.Tensor:
    features = decoder.forward(
        torch.tensor(ids), torch.arange(len(ids)), dense_attend(decoder.description)
    )
    return decoder.logits(features)


@pytest.fixture(scope="module", params=sorted(SHAPES))
def oracle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    return write_oracle(tmp_path_factory.mktemp("checkpoint"), request.param)


def test_logits_equal_transformers_at_every_position(oracle: Oracle) -> None:
    ids = oracle.prompt + oracle.greedy
    ours, theirs = our_logits(load(oracle.directory), ids), oracle.logits(ids)
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() < LOGIT_TOLERANCE


def test_greedy_output_equals_transformers(oracle: Oracle) -> None:
    decoder = load(oracle.directory)
    ids = list(oracle.prompt)
    for _ in oracle.greedy:
        ids.append(int(our_logits(decoder, ids)[-1].argmax()))
    assert ids[len(oracle.prompt) :] == oracle.greedy


def test_an_fp64_decoder_stays_fp64_and_agrees(oracle: Oracle) -> None:
    ids = oracle.prompt
    logits = our_logits(load(oracle.directory, torch.float64), ids)
    assert logits.dtype == torch.float64
    assert (logits - oracle.logits(ids)).abs().max() < LOGIT_TOLERANCE
