"""EAGLE-3 heads in each published layout, against a dense one, and what is refused."""

import json
from functools import cache

import numpy as np
import pytest
import torch

from interlock.core.component import BuildContext
from interlock.core.drafter import DraftRows
from interlock.core.errors import CheckpointError
from interlock.core.request import SamplingParams
from interlock.core.testing.tiny import tiny_description, tiny_model
from interlock.plugins.models import model_families, model_formats
from interlock.plugins.speculative.heads.eagle3 import build
from interlock.plugins.speculative.heads.options import Eagle3Config
from tests.speculative import eagle3_oracle as oracle
from tests.speculative.eagle3_files import renamed, specforge, speculators, tensors_of, write
from tests.speculative.eagle_oracle import ListCache
from tests.speculative.tree_oracle import dynamic_paths, paths_of

LAYERS, IDS = 6, (2, 3, 5)
"""Layers of the target, and the published ids of taps 1, 2 and 4."""
TEXT = [[5, 9, 9, 3, 17, 40, 2, 63], [7, 0, 50, 12], [21, 22, 23, 24, 25, 26, 27]]
TARGET = {"hidden_size": 32, "vocab_size": 64, "max_position_embeddings": 512}
STEPS = [([(0, 4), (0, 0), (0, 5)], (5, 3, 2)), ([(4, 6), (0, 2), (5, 6)], (4, 5, 0))]
"""(spans, limits) of consecutive steps."""


@pytest.fixture(scope="module")
def decoder():
    return tiny_model("gqa", model_families(), dtype=torch.float64)


def load(directory, **options):
    model = tiny_description("gqa", model_families(), num_hidden_layers=LAYERS)
    context = BuildContext(
        formats=model_formats(), model=model, device=torch.device("cpu"), dtype=torch.float64
    )
    return build(Eagle3Config(path=str(directory), **options), context)


def taps_of(layers):
    """What so many layers of the target give at every position of every text."""
    draw = torch.Generator().manual_seed(3)
    return [
        torch.randn(len(text), layers, 32, generator=draw, dtype=torch.float64) for text in TEXT
    ]


def rows(spans, limits, taps):
    """Committed rows spans[r] = (first, end) of every text."""
    ends = np.cumsum([0, *(end - first for first, end in spans)])
    parts = [taps[r][a:b] for r, (a, b) in enumerate(spans)]
    tapped = torch.cat(parts)
    return DraftRows(
        features_NE=torch.zeros(len(tapped), 32, dtype=torch.float64),
        tokens_N=torch.tensor([t for r, (a, b) in enumerate(spans) for t in TEXT[r][a:b]]),
        next_tokens_N=torch.tensor(
            [t for r, (a, b) in enumerate(spans) for t in TEXT[r][a + 1 : b + 1]]
        ),
        row_offsets=tuple(ends.tolist()),
        starts=tuple(first for first, _ in spans),
        limits=limits,
        params=(SamplingParams(),) * len(spans),
        seeds=np.zeros(len(spans), dtype=np.uint64),
        taps=tuple(tapped.unbind(1)),
    )


def dense_law(tensors, decoder, taps_TXE, text, end, **stated):
    """The law after a path of candidates, by the dense head."""
    table = tensors.get("embed_tokens.weight", decoder.embed(torch.arange(64)))
    true = [oracle.carried(tensors, list(taps), **stated) for taps in taps_TXE[:end]]

    @cache
    def handed(path):
        firsts = [*true, *(handed(path[:n]) for n in range(len(path)))]
        return oracle.last_output(tensors, table[[*text[1 : end + 1], *path]], firsts, **stated)

    return lambda path: oracle.law(tensors, handed(path), 64, **stated).numpy()


VARIANTS = {
    "plain": {},
    "some tokens": {"draft_vocab": 24},
    "norm before residual": {"norm_before_residual": True},
    "3.1, one norm": {"norm_before_fc": True, "norm_output": True, "draft_vocab": 24},
    "3.1, a norm a tap": {"fc_norm": True, "norm_output": True},
    "of another width": {"width": 24, "draft_vocab": 20},
    "own embedding": {"embedding": True},
}
SIZES = ("draft_vocab", "width", "embedding")


def written(directory, form, layout, **variant):
    """A head in this form of config with these names of tensors; and its tensors."""
    stated = {key: value for key, value in variant.items() if key not in SIZES}
    sizes = {key: variant[key] for key in ("draft_vocab", "width") if key in variant}
    tensors = tensors_of(TARGET, len(IDS), **variant)
    config = form(TARGET, IDS, **sizes, **stated)
    return write(directory, config, layout(tensors)), tensors, stated


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("form", "layout"), [(specforge, dict), (speculators, renamed)])
def test_chains_are_those_of_a_dense_head_in_every_published_layout(
    tmp_path, decoder, form, layout, variant
):
    head, tensors, stated = written(tmp_path, form, layout, **VARIANTS[variant])
    drafter = load(head, num_drafts=4)
    assert drafter.taps == (1, 2, 4)
    context, taps = ListCache(decoder, len(TEXT), expected_layer=LAYERS), taps_of(3)
    for spans, limits in STEPS:
        drafts = drafter.propose(rows(spans, limits, taps), context)
        for r, ((first, end), limit) in enumerate(zip(spans, limits, strict=True)):
            law = dense_law(tensors, decoder, taps[r], TEXT[r], end, **stated)
            path = ()
            for _ in range(min(limit, 4) if end > first else 0):
                path = (*path, int(law(path).argmax()))
            assert drafts[r].tokens == path
            chances = [law(path[:n]).max() for n in range(len(path))]
            assert drafts[r].confidence == pytest.approx(chances, abs=1e-9)


