"""spec=dflash and spec=dspark, step by step, against dense blocks in numpy fp64."""

import numpy as np
import pytest
import torch

from interlock.core.batch import NO_DRAFT
from interlock.core.component import BuildContext
from interlock.core.drafter import DraftRows
from interlock.core.errors import ConfigError
from interlock.core.request import SamplingParams
from interlock.core.testing.tiny import tiny_description, tiny_model
from interlock.plugins.models import model_families, model_formats
from interlock.plugins.speculative.heads import dflash, dspark
from interlock.plugins.speculative.heads.block_options import DFlashConfig, DSparkConfig
from tests.speculative.block_oracle import (
    SIZES,
    SLOTS,
    block_config,
    block_rows,
    block_tensors,
    left_to_right,
    write_block_head,
)
from tests.speculative.eagle_oracle import ListCache

TOLERANCE = 1e-10  # fp64 against fp64 in another order of sums; values are of order 1 to 30
TEXT = [[5, 9, 9, 3, 17, 40, 2, 62, 8, 8, 1, 30], [7, 0, 50], [21, 22, 23, 24, 25, 26, 27]]
STEPS = [
    ([(0, 4), (0, 0), (0, 5)], (4, 3, 2)),  # a prefill, a request not in this step, a chunk
    ([(4, 6), (0, 2), (5, 6)], (3, 4, 0)),  # two committed, a late prefill, a limit of 0
    ([(6, 6), (2, 2), (6, 6)], (4, 4, 4)),  # nobody brings rows
    ([(6, 11), (2, 2), (6, 6)], (9, 0, 0)),  # more is asked for than num_drafts
]
"""(spans, limits) of consecutive steps."""


@pytest.fixture(scope="module")
def decoder():
    return tiny_model("gqa", model_families(), dtype=torch.float64)


def load(directory, num_drafts=4, spark=False, dtype=torch.float64, **options):
    context = BuildContext(
        formats=model_formats(),
        model=tiny_description("gqa", model_families()),
        device=torch.device("cpu"),
        dtype=dtype,
    )
    kind, module = (DSparkConfig, dspark) if spark else (DFlashConfig, dflash)
    return module.build(kind(num_drafts=num_drafts, path=str(directory), **options), context)


class Target:
    """What the target would give for TEXT, and its tables as arrays."""

    def __init__(self, decoder, taps=1):
        hidden = SIZES["hidden_size"]
        self.embedding = decoder.embed(torch.arange(64)).numpy()
        self.head = decoder.logits(torch.eye(hidden, dtype=torch.float64)).T.numpy()
        draw = np.random.default_rng(3)
        self.taps = [draw.normal(size=(len(text), taps, hidden)) for text in TEXT]

    def rows(self, spans, limits):
        """Committed rows spans[r] = (first, end) of every text."""
        offsets = [0, *np.cumsum([end - first for first, end in spans]).tolist()]
        spanned = [self.taps[r][first:end] for r, (first, end) in enumerate(spans)]
        taps = torch.from_numpy(np.concatenate(spanned))
        following = [
            t for r, (first, end) in enumerate(spans) for t in TEXT[r][first + 1 : end + 1]
        ]
        return DraftRows(
            features_NE=torch.full_like(taps[:, 0], torch.nan),
            tokens_N=torch.tensor([t for r, (a, b) in enumerate(spans) for t in TEXT[r][a:b]]),
            next_tokens_N=torch.tensor(following, dtype=torch.long),
            row_offsets=tuple(offsets),
            starts=tuple(first for first, _ in spans),
            limits=tuple(limits),
            params=(SamplingParams(),) * len(spans),
            seeds=np.zeros(len(spans), dtype=np.uint64),
            taps=tuple(taps.unbind(1)),
        )


SPARKS = [
    ("vanilla", "both", {}),
    ("gated", "row", {}),
    ("rnn", "both", {}),
    ("rnn", None, {"sample_from_anchor": False}),
    (None, "row", {}),
    (None, None, {"target_layer_ids": [0], "sample_from_anchor": True}),
]


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize(("markov", "confidence", "more"), SPARKS)
def test_sparks_and_their_rows_equal_dense_ones_after_every_step(
    tmp_path, decoder, markov, confidence, more, sampled
):
    tensors = block_tensors(own=confidence == "row", markov=markov, confidence=confidence)
    config = block_config(
        **more, markov_rank=6 if markov else 0, markov_head_type=markov or "vanilla",
        enable_confidence_head=confidence is not None,
        confidence_head_with_markov=confidence == "both",
    )  # fmt: skip
    write_block_head(tmp_path, tensors, config)
    drafter = load(tmp_path, spark=True, proposal="sampled" if sampled else "greedy")
    first = 0 if more.get("sample_from_anchor", True) else 1
    check_steps(drafter, decoder, tensors, markov, first, sampled)


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("own", [False, True])
def test_flashes_and_their_rows_equal_dense_ones_after_every_step(tmp_path, decoder, own, sampled):
    tensors = block_tensors(own=own)
    drafter = load(
        write_block_head(tmp_path, tensors, block_config()),
        proposal="sampled" if sampled else "greedy",
    )
    check_steps(drafter, decoder, tensors, None, 1, sampled)


@pytest.mark.parametrize("spark", [False, True])
def test_a_head_of_fewer_ids_drafts_the_targets(tmp_path, decoder, spark):
    tensors = block_tensors(ids=32, markov="gated" if spark else None)
    config = block_config(draft_vocab_size=32)
    config |= {"markov_rank": 6, "markov_head_type": "gated"} if spark else {}
    drafter = load(write_block_head(tmp_path, tensors, config), spark=spark, proposal="sampled")
    drafts = check_steps(drafter, decoder, tensors, "gated" if spark else None, 1 - spark, True)
    assert all(token % 2 == 0 for draft in drafts for token in draft.tokens)


