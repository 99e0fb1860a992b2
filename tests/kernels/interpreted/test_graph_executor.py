"""Padded steps over Triton's plans: the first plan of a shape serves every later step of it."""

import pytest

from interlock.core.registry import load_registry
from interlock.core.testing.tiny import write_tiny_checkpoint
from interlock.plugins.attention import GqaConfig, MlaConfig
from interlock.plugins.speculative import NgramConfig
from tests.engine.serving import asking, build, outputs, serve, solo, tokens


@pytest.mark.parametrize(
    ("kind", "attention", "num_drafts"),
    [
        ("gqa", GqaConfig(kernel="triton"), 0),
        ("hybrid", GqaConfig(kernel="triton"), 2),
        ("mla", MlaConfig(kernel="triton"), 2),
    ],
)
def test_a_recorded_pass_of_kernels_gives_the_tokens_of_each_request_alone(
    tmp_path, kind, attention, num_drafts
):
    families = list(load_registry().families.values())
    model = write_tiny_checkpoint(tmp_path / kind, kind, families)
    shared = tokens(6)
    asked = [
        asking(i, prompt, 5 + i, ignore_eos=True)
        for i, prompt in enumerate((shared * 2, shared, (*shared, 3)))
    ]
    spec = NgramConfig(num_drafts=num_drafts) if num_drafts else "none"
    engine = build(
        model, executor="cuda_graph", attention=attention, spec=spec, num_pages=12, max_requests=4
    )
    assert outputs(serve(engine, *asked)) == solo(model, asked)
    facts = engine.executor.facts()
    assert sum(facts["replayed_steps"].values()) > facts["recorded_shapes"] > 0
    assert engine.core.ledger.padding > 0