def test_a_tree_over_some_tokens_is_that_of_the_dense_head(tmp_path, decoder):
    head, tensors, stated = written(tmp_path, specforge, dict, draft_vocab=24)
    drafter = load(head, num_drafts=11, tree="dynamic", depth=4, top_k=3)
    taps, spans = taps_of(3), [(0, 4), (0, 2), (0, 6)]
    context = ListCache(decoder, len(TEXT), expected_layer=LAYERS)
    for r, draft in enumerate(drafter.propose(rows(spans, (11,) * 3, taps), context)):
        law = dense_law(tensors, decoder, taps[r], TEXT[r], spans[r][1], **stated)
        assert paths_of(draft) == [path for path, _ in dynamic_paths(law, 4, 3, 11)]


def test_laws_of_drawn_tokens_are_over_the_targets_tokens(tmp_path, decoder):
    head, tensors, stated = written(tmp_path, specforge, dict, draft_vocab=24)
    drafter = load(head, num_drafts=3, proposal="sampled")
    taps, spans = taps_of(3), [(0, 4), (0, 2), (0, 6)]
    context = ListCache(decoder, len(TEXT), expected_layer=LAYERS)
    for r, draft in enumerate(drafter.propose(rows(spans, (3, 3, 3), taps), context)):
        law = dense_law(tensors, decoder, taps[r], TEXT[r], spans[r][1], **stated)
        for n, found in enumerate(draft.laws):
            assert np.abs(found.numpy() - law(draft.tokens[:n])).max() < 1e-9
            assert (found > 0).sum() == 24


def test_a_head_without_ids_taps_what_its_authors_do(tmp_path):
    tensors = tensors_of(TARGET, 3)
    config = specforge(TARGET, IDS)
    del config["eagle_config"]
    target = {"num_hidden_layers": 12}
    model = tiny_description("gqa", model_families(), **target)
    context = BuildContext(
        formats=model_formats(), model=model, device=torch.device("cpu"), dtype=torch.float64
    )
    path = str(write(tmp_path, config, tensors))
    assert build(Eagle3Config(path=path), context).taps == (1, 5, 8)


def without(name):
    return lambda tensors: {n: t for n, t in tensors.items() if n != name}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without("fc.weight"), ["missing (1): fc.weight [32, 96]"]),
        (without("d2t"), ["missing (1): d2t [24]"]),
        (lambda t: t | {"extra.weight": torch.zeros(2)}, ["unexpected (1): extra.weight [2]"]),
        (
            lambda t: t | {"midlayer.self_attn.q_proj.weight": torch.zeros(32, 32)},
            ["misshapen (1)", "q_proj.weight is [32, 32], the config asks for [32, 64]"],
        ),
        (lambda t: t | {"d2t": t["d2t"] + 60}, ["not different tokens below vocab_size=64"]),
        (lambda t: t | {"t2d": ~t["t2d"]}, ["t2d and d2t do not name the same tokens"]),
    ],
)
def test_wrong_tensors_are_named(tmp_path, change, words):
    tensors = change(tensors_of(TARGET, 3, draft_vocab=24))
    with pytest.raises(CheckpointError) as error:
        load(write(tmp_path, specforge(TARGET, IDS, draft_vocab=24), tensors))
    assert all(word in str(error.value) for word in words)


def test_a_head_of_another_target_is_refused_with_every_field(tmp_path):
    other = {"hidden_size": 48, "vocab_size": 100, "max_position_embeddings": 512}
    config = speculators(
        other, (2, 9, 0, 5), target_hidden_size=48, norm_output="yes", draft_vocab=200
    )
    with pytest.raises(CheckpointError) as error:
        load(write(tmp_path, config, tensors_of(other, 4)))
    for words in (
        "target_hidden_size=48 is not the target's 32",
        "vocab_size=100 is not the target's 64",
        "eagle_aux_hidden_state_layer_ids=[2, 9, 0, 5] are not different layers from 1 to 5",
        "draft_vocab_size=200 is more than vocab_size=100",
        "norm_output='yes' is not true or false",
    ):
        assert words in str(error.value)


def test_the_trained_layout_round_trips(tmp_path, decoder):
    """bf16 files are read in the engine's dtype, and every value is the stored one."""
    tensors = {
        n: t.bfloat16() if t.is_floating_point() else t for n, t in tensors_of(TARGET).items()
    }
    drafter = load(write(tmp_path, specforge(TARGET, IDS), tensors))
    for name, product in (("fc", drafter.head.fc), ("lm_head", drafter.head.lm_head)):
        stored = tensors[f"{name}.weight"].double()
        assert torch.equal(product(torch.eye(stored.shape[1], dtype=torch.float64)), stored.T)
    assert json.loads((tmp_path / "config.json").read_text())["draft_vocab_size"] == 64