def check_steps(drafter, decoder, tensors, markov, first, sampled):
    """Drafts, laws, confidence and rows after every step; rows are those made from scratch."""
    target, layers = Target(decoder), SIZES["num_hidden_layers"]
    context = ListCache(decoder, len(TEXT), expected_layer=2, num_layers=layers)
    made = []
    for spans, limits in STEPS:
        drafts = drafter.propose(target.rows(spans, limits), context)
        for r, ((begin, end), limit) in enumerate(zip(spans, limits, strict=True)):
            if begin == end or limit == 0:
                assert drafts[r] == NO_DRAFT
                continue
            count, anchor = min(limit, 4), TEXT[r][end]
            taps = target.taps[r][:end].reshape(end, -1)
            rows, keys, values = block_rows(tensors, target.embedding, taps, anchor)
            tokens, laws, chances = left_to_right(
                tensors, target.head, rows, anchor, count, markov, first
            )
            assert drafts[r].tokens == tuple(tokens)
            assert drafts[r].parents is None
            np.testing.assert_allclose(drafts[r].confidence, chances, rtol=0, atol=TOLERANCE)
            assert sampled == (drafts[r].laws is not None)
            if sampled:
                np.testing.assert_allclose(drafts[r].laws, laws, rtol=0, atol=TOLERANCE)
            check_rows(context, r, end, keys, values)
            made.append(drafts[r])
    return made


def check_rows(context, r, end, keys, values):
    for layer, entries in enumerate(context.layers.values()):
        assert len(entries[r]) == end + SLOTS  # whole blocks, behind what was committed
        for entry in range(end):
            k, v = entries[r][entry]
            assert np.abs(k.numpy() - keys[layer][entry]).max() < TOLERANCE
            assert np.abs(v.numpy() - values[layer][entry]).max() < TOLERANCE


def test_a_step_is_one_pass_over_committed_rows_and_one_over_blocks(tmp_path, decoder):
    drafter = load(write_block_head(tmp_path, block_tensors(), block_config()))
    context = ListCache(decoder, len(TEXT), expected_layer=2, num_layers=2)
    drafter.propose(Target(decoder).rows([(0, 4), (0, 2), (0, 6)], (1, 0, 2)), context)
    assert context.passes == [
        ((0, 1, 2), (4, 2, 6), (0, 0, 0)),
        ((2, 0), (SLOTS, SLOTS), (6, 4)),
    ]
    context.passes.clear()
    assert drafter.propose(Target(decoder).rows([(4, 4)] * 3, (4, 4, 4)), context) == [NO_DRAFT] * 3
    assert context.passes == []


def test_what_it_declares(tmp_path):
    drafter = load(write_block_head(tmp_path, block_tensors(), block_config()), num_drafts=3)
    assert (drafter.num_drafts, drafter.lookback_tokens, drafter.max_positions) == (3, 0, 512)
    assert drafter.taps == (0,)
    assert [spec.num_kv_heads for spec in drafter.attention] == [2, 2]
    assert {drafter.entries_ahead(limit) for limit in (1, 2, 3)} == {SLOTS}


@pytest.mark.parametrize("spark", [False, True])
def test_a_block_that_would_pass_the_heads_positions_is_not_run(tmp_path, decoder, spark):
    config = block_config(max_position_embeddings=10, sample_from_anchor=spark)
    drafter = load(write_block_head(tmp_path, block_tensors(), config), spark=spark)
    context = ListCache(decoder, len(TEXT), expected_layer=2, num_layers=2)
    drafts = drafter.propose(Target(decoder).rows([(0, 5), (0, 2), (0, 6)], (2, 2, 2)), context)
    assert [len(draft.tokens) for draft in drafts] == [2, 2, 0]  # 6 and a block of 5 are 11


@pytest.mark.parametrize(("spark", "made"), [(False, 4), (True, 5)])
def test_more_candidates_than_a_block_makes_are_refused(tmp_path, spark, made):
    write_block_head(tmp_path, block_tensors(), block_config(sample_from_anchor=spark))
    load(tmp_path, num_drafts=made, spark=spark)
    with pytest.raises(ConfigError, match=f"=6: blocks of 5 make {made} .* set spec.num_drafts="):
        load(tmp_path, num_drafts=6, spark=spark)
    load(tmp_path, num_drafts=60, tree="ddtree")  # nodes, not depth


def test_embeddings_and_logits_are_scaled_and_capped_as_the_config_says(tmp_path, decoder):
    tensors = block_tensors(own=True)
    extra = {"input_embedding_scale": 3.0, "output_multiplier": 0.5, "final_logit_softcapping": 2.0}
    write_block_head(tmp_path, tensors, block_config(dflash_config=extra))
    context = ListCache(decoder, len(TEXT), expected_layer=2, num_layers=2)
    drafter, target = load(tmp_path, proposal="sampled"), Target(decoder)
    draft, _, _ = drafter.propose(target.rows([(0, 4), (0, 2), (0, 6)], (4, 0, 0)), context)
    scaled = tensors | {"embed_tokens.weight": 3 * tensors["embed_tokens.weight"]}
    taps = target.taps[0][:4].reshape(4, -1)
    rows, _, _ = block_rows(scaled, None, taps, TEXT[0][4])
    logits = 2 * np.tanh(rows[1:] @ tensors["lm_head.weight"].T * 0.5 / 2)
    laws = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    np.testing.assert_allclose(draft.laws, laws, rtol=0, atol=TOLERANCE)
