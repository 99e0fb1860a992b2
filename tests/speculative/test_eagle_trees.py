"""Trees of the EAGLE family against growing them path by path, and what their options refuse."""

from functools import cache

import numpy as np
import pytest
import torch

from interlock.core.errors import ConfigError
from interlock.core.testing.tiny import tiny_model
from interlock.plugins.models import model_families
from interlock.plugins.speculative.heads.eagle import drafter_of
from interlock.plugins.speculative.heads.options import Eagle2Config, Eagle3Config, EagleConfig
from interlock.plugins.speculative.heads.tree_paths import MC_SIM_7B_63, static_tree
from tests.speculative.eagle_oracle import ListCache, head_tensors, last_estimate
from tests.speculative.test_eagle import TEXT, Target, load, write_head
from tests.speculative.tree_oracle import dynamic_paths, paths_of, static_paths

SPANS, LIMITS = [(0, 4), (0, 2), (0, 6)], (30, 3, 7)
"""Requests of different lengths that want different numbers of candidates."""
RANKS = ((0,), (1,), (2,), (0, 0), (0, 1), (2, 0), (0, 0, 0), (0, 0, 1), (2, 0, 0), (0, 0, 0, 0))


@pytest.fixture(scope="module")
def decoder():
    return tiny_model("gqa", model_families(), dtype=torch.float64)


@pytest.fixture(scope="module")
def head(tmp_path_factory):
    return load(write_head(tmp_path_factory.mktemp("head"), head_tensors())).head


def law_of(target, r):
    """The dense head's law after a path of candidates of request r."""
    tensors, end = head_tensors(), SPANS[r][1]

    @cache
    def estimate(path):
        features = [*target.features[r][:end], *(estimate(path[:n]) for n in range(len(path)))]
        tokens = [*TEXT[r][1 : end + 1], *path]
        return last_estimate(tensors, target.embedding[tokens], features)[0]

    def law(path):
        logits = target.head @ estimate(path)
        weights = np.exp(logits - logits.max())
        return weights / weights.sum()

    return law


def proposed(head, config, decoder):
    drafter = drafter_of(config, head, 64)
    context = ListCache(decoder, len(TEXT), expected_layer=2)
    return drafter, context, drafter.propose(Target(decoder).rows(SPANS, LIMITS), context)


@pytest.mark.parametrize(
    ("depth", "top_k", "count"), [(4, 3, 12), (1, 5, 4), (3, 2, 40), (5, 1, 5)]
)
def test_a_dynamic_tree_has_the_likeliest_paths_of_the_dense_head(
    head, decoder, depth, top_k, count
):
    config = Eagle2Config(num_drafts=count, depth=depth, top_k=top_k)
    _, _, drafts = proposed(head, config, decoder)
    for r, draft in enumerate(drafts):
        limit = min(LIMITS[r], count)
        law = law_of(Target(decoder), r)
        right = dynamic_paths(law, min(depth, limit), top_k, limit)
        assert paths_of(draft) == [path for path, _ in right]
        assert draft.confidence == pytest.approx([chance for _, chance in right], abs=1e-9)
        assert draft.laws is None


@pytest.mark.parametrize("ranks", [RANKS, MC_SIM_7B_63, ((0,), (1,), (2,))])
def test_a_static_tree_has_the_ranks_of_the_dense_head_under_each_parent(head, decoder, ranks):
    drafts = proposed(head, EagleConfig(num_drafts=len(ranks), tree=ranks), decoder)[2]
    for r, draft in enumerate(drafts):
        limit = LIMITS[r]
        shallow = [path for path in ranks if len(path) <= limit]
        right = static_paths(law_of(Target(decoder), r), shallow, limit)
        assert paths_of(draft) == [path for path, _ in right]
        assert draft.confidence == pytest.approx([chance for _, chance in right], abs=1e-9)


@pytest.mark.parametrize(
    "config",
    [Eagle2Config(num_drafts=30, depth=4, top_k=3), EagleConfig(num_drafts=10, tree=RANKS)],
)
def test_a_tree_writes_no_further_than_it_says(head, decoder, config):
    drafter, context, drafts = proposed(head, config, decoder)
    for r, (_, end) in enumerate(SPANS):
        limit = min(LIMITS[r], drafter.num_drafts)
        assert end < len(context.rows[r]) <= end + drafter.entries_ahead(limit)
        assert len(drafts[r].tokens) <= limit


