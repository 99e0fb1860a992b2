"""Our decoders against transformers on tiny random checkpoints."""

import pytest
import torch

from interlock.conf.find_model import shipped_models
from interlock.core.attention import AttentionBackend
from interlock.core.model import Decoder
from interlock.plugins.attention.gqa import GqaAttention
from interlock.plugins.attention.mla import MlaAttention
from interlock.plugins.attention.reference import ReferenceAttention
from tests.models.loading import LOGIT_TOLERANCE, load, whole_logits
from tests.models.oracle import ONE_A_FAMILY, SHAPES, VOCAB_SIZE, Oracle
from tests.models.paged_run import PagedRun, in_chunks, ragged


def backends(decoder: Decoder) -> list[AttentionBackend]:
    latent = "latent" in decoder.description.forms
    return [ReferenceAttention(), MlaAttention() if latent else GqaAttention()]


def test_logits_equal_transformers_at_every_position(oracle: Oracle) -> None:
    ids = oracle.prompt + oracle.greedy
    ours, theirs = whole_logits(load(oracle.directory), ids), oracle.logits(ids)
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() < LOGIT_TOLERANCE


def test_greedy_output_equals_transformers(oracle: Oracle) -> None:
    decoder = load(oracle.directory)
    ids = list(oracle.prompt)
    for _ in oracle.greedy:
        ids.append(int(whole_logits(decoder, ids)[-1].argmax()))
    assert ids[len(oracle.prompt) :] == oracle.greedy


def test_an_fp64_decoder_stays_fp64_and_agrees(oracle: Oracle) -> None:
    ids = oracle.prompt
    logits = whole_logits(load(oracle.directory, torch.float64), ids)
    assert logits.dtype == torch.float64
    assert (logits - oracle.logits(ids)).abs().max() < LOGIT_TOLERANCE


@pytest.mark.parametrize(
    "oracle",
    ["llama_gqa", "llama_linear", "llama_yarn", "deepseek_v3_yarn", "kimi_k2", "olmo3", "gemma3",
     "gpt_oss"],
    indirect=True,
)  # fmt: skip
def test_scaled_rotary_embedding_agrees_at_positions_beyond_1000(oracle: Oracle) -> None:
    ids = torch.randint(VOCAB_SIZE, (1100,), generator=torch.Generator().manual_seed(2)).tolist()
    difference = whole_logits(load(oracle.directory), ids)[1000:] - oracle.logits(ids)[1000:]
    assert difference.abs().max() < LOGIT_TOLERANCE


@pytest.mark.parametrize("oracle", ["llama_dynamic", "llama_longrope"], indirect=True)
def test_a_scaling_that_depends_on_the_length_is_exact_up_to_its_last_position(
    oracle: Oracle,
) -> None:
    decoder = load(oracle.directory)
    most = decoder.description.max_positions
    ids = torch.randint(VOCAB_SIZE, (most,), generator=torch.Generator().manual_seed(2)).tolist()
    theirs = oracle.logits(ids)
    assert (whole_logits(decoder, ids) - theirs).abs().max() < LOGIT_TOLERANCE
    longer = oracle.logits([*ids, 1])[:most]
    assert (longer - theirs).abs().max() > 10 * LOGIT_TOLERANCE  # why no more is served


@pytest.mark.parametrize("oracle", ONE_A_FAMILY, indirect=True)
@pytest.mark.parametrize(("chunk", "page_size"), [(1, 4), (7, 1), (64, 16)])
def test_chunks_through_pages_equal_transformers(
    oracle: Oracle, chunk: int, page_size: int
) -> None:
    decoder = load(oracle.directory)
    ids = oracle.prompt + oracle.greedy
    for backend in backends(decoder):
        run = PagedRun(decoder, backend, page_size, 1, len(ids))
        logits = in_chunks(run, 0, ids, chunk)
        assert (logits - oracle.logits(ids)).abs().max() < LOGIT_TOLERANCE, backend


@pytest.mark.parametrize("oracle", ONE_A_FAMILY, indirect=True)
@pytest.mark.parametrize("page_size", [1, 16])
def test_ragged_batches_through_pages_equal_transformers(oracle: Oracle, page_size: int) -> None:
    check_ragged(oracle, page_size)


def test_ragged_batches_of_every_shape_equal_transformers(oracle: Oracle) -> None:
    check_ragged(oracle, page_size=4)


def check_ragged(oracle: Oracle, page_size: int) -> None:
    """Random sequences, a random set of them a step, each by a random number of tokens."""
    decoder = load(oracle.directory)
    draw = torch.Generator().manual_seed(5)
    sequences = [
        torch.randint(VOCAB_SIZE, (length,), generator=draw).tolist() for length in (1, 17, 48, 63)
    ]
    for backend in backends(decoder):
        run = PagedRun(decoder, backend, page_size, len(sequences), 64)
        for ids, logits in zip(sequences, ragged(run, sequences, seed=3), strict=True):
            assert (logits - oracle.logits(ids)).abs().max() < LOGIT_TOLERANCE, backend


def test_every_class_of_transformers_has_a_shape_that_is_tested_in_all_ways() -> None:
    assert {SHAPES[name][0] for name in ONE_A_FAMILY} == {kind for kind, _ in SHAPES.values()}


@pytest.mark.parametrize("name", sorted(shipped_models()))
def test_a_shipped_model_gives_the_logits_of_transformers(name: str) -> None:
    import transformers

    directory = shipped_models()[name]
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    decoder = load(directory)
    vocab = decoder.description.vocab_size
    ids = torch.randint(vocab, (64,), generator=torch.Generator().manual_seed(0)).tolist()
    with torch.inference_mode():
        expected = theirs(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    assert (whole_logits(decoder, ids) - expected).abs().max() < LOGIT_TOLERANCE


def test_the_shipped_models_are_installed() -> None:
    assert {"tiny-gqa", "tiny-mla"} <= shipped_models().keys()
