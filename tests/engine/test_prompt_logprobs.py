"""The law of every prompt token, whatever the schedule and the cache, against one whole pass."""

import dataclasses

import pytest
import torch
import transformers

from interlock.core.checkpoint import load_decoder
from interlock.core.model import Placement
from interlock.core.registry import load_registry
from interlock.core.request import Status
from interlock.core.testing.tiny import dense_attend
from interlock.plugins.executor import torch_executor
from interlock.plugins.speculative.heads.options import EagleConfig
from tests.engine.serving import Client, asking, build, outputs, serve, tokens

TOLERANCE = 1e-9
"""fp64 against fp64: sums over a few hundred terms in another order."""
THEIRS = 1e-5
"""transformers rotates and normalises in fp32, also in a model in fp64."""
PROMPT = tokens(37, salt=3)


def whole_pass(model, prompt):
    """Log-probabilities [prompt, vocabulary] of every next token, in one pass without a cache."""
    families = list(load_registry().families.values())
    description = build(model).resolution.model
    decoder = load_decoder(description, families, Placement(torch.float64, torch.device("cpu")))
    attend = dense_attend(description)
    with torch.no_grad():
        features = decoder.forward(torch.tensor(prompt), torch.arange(len(prompt)), attend)
        return decoder.logits(features).log_softmax(-1)


def assert_laws(record, prompt, laws, top, within=TOLERANCE):
    first, *others = record.prompt_logprobs
    assert first is None
    assert len(others) == len(prompt) - 1
    for place, one in enumerate(others):
        law = laws[place]
        assert one.chosen == pytest.approx(law[prompt[place + 1]].item(), abs=within)
        best = law.topk(top)
        assert [token for token, _ in one.top] == best.indices.tolist()
        assert [v for _, v in one.top] == pytest.approx(best.values.tolist(), abs=within)


def test_laws_are_those_of_transformers(model_of):
    model = transformers.AutoModelForCausalLM.from_pretrained(model_of(), dtype=torch.float64)
    with torch.no_grad():
        laws = model(torch.tensor([PROMPT])).logits[0].log_softmax(-1)
    record = serve(build(model_of()), asking(0, PROMPT, 2, prompt_logprobs=3))[0]
    assert_laws(record, PROMPT, laws, top=3, within=THEIRS)


@pytest.mark.parametrize("kind", ["gqa", "hybrid"])
@pytest.mark.parametrize("index", ["none", "radix", "block_hash"])
@pytest.mark.parametrize("spec", ["none", "eagle"])
def test_laws_do_not_depend_on_chunks_preemptions_hits_or_neighbours(
    model_of, monkeypatch, kind, index, spec
):
    monkeypatch.setattr(torch_executor, "SCORED_ROWS", 5)
    engine = build(
        model_of(kind), index=index, num_pages=22, budget_tokens=9, victim="lowest_priority",
        spec=EagleConfig(num_drafts=2) if spec == "eagle" else "none",
    )  # fmt: skip
    warm = asking(9, PROMPT, 2)
    right = outputs(serve(build(model_of(kind)), dataclasses.replace(warm, index=1)))
    serve(engine, warm)
    asked = [
        asking(0, PROMPT[:30], 20, n=2, ignore_eos=True, priority=1),
        asking(1, PROMPT, 2, prompt_logprobs=2, n=3),
        asking(2, PROMPT[:1], 3, prompt_logprobs=0),
        asking(3, PROMPT[:2], 9, prompt_logprobs=0, ignore_eos=True),
    ]
    records = serve(engine, *asked)
    laws = whole_pass(model_of(kind), PROMPT)
    assert_laws(records[1], PROMPT, laws, top=2)
    assert records[2].prompt_logprobs == [None]
    assert_laws(records[3], PROMPT[:2], laws, top=0)
    assert not any(records[1, sample].prompt_logprobs for sample in (1, 2))
    assert records[1].cached_tokens == 0
    assert all(records[key].output_token_ids == right[1] for key in (1, (1, 1), (1, 2)))
    after = serve(engine, dataclasses.replace(warm, index=5))[5]
    assert (after.cached_tokens > 0) == (index != "none")


def test_a_prompt_preempted_half_way_is_scored_once_from_its_start_to_its_end(model_of):
    client = Client(build(model_of(), index="radix", num_pages=20, budget_tokens=6))
    client.submit(*(asking(i, 8, 30, ignore_eos=True) for i in (0, 2, 3)))
    client.step(5)
    client.submit(asking(1, PROMPT, 3, prompt_logprobs=1))
    while not client.engine.core.queues.counters.preemptions:
        client.step()
    (waiting,) = client.engine.core.queues.waiting
    assert 1 < len(waiting.record.prompt_logprobs) < len(PROMPT)
    assert_laws(client.finish()[1], PROMPT, whole_pass(model_of(), PROMPT), top=1)


def test_an_executor_without_probabilities_refuses_them_for_that_request_alone():
    records = serve(build(), asking(0, 5, prompt_logprobs=1), asking(1, 5))
    assert "prompt_logprobs=1 cannot be served: executor=fixed" in records[0].error
    assert records[1].status is Status.FINISHED


def test_an_echo_with_logprobs_gives_the_prompts_as_well(model_of):
    asked = {"echo": True, "logprobs": 2}
    for wishes, top in (({}, 2), ({"prompt_logprobs": 5}, 5), ({"n": 2}, 2)):
        records = serve(build(model_of()), asking(0, PROMPT, 2, **asked, **wishes))
        plain = serve(build(model_of()), asking(0, PROMPT, 2, prompt_logprobs=top))[0]
        assert records[0].prompt_logprobs == plain.prompt_logprobs
        assert all(record.prompt_token_ids == PROMPT for record in records.values())
        assert {len(one.top) for one in records[0].logprobs} == {2}


def test_an_echo_without_logprobs_scores_nothing(model_of):
    for wishes in ({}, {"best_of": 2}):
        records = serve(build(model_of()), asking(0, PROMPT, 2, echo=True, **wishes))
        assert not records[0].prompt_logprobs
        assert not records[0].logprobs