def test_any_prefix_of_a_dynamic_tree_is_the_best_tree_of_its_size(head, decoder):
    config = Eagle2Config(num_drafts=30, depth=4, top_k=3)
    draft = proposed(head, config, decoder)[2][0]
    law = law_of(Target(decoder), 0)
    for size in (1, 5, 11):
        best = [path for path, _ in dynamic_paths(law, 4, 3, size)]
        assert paths_of(draft.first(size)) == best


class Drawing(ListCache):
    """Draws by a fixed table of numbers, and remembers every law and its key."""

    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self.asked = []

    def draw(self, logits_RV, requests, positions, nth=0):
        laws = logits_RV.softmax(-1)
        numbers = np.random.default_rng(len(self.asked)).random(len(laws))
        self.asked.append({(r, at, nth) for r, at in zip(requests, positions, strict=True)})
        reached = laws.cumsum(-1) > torch.from_numpy(numbers)[:, None]
        return (
            super()
            .draw(logits_RV, requests, positions)
            ._replace(tokens_R=reached.to(torch.int64).argmax(-1), laws_RV=laws)
        )


def test_siblings_are_drawn_without_replacement_from_the_law_that_is_left(head, decoder):
    drafter = drafter_of(EagleConfig(num_drafts=10, tree=RANKS, proposal="sampled"), head, 64)
    context = Drawing(decoder, len(TEXT), expected_layer=2)
    drafts = drafter.propose(Target(decoder).rows(SPANS, LIMITS), context)
    tree = static_tree(RANKS, 10)
    for r, draft in enumerate(drafts):
        law, paths, tried = law_of(Target(decoder), r), paths_of(draft), {}
        assert len(draft.laws) == len(draft.tokens) == min(LIMITS[r], 10)
        parents = tuple(range(-1, len(paths) - 1)) if draft.parents is None else draft.parents
        assert parents == tree.parents[: len(paths)], "what was drawn moved a candidate"
        for node, path in enumerate(paths):
            left = law(path[:-1]).copy()
            left[tried.setdefault(path[:-1], [])] = 0
            left /= left.sum()
            assert np.abs(draft.laws[node].numpy() - left).max() < 1e-9
            assert draft.confidence[node] == pytest.approx(left.max(), abs=1e-9)
            assert path[-1] not in tried[path[:-1]]
            tried[path[:-1]].append(path[-1])
    keys = [key for asked in context.asked for key in asked]
    assert len(set(keys)) == len(keys), "siblings, or candidates of two depths, share their noise"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tree": ((0, 0),)}, ["tree path [0, 0] has no parent [0]"]),
        ({"tree": ((0,), (2,))}, ["tree path [2] comes before its sibling [1]"]),
        ({"tree": ((0,), (0,))}, ["the path [0] twice"]),
        ({"tree": ((0,), (-1,), ())}, ["[-1] is not a list of child ranks", "[] is not a list"]),
        ({"tree": ()}, ["tree=[] has no candidates"]),
        ({"tree": "mc_sim_7b_36"}, ["did you mean 'mc_sim_7b_63'"]),
        ({"tree": "mc_sim_7b_63"}, ["tree has 25 paths: set num_drafts=25"]),
        ({"proposal": "smapled"}, ["did you mean 'sampled'"]),
    ],
)
def test_a_tree_that_is_none_is_refused_with_the_reason(options, words):
    with pytest.raises(ConfigError) as error:
        EagleConfig(**options)
    assert all(word in str(error.value) for word in words)


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        (
            Eagle2Config,
            {"depth": 0, "top_k": 0, "num_drafts": 0},
            ["depth=0", "top_k=0", "num_"],
        ),
        (Eagle3Config, {"top_k": 3}, ["top_k=3 is for dynamic trees only: set spec.tree=dynamic"]),
        (Eagle3Config, {"tree": "dynamic", "proposal": "sampled"}, ["proposal=sampled", "dynamic"]),
    ],
)
def test_options_that_would_do_nothing_are_refused(kind, options, words):
    with pytest.raises(ConfigError) as error:
        kind(**options)
    assert all(word in str(error.value) for word in words)


def test_more_siblings_than_the_head_knows_tokens_are_refused(head):
    config = EagleConfig(num_drafts=5, tree=tuple((rank,) for rank in range(5)))
    with pytest.raises(ConfigError, match="5 siblings, but the head knows 4 tokens"):
        drafter_of(config, head, 4)
