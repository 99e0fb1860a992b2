"""Medusa and Hydra drafts against heads in numpy, in every layout that is published."""

import numpy as np
import pytest
import torch

from interlock.core.batch import NO_DRAFT
from interlock.core.component import BuildContext
from interlock.core.drafter import DraftRows, Drawn
from interlock.core.errors import CheckpointError, ConfigError
from interlock.core.request import SamplingParams
from interlock.core.testing.tiny import tiny_description, tiny_model
from interlock.plugins.models import model_families, model_formats
from interlock.plugins.speculative.heads import hydra, medusa
from interlock.plugins.speculative.heads.medusa_options import HydraConfig, MedusaConfig
from tests.speculative.eagle_oracle import ListCache
from tests.speculative.feature_heads_oracle import (
    HIDDEN,
    VOCAB,
    HydraOracle,
    MedusaOracle,
    expand,
    write,
)

TOLERANCE = 1e-12  # chances of fp64 laws, summed in another order
SPANS = [(0, 4), (3, 3), (2, 3), (5, 9)]
LIMITS = (9, 5, 2, 1)
TREE = ((0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (1, 0, 1))
MEDUSA = [("repository", 1, True), ("legacy", 2, True), ("vllm", 2, False)]


@pytest.fixture(scope="module")
def decoder():
    return tiny_model("gqa", model_families(), dtype=torch.float64)


def context_of(**model):
    return BuildContext(
        formats=model_formats(),
        model=tiny_description("gqa", model_families(), **model),
        device=torch.device("cpu"),
        dtype=torch.float64,
    )


def load(kind, directory, num_drafts=3, **options):
    build, config = {"medusa": (medusa.build, MedusaConfig), "hydra": (hydra.build, HydraConfig)}[
        kind
    ]
    chosen = config(num_drafts=num_drafts, path=str(directory), **options)
    return build(chosen, context_of())


def rows_of(spans=SPANS, limits=LIMITS):
    """Random features and tokens; request r brings its positions spans[r]."""
    rng = np.random.default_rng(8)
    lengths = [end - first for first, end in spans]
    count = sum(lengths)
    return DraftRows(
        features_NE=torch.from_numpy(rng.normal(size=(count, HIDDEN))),
        tokens_N=torch.from_numpy(rng.integers(0, VOCAB, count)),
        next_tokens_N=torch.from_numpy(rng.integers(0, VOCAB, count)),
        row_offsets=tuple(np.cumsum([0, *lengths]).tolist()),
        starts=tuple(first for first, _ in spans),
        limits=tuple(limits),
        params=(SamplingParams(),) * len(spans),
        seeds=np.zeros(len(spans), dtype=np.uint64),
    )


def check(drafter, oracle, decoder, paths, ids=None):
    """Every draft of `rows_of` is the first nodes of the tree that the oracle expands."""
    rows = rows_of()
    embedding = decoder.embed(torch.arange(VOCAB)).numpy()
    drafts = drafter.propose(rows, ListCache(decoder, 4, expected_layer=2))
    order = list(drafter.tree.paths)
    assert sorted(order) == sorted(paths)
    for r, draft in enumerate(drafts):
        last = rows.row_offsets[r + 1] - 1
        if rows.row_offsets[r] > last:
            assert draft == NO_DRAFT
            continue
        tokens, chances = expand(
            oracle,
            rows.features_NE[last].numpy(),
            int(rows.next_tokens_N[last]),
            embedding,
            paths,
            ids,
        )
        kept = order[: min(rows.limits[r], len(order))]
        assert draft.tokens == tuple(tokens[path] for path in kept)
        assert np.abs(np.array(draft.confidence) - [chances[path] for path in kept]).max() < (
            TOLERANCE
        )
        if draft.parents is not None:
            assert draft.parents == tuple(
                -1 if len(path) == 1 else order.index(path[:-1]) for path in kept
            )
        assert draft.laws is None


CHAIN = ((0,), (0, 0), (0, 0, 0))


@pytest.mark.parametrize("paths", [CHAIN, TREE], ids=["chain", "tree"])
@pytest.mark.parametrize(("layout", "blocks", "biased"), MEDUSA)
def test_medusa_drafts_equal_those_of_dense_heads(tmp_path, decoder, layout, blocks, biased, paths):
    oracle = MedusaOracle(blocks=blocks, biased=biased)
    head = write(tmp_path, oracle.tensors(layout), medusa_num_heads=2)
    tree = {} if paths is CHAIN else {"tree": paths}
    check(load("medusa", head, len(paths), **tree), oracle, decoder, paths)


@pytest.mark.parametrize("paths", [CHAIN, TREE], ids=["chain", "tree"])
@pytest.mark.parametrize(("blocks", "grounded"), [(1, True), (3, True), (2, False)])
def test_hydra_drafts_equal_those_of_dense_heads(tmp_path, decoder, blocks, grounded, paths):
    oracle = HydraOracle(blocks=blocks, grounded=grounded)
    tree = {} if paths is CHAIN else {"tree": paths}
    drafter = load("hydra", write(tmp_path, oracle.tensors()), len(paths), **tree)
    assert drafter.heads.reads_tokens == grounded
    check(drafter, oracle, decoder, paths)


class Drawing(ListCache):
    """Draws the least likely token that can come, and notes who asked for what."""

    def draw(self, logits_RV, requests, positions):
        self.passes.append((tuple(requests), tuple(positions)))
        laws_RV = (logits_RV / 0.7).softmax(-1)
        tokens_R = laws_RV.masked_fill(laws_RV == 0, 2).argmin(-1)
        return Drawn(tokens_R, laws_RV)


@pytest.mark.parametrize("kind", ["medusa", "hydra"])
def test_sampled_chains_come_with_the_laws_they_were_drawn_from(tmp_path, decoder, kind):
    oracle = MedusaOracle() if kind == "medusa" else HydraOracle()
    tensors = oracle.tensors("repository") if kind == "medusa" else oracle.tensors()
    drafter = load(kind, write(tmp_path, tensors), proposal="sampled")
    context, rows = Drawing(decoder, 4, expected_layer=2), rows_of()
    embedding = decoder.embed(torch.arange(VOCAB)).numpy()
    drafts = drafter.propose(rows, context)
    # Anchors are tokens 4, 3 and 9 of their requests; most wanted first.
    assert context.passes == [((0, 2, 3), (5, 4, 10)), ((0, 2), (6, 5)), ((0,), (7,))]
    for r in (0, 2, 3):
        last, draft = rows.row_offsets[r + 1] - 1, drafts[r]
        assert len(draft.tokens) == min(LIMITS[r], 3) == len(draft.laws) == len(draft.confidence)
        path = [int(rows.next_tokens_N[last])]
        for token, law, sure in zip(draft.tokens, draft.laws, draft.confidence, strict=True):
            logits = oracle.logits(rows.features_NE[last].numpy(), path, embedding)
            wanted, plain = (np.exp(x - x.max()) for x in (logits / 0.7, logits))
            assert np.abs(law.numpy() - wanted / wanted.sum()).max() < TOLERANCE
            assert abs(sure - plain.max() / plain.sum()) < TOLERANCE
            assert token == int(np.argmin(wanted))
            path.append(token)


def test_a_sampled_draft_is_cut_without_laws_of_what_is_left_out(tmp_path, decoder):
    head = write(tmp_path, MedusaOracle().tensors("repository"))
    drafter = load("medusa", head, proposal="sampled")
    context = Drawing(decoder, 4, expected_layer=2)
    for limit in (1, 2, 3):
        draft = drafter.propose(rows_of(limits=(limit,) * 4), context)[0]
        assert draft.laws.shape == (limit, VOCAB)


@pytest.mark.parametrize("prefix", ["", "medusa_heads."])
@pytest.mark.parametrize("stored", ["lm_head.weight", "lm_heads.0.weight", None])
def test_heads_share_one_output_matrix_where_the_config_says_so(tmp_path, decoder, stored, prefix):
    oracle = MedusaOracle()
    tensors = {n: x for n, x in oracle.tensors("vllm").items() if not n.startswith("lm_heads")}
    shared = oracle.parts[1]["out"]
    if stored is None:
        shared = decoder.logits(torch.eye(HIDDEN, dtype=torch.float64)).T.numpy()
    else:
        tensors[stored] = shared
    for part in oracle.parts:
        part["out"] = shared
    tensors = {prefix + name: x for name, x in tensors.items()}
    head = write(tmp_path, tensors, original_lm_head=True)
    check(load("medusa", head), oracle, decoder, CHAIN)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("proposal", ["greedy", "sampled"])
def test_a_truncated_vocabulary_drafts_only_its_tokens(tmp_path, decoder, whole, proposal):
    ids = np.array([5, 63, 17, 2, 40, 8], dtype=np.int64)
    oracle = MedusaOracle(tokens=VOCAB if whole else len(ids))
    tensors = oracle.tensors("vllm") | {"token_map": ids}
    head = write(tmp_path, tensors, truncated_vocab_size=len(ids))
    if whole:
        for part in oracle.parts:
            part["out"] = part["out"][ids]
    drafter = load("medusa", head, proposal=proposal)
    if proposal == "greedy":
        return check(drafter, oracle, decoder, CHAIN, ids)
    for draft in drafter.propose(rows_of(), Drawing(decoder, 4, expected_layer=2)):
        assert set(draft.tokens) <= set(ids.tolist())
        for law in draft.laws if draft.laws is not None else ():
            assert law[ids].sum() == pytest.approx(1)
            assert (law > 0).sum() == len(ids)
    return None


def test_padding_behind_the_vocabulary_is_left_out(tmp_path, decoder):
    oracle = MedusaOracle(tokens=VOCAB + 8)
    head = write(tmp_path, oracle.tensors("repository"))
    for part in oracle.parts:
        part["out"] = part["out"][:VOCAB]
    check(load("medusa", head), oracle, decoder, CHAIN)


def test_a_map_to_tokens_that_the_target_lacks_is_refused(tmp_path):
    tensors = MedusaOracle(tokens=2).tensors("vllm") | {"token_map": np.array([3, VOCAB])}
    with pytest.raises(CheckpointError, match="token_map must name tokens from 0 to 63"):
        load("medusa", write(tmp_path, tensors))


def test_nothing_is_kept_between_steps(tmp_path, decoder):
    drafter = load("hydra", write(tmp_path, HydraOracle().tensors()))
    assert (drafter.attention, drafter.lookback_tokens, drafter.entries_ahead(3)) == ((), 0, 0)
    context = ListCache(decoder, 4, expected_layer=2)
    drafter.propose(rows_of(), context)
    assert context.passes == []


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        ("medusa", lambda t: t.pop("medusa_head.1.1.weight"), ["missing (1)", "head.1.1.weight"]),
        (
            "medusa",
            lambda t: t.update({"medusa_head.2.0.linear.weight": np.zeros((32, 64))}),
            ["misshapen (1)", "medusa_head.2.0.linear.weight is [32, 64]"],
        ),
        (
            "medusa",
            lambda t: t.update({"medusa_head.4.1.weight": np.zeros((64, 32))}),
            ["unexpected (1)", "medusa_head.4.1.weight"],
        ),
        ("medusa", lambda t: t.clear() or t.update(x=np.zeros(1)), ["no Medusa head", "x is"]),
        ("hydra", lambda t: t.clear() or t.update(x=np.zeros(1)), ["no Hydra head", "x is"]),
        (
            "hydra",
            lambda t: t.pop("hydra_mlp.1.0.res_connection.weight"),
            ["missing (1)", "hydra_mlp.1.0.res_connection.weight [32, 96]"],
        ),
        (
            "hydra",
            lambda t: t.update({"prefix_embeding_layer.norm.weight": np.zeros(32)}),
            ["hydra_head_arch=prefix-mlp", "only mlp"],
        ),
    ],
)
def test_wrong_tensors_are_named(tmp_path, kind, change, words):
    oracle = MedusaOracle() if kind == "medusa" else HydraOracle()
    tensors = oracle.tensors("repository") if kind == "medusa" else oracle.tensors()
    change(tensors)
    with pytest.raises(CheckpointError) as error:
        load(kind, write(tmp_path, tensors))
    assert all(word in str(error.value) for word in words)


