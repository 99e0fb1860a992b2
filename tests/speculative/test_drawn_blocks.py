"""Drawn candidates of draft models and blocks under exact rules: the law of plain decoding."""

import pytest

from interlock.core.registry import load_registry
from interlock.core.request import SamplingParams
from interlock.core.testing.tiny import write_tiny_checkpoint
from interlock.plugins.speculative.heads.block_options import (
    DFlashConfig,
    DraftModelConfig,
    DSparkConfig,
)
from tests.engine.serving import asking, build, outputs, serve, solo
from tests.engine.test_verifiers import (
    SAMPLINGS,
    VOCAB,
    assert_outputs_follow,
    output_law,
    sampled_outputs,
)
from tests.speculative.block_oracle import block_config, block_tensors, write_block_head


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A model of four tokens, with a draft model and heads."""
    families = list(load_registry().families.values())
    folder = tmp_path_factory.mktemp("small")
    write_tiny_checkpoint(folder, "gqa", families, seed=3, vocab_size=VOCAB)
    write_tiny_checkpoint(folder / "draft_model", "gqa", families, seed=4, vocab_size=VOCAB)
    config = block_config(vocab_size=VOCAB, mask_token_id=3)
    write_block_head(folder / "dflash", block_tensors(vocab=VOCAB), config)
    spark = block_tensors(vocab=VOCAB, markov="rnn", confidence="both")
    more = {"markov_rank": 6, "markov_head_type": "rnn"}
    write_block_head(folder / "dspark", spark, config | more)
    return folder


CHOICES = [
    (DraftModelConfig(num_drafts=3, proposal="sampled"), "ratio", "filters"),
    (DFlashConfig(num_drafts=4, proposal="sampled"), "ratio", "penalties"),
    (DSparkConfig(num_drafts=5, proposal="sampled"), "block", "plain"),
]


@pytest.mark.parametrize(("spec", "verifier", "sampling"), CHOICES, ids=lambda v: str(v)[:12])
def test_outputs_follow_the_law_of_plain_decoding(small, spec, verifier, sampling):
    asked = SAMPLINGS[sampling]
    found, engine = sampled_outputs(small, None, spec, verifier, asked, 800)
    ledger = engine.core.ledger
    assert 0.05 < ledger.accepted / ledger.drafted < 0.95
    assert_outputs_follow(found, output_law(small, SamplingParams(max_tokens=5, **asked)))


@pytest.mark.parametrize(("spec", "verifier", "sampling"), CHOICES, ids=lambda v: str(v)[:12])
def test_greedy_requests_beside_drawn_ones_get_their_tokens(small, spec, verifier, sampling):
    greedy = [asking(i, (2, 3, i), 20, ignore_eos=True) for i in range(2)]
    drawn = [asking(2 + i, (3, 2, i), 20, **SAMPLINGS[sampling]) for i in range(2)]
    records = serve(build(small, spec=spec, verifier=verifier), *greedy, *drawn)
    right = solo(small, greedy)
    assert {i: tokens for i, tokens in outputs(records).items() if i in right} == right
