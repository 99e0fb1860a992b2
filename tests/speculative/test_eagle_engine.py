"""The shipped heads inside an engine, against the recipe's simulation of the same requests."""

from functools import cache

import pytest
import torch
from tokenizers import Tokenizer

from interlock.conf.find_model import shipped_models
from interlock.core.assemble import assemble
from interlock.core.request import Request, SamplingParams
from interlock.models.recipe.acceptance import measure_acceptance
from interlock.models.recipe.checkpoint import load_decoder
from interlock.models.recipe.eagle import load_head
from interlock.models.recipe.tokenizer import encode_documents
from tests.speculative.rebuild import Rebuilt

PROMPTS, PROMPT_TOKENS, OUTPUT_TOKENS = 6, 64, 40
WITH_HEAD = [name for name, path in shipped_models().items() if (path / "eagle").is_dir()]


@cache
def plain(name):
    """Tokens without drafts."""
    records = serve(name, held_out_ids(shipped_models()[name]), "spec=none", "dtype=float64")
    return [record.output_token_ids for record in records]


def held_out_ids(directory):
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    return encode_documents(tokenizer, [(directory / "held_out.txt").read_text()])


def serve(name, ids, *overrides):
    """Records of the same evenly spaced prompts that the recipe measures on, in order."""
    return served(assemble([f"model={name}", "threads=1", *overrides]), ids)


def served(engine, ids):
    """What `serve` gives, of an engine that stands."""
    starts = torch.linspace(0, len(ids) - PROMPT_TOKENS, PROMPTS).long().tolist()
    sampling = SamplingParams(max_tokens=OUTPUT_TOKENS, ignore_eos=True)
    for index, start in enumerate(starts):
        prompt = tuple(ids[start : start + PROMPT_TOKENS].tolist())
        engine.submit(Request(index=index, prompt_token_ids=prompt, sampling=sampling))
    records = {}
    while len(records) < PROMPTS:
        records |= {out.index: out.finished for out in engine.step() if out.finished}
    return [records[index] for index in range(PROMPTS)]


@pytest.mark.parametrize("name", WITH_HEAD)
def test_an_engine_accepts_what_the_recipe_measured_and_changes_no_token(name):
    directory = shipped_models()[name]
    ids = held_out_ids(directory)
    drafted = serve(name, ids, "spec=eagle", "dtype=float64")
    assert [r.output_token_ids for r in drafted] == plain(name)
    measured = measure_acceptance(
        load_decoder(directory),
        load_head(directory / "eagle"),
        ids,
        prompts=PROMPTS,
        prompt_tokens=PROMPT_TOKENS,
        output_tokens=OUTPUT_TOKENS,
    )
    emitted = PROMPTS * (OUTPUT_TOKENS - 1)
    passes = emitted - sum(r.accepted_tokens for r in drafted)
    # The recipe computes in fp32: a near-tie of two tokens may fall the other way there.
    assert emitted / passes == pytest.approx(measured.emitted_per_pass, rel=0.03)
    assert emitted / passes > 2.0


TREES = {
    "fixed": ("spec=eagle", "spec.tree=mc_sim_7b_63", "spec.num_drafts=25"),
    "drawn": (
        "spec=eagle",
        "spec.tree=mc_sim_7b_63",
        "spec.num_drafts=25",
        "spec.proposal=sampled",
    ),
    "grown": ("spec=eagle2", "spec.num_drafts=20", "spec.depth=5", "spec.top_k=4"),
}


@pytest.mark.parametrize("tree", TREES)
def test_accepted_paths_of_trees_leave_the_rows_of_committed_tokens(tree):
    """Several candidates a pass are accepted here, in pages of four tokens."""
    directory = shipped_models()["tiny-gqa"]
    ids = held_out_ids(directory)
    settings = ("dtype=float64", "cache.page_size=4")
    engine = assemble(["model=tiny-gqa", "threads=1", *settings, *TREES[tree]])
    rebuilt = Rebuilt(engine)
    drafted = served(engine, ids)
    assert [r.output_token_ids for r in drafted] == plain("tiny-gqa")
    assert rebuilt.checked > 0
    emitted = PROMPTS * (OUTPUT_TOKENS - 1)
    assert emitted / (emitted - sum(r.accepted_tokens for r in drafted)) > 2.5
