"""attention=mla with attention.kernel=triton keeps the contract, and serves what torch serves."""

import pytest
import torch

from interlock.conf.hydra_edge import compose
from interlock.core.assemble import build_engine
from interlock.core.model import AttentionSpec
from interlock.core.registry import load_registry
from interlock.core.request import Request, SamplingParams
from interlock.core.testing.attention_contract import AttentionContract
from interlock.core.testing.attention_oracle import Work
from interlock.core.testing.attention_scene import Scene
from interlock.core.testing.tiny import write_tiny_checkpoint
from interlock.plugins.attention import triton_mla
from interlock.plugins.attention.triton_mla import TritonMlaAttention

SMALL = AttentionSpec("latent", 4, 1, 14, 8, 0.3, None, 24, 6, 8)


class TestMlaByCost(AttentionContract):
    forms = ("latent",)
    long_chunk_tokens = 90

    def make(self):
        return TritonMlaAttention("cost")

    def specs(self):
        return [layers[:2] for layers in super().specs()]  # the interpreter is slow

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_narrow_dtypes_stay_within_their_rounding(self, dtype):
        if dtype == torch.bfloat16:
            pytest.skip("the interpreter multiplies bf16 as integers: it needs a GPU")
        super().test_narrow_dtypes_stay_within_their_rounding(dtype)


@pytest.mark.parametrize("form", ["absorbed", "expanded"])
def test_every_row_runs_in_the_form_that_is_asked_for(form):
    scene = Scene(TritonMlaAttention(form), (SMALL,), (90, 40, 30), page_size=16)
    scene.check_step(Work(0, 60), Work(1, 17))
    scene.check_step(Work(1, 1, (-1, -1, 0, 1)), Work(0, 1), Work(2, 3))


def test_heads_take_turns_where_their_keys_and_values_do_not_fit(monkeypatch):
    monkeypatch.setattr(triton_mla, "EXPANDED_BYTES", 90 * (6 + 8) * 8 * 3)
    scene = Scene(TritonMlaAttention("expanded"), (SMALL,), (90,), page_size=16)
    scene.check_step(Work(0, 90))


def test_a_step_of_decode_and_drafts_is_launched_alike_whatever_its_lengths():
    scene = Scene(TritonMlaAttention("cost"), (SMALL,), (50, 50), page_size=4)
    scene.table_pages = 13
    scene.check_step(Work(0, 33), Work(1, 2))  # more new tokens than a short row has
    scene.check_step(Work(0, 1), Work(1, 3))
    scene.check_step(Work(0, 2), Work(1, 2))
    assert scene.replayed == 1


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    families = list(load_registry().families.values())
    return write_tiny_checkpoint(tmp_path_factory.mktemp("m") / "mla", "mla", families)


def served(model, *overrides):
    """Tokens of three requests, one of which extends another's prompt."""
    given = [f"model={model}", "attention=mla", "dtype=float32", "threads=1", "progress=false",
             "cache.page_size=4", "cache.num_pages=64", "spec=ngram",
             "scheduler.budget_tokens=48"]  # fmt: skip
    engine = build_engine(compose([*given, *overrides], load_registry()), load_registry())
    prompts = [tuple(2 + i * i % 7 for i in range(n)) for n in (45, 9, 53)]
    for index, prompt in enumerate(prompts):
        engine.submit(Request(index, prompt, SamplingParams(max_tokens=6, ignore_eos=True)))
    found = {}
    while engine.has_work:
        for output in engine.step():
            found.setdefault(output.index, []).extend(output.new_token_ids)
    return found, engine


@pytest.mark.parametrize("stored", ["auto", "fp8"])
def test_an_engine_gives_the_tokens_that_it_gives_with_torch(model, stored):
    with_torch, _ = served(model, "attention.kernel=torch", f"cache.dtype={stored}")
    with_triton, engine = served(model, "attention.kernel=triton", f"cache.dtype={stored}")
    assert "TritonMlaAttention" in str(engine.classes)
    assert with_triton == with_torch
    assert [len(tokens) for tokens in with_torch.values()] == [6, 6, 6]


def test_padded_steps_that_a_graph_would_replay_give_the_same_tokens(model):
    with_torch, _ = served(model, "attention.kernel=torch")
    replayed, engine = served(model, "attention.kernel=triton", "executor=cuda_graph")
    assert replayed == with_torch
    facts = engine.executor.facts()
    assert sum(facts["replayed_steps"].values()) > facts["recorded_shapes"] > 0
