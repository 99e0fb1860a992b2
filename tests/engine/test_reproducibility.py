"""A request's tokens depend on its seed and the model, not on what happens around it."""

import pytest

from interlock.core.testing.replay_drafter import Continuations, ReplayConfig, replay_component
from interlock.plugins.speculative import NgramConfig
from interlock.plugins.speculative.heads.options import EagleConfig
from tests.engine.serving import asking, build, outputs, plus, serve, solo, tokens

PROMPT = tokens(9, salt=2)
REQUESTS = [
    asking(i, PROMPT, 16, temperature=1.0, top_p=0.95, seed=7 + i, ignore_eos=True)
    for i in range(4)
]


@pytest.fixture(scope="module")
def right(model_of):
    return {kind: solo(model_of(kind), REQUESTS) for kind in ("gqa", "hybrid")}


def test_four_seeds_give_four_outputs_of_one_prompt(right):
    for found in right.values():
        assert len({tuple(output) for output in found.values()}) == 4


@pytest.mark.parametrize("kind", ["gqa", "hybrid"])
@pytest.mark.parametrize("spec", ["none", "chain", "tree", "eagle", "ngram"])
@pytest.mark.parametrize("num_pages", [48, 9])
def test_samples_survive_drafts_and_preemption(model_of, right, kind, spec, num_pages):
    """Nine pages of four tokens hold one whole request and a half: others are preempted."""
    known = [(*r.prompt_token_ids, *right[kind][r.index]) for r in REQUESTS]
    registry = plus(replay_component("replay", Continuations(known)))
    options = {
        "none": "none",
        "chain": ReplayConfig("replay", 3),
        "tree": ReplayConfig("replay", 6, tree=True),
        "eagle": EagleConfig(num_drafts=3),
        "ngram": NgramConfig(num_drafts=3, ngram_min=1),
    }
    attention = "reference" if spec == "tree" else "gqa"
    engine = build(
        model_of(kind), registry, spec=options[spec], num_pages=num_pages, index="none",
        attention=attention,
    )  # fmt: skip
    records = serve(engine, *REQUESTS)
    assert outputs(records) == right[kind]
    preempted = sum(record.preemptions for record in records.values())
    assert (preempted > 0) == (num_pages == 9)


def test_requests_without_a_seed_get_one_from_the_runs_seed_and_their_index(model_of):
    def run(seed, *indices):
        requests = [asking(i, PROMPT, 8, temperature=1.0, ignore_eos=True) for i in indices]
        return serve(build(model_of(), seed=seed), *requests)

    first, again, other = run(5, 0, 1, 2), run(5, 2, 0), run(6, 0, 1, 2)
    assert len({tuple(record.output_token_ids) for record in first.values()}) == 3
    assert outputs(again) == {i: first[i].output_token_ids for i in (0, 2)}
    assert all(first[i].output_token_ids != other[i].output_token_ids for i in range(3))
    written = asking(9, PROMPT, 8, temperature=1.0, ignore_eos=True, seed=first[1].seed)
    assert serve(build(model_of()), written)[9].output_token_ids == first[1].output_token_ids


def test_greedy_beside_sampled_requests_stays_greedy(model_of):
    greedy = asking(4, PROMPT, 16, ignore_eos=True)
    tiny = asking(5, PROMPT, 16, ignore_eos=True, temperature=1e-6, seed=3)
    records = serve(build(model_of()), *REQUESTS, greedy, tiny)
    assert records[4].output_token_ids == solo(model_of(), [greedy])[4]
    assert records[5].output_token_ids == records[4].output_token_ids
