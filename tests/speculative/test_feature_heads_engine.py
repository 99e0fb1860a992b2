"""Medusa and Hydra heads in an engine: the tokens of plain decoding, whatever else goes on.

The models know eight tokens, and the trees try all of them first, so that every step accepts.
"""

import dataclasses
from functools import cache

import pytest

from interlock.core.capabilities import Composition, RunsModel, ServesTrees
from interlock.core.registry import load_registry
from interlock.core.testing.tiny import tiny_description, write_tiny_checkpoint
from interlock.plugins.models import model_families
from interlock.plugins.speculative import components
from interlock.plugins.speculative.heads.medusa_options import HydraConfig, MedusaConfig
from tests.engine.serving import asking, build, outputs, serve, solo
from tests.engine.test_drafts import drafts_of
from tests.speculative.feature_heads_oracle import HydraOracle, MedusaOracle, write

VOCAB = 8
TREE = (*((rank,) for rank in range(VOCAB)), (0, 0), (0, 1), (1, 0), (0, 0, 0))
SPECS = {
    "medusa": MedusaConfig(num_drafts=2),
    "medusa-tree": MedusaConfig(num_drafts=len(TREE), tree=TREE),
    "medusa-sampled": MedusaConfig(num_drafts=3, proposal="sampled"),
    "hydra": HydraConfig(num_drafts=3),
    "hydra-tree": HydraConfig(num_drafts=len(TREE), tree=TREE),
    "hydra-sampled": HydraConfig(num_drafts=3, proposal="sampled"),
}


@pytest.fixture(scope="module")
def model_of(tmp_path_factory):
    """Tiny models of eight tokens by kind, with random heads."""

    @cache
    def model(kind="gqa", positions=512):
        folder = tmp_path_factory.mktemp("few") / kind
        families = list(load_registry().families.values())
        write_tiny_checkpoint(
            folder, kind, families, vocab_size=VOCAB, max_position_embeddings=positions
        )
        write(folder / "medusa", MedusaOracle(tokens=VOCAB).tensors("repository"))
        write(folder / "hydra", HydraOracle(tokens=VOCAB).tensors())
        return folder

    return model


def prompt(count, salt=0):
    return tuple(2 + (salt * 3 + i * i + i // 3) % (VOCAB - 2) for i in range(count))


def requests(temperature):
    lengths = (9, 21, 1, 14)
    return [
        asking(
            i, prompt(n, i), 16, temperature=temperature, top_p=0.95, seed=i + 1, ignore_eos=True
        )
        for i, n in enumerate(lengths)
    ]


@cache
def plain(model, temperature):
    return solo(model, requests(temperature))


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize(
    ("kind", "page_size", "num_pages", "temperature"),
    [("gqa", 1, 60, 1.0), ("hybrid", 4, 64, 0.0), ("mla_moe", 16, 5, 1.0)],
)
def test_the_tokens_are_those_of_plain_decoding(
    model_of, kind, page_size, num_pages, spec, temperature
):
    """Prompts come in chunks; sixty pages of a token do not hold all requests."""
    model = model_of(kind)
    engine = build(
        model, spec=SPECS[spec], page_size=page_size, num_pages=num_pages, budget_tokens=21,
    )  # fmt: skip
    records = serve(engine, *requests(temperature))
    assert outputs(records) == plain(model, temperature)
    preempted = sum(record.preemptions for record in records.values())
    assert preempted > 0 or kind != "gqa"
    assert engine.core.ledger.accepted >= (5 if spec.endswith("tree") else 0)
    assert engine.core.ledger.drafted > 10


@pytest.mark.parametrize("spec", ["medusa-tree", "hydra-tree"])
def test_drafts_do_not_depend_on_a_prefix_hit(model_of, spec):
    shared = prompt(20, salt=2)
    request = asking(1, (*shared[:16], 3, 7, 2), 12, ignore_eos=True)
    cold, _ = drafts_of(build(model_of(), spec=SPECS[spec], index="radix"), request)
    engine = build(model_of(), spec=SPECS[spec], index="radix")
    serve(engine, asking(0, shared, 4))
    warm, record = drafts_of(engine, request)
    assert record.cached_tokens == 16
    assert warm == cold


@pytest.mark.parametrize("spec", SPECS)
def test_drafts_end_at_the_models_last_position(model_of, spec):
    model = model_of(positions=24)
    request = asking(0, prompt(15), 9, ignore_eos=True)
    engine = build(model, spec=SPECS[spec], page_size=4, num_pages=6)
    record = serve(engine, request)[0]
    assert record.output_token_ids == solo(model, [request])[0]
    assert len(record.output_token_ids) == 9


def requirements(config, capabilities, tmp_path):
    component = next(c for c in components() if (c.seam, c.name) == ("spec", config.name))
    model = dataclasses.replace(tiny_description("gqa", model_families()), directory=tmp_path)
    composition = Composition({}, frozenset(capabilities), model)
    reasons = [check(composition) for check in component.requires(config, model)]
    return [reason for reason in reasons if reason is not None]


@pytest.mark.parametrize("kind", ["medusa", "hydra"])
def test_missing_heads_are_refused_with_the_command_that_trains_them(tmp_path, kind):
    (reason,) = requirements(SPECS[kind], {RunsModel()}, tmp_path)
    assert f"train_drafter {kind} --target {tmp_path} --out {tmp_path / kind}" in reason
    assert "spec.path" in reason


@pytest.mark.parametrize("kind", ["medusa", "hydra"])
def test_trees_need_an_attention_component_that_computes_them(tmp_path, kind):
    write(tmp_path / kind, MedusaOracle().tensors("repository"))
    tree = SPECS[f"{kind}-tree"]
    (reason,) = requirements(tree, {RunsModel()}, tmp_path)
    assert "spec.tree=chain" in reason
    assert requirements(tree, {RunsModel(), ServesTrees()}, tmp_path) == []
    assert requirements(SPECS[kind], {RunsModel()}, tmp_path) == []