def test_heads_of_another_target_are_refused(tmp_path):
    head = write(tmp_path, MedusaOracle().tensors("legacy"), hidden_size=48, vocab_size=99)
    with pytest.raises(CheckpointError) as error:
        load("medusa", head)
    assert "hidden_size=48 is not the target's 32" in str(error.value)
    assert "vocab_size=99 is not the target's 64" in str(error.value)


def test_a_chain_longer_than_the_stored_heads_is_refused(tmp_path):
    head = write(tmp_path, MedusaOracle(heads=2).tensors("legacy"))
    with pytest.raises(ConfigError, match="num_drafts=3, but 2 heads are stored"):
        load("medusa", head, num_drafts=3)
    with pytest.raises(ConfigError, match="longest path in tree=3, but 2 heads are stored"):
        load("medusa", head, num_drafts=3, tree=CHAIN)


@pytest.mark.parametrize("heads", [1, 2, 4])
def test_a_chain_has_a_draft_for_each_stored_head_unless_told_otherwise(tmp_path, heads):
    head = write(tmp_path, MedusaOracle(heads=heads).tensors("legacy"))
    assert load("medusa", head, num_drafts=None).num_drafts == heads
    assert load("medusa", head, num_drafts=1).num_drafts == 1
    paths = ((0,), (1,), (2,))
    assert load("medusa", head, num_drafts=None, tree=paths).num_drafts == 3
    with pytest.raises(ConfigError, match="tree=auto takes the likeliest nodes: set num_drafts"):
        load("medusa", head, num_drafts=None, tree="auto")


def test_a_rank_beyond_what_heads_know_is_refused(tmp_path):
    tensors = MedusaOracle(tokens=2).tensors("vllm") | {"token_map": np.array([3, 4])}
    with pytest.raises(ConfigError, match="tree has rank 2, but the heads know 2 tokens"):
        load("medusa", write(tmp_path, tensors), tree=((0,), (1,), (2,)))
