"""Every way to draft, with target_only: each request's tokens are those it gets without drafts.

The model knows ten tokens, so that random heads are right now and then; they are words, so that
outputs end at stop strings and stay in grammars. What drafts is asked of the registry.
"""

import dataclasses
import json
from itertools import product

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from interlock.core.registry import load_registry
from interlock.core.request import Status
from interlock.core.testing.every_draft import every_draft
from interlock.core.testing.tiny import write_tiny_checkpoint
from interlock.core.testing.tiny_heads import write_tiny_heads
from interlock.plugins.models import model_families
from tests.engine.serving import Client, asking, build
from tests.engine.test_drafts import drafts_of
from tests.speculative.rebuild import Rebuilt

WORDS = ("<s>", "</s>", "a", "b", "c", "ab", "ba", "cc", "1", "2")
DRAFTS = every_draft(load_registry())
FEATURES = [
    {},
    {"top_k": 4},
    {"top_p": 0.8},
    {"min_p": 0.12},
    {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.3},
    {"min_tokens": 9, "logit_bias": ((1, 2.0),)},
    {"stop": ("ab", "c1"), "detokenize": True, "ignore_eos": True},
    {"logprobs": 2, "banned_token_ids": (3,)},
    {"regex": "([ab]{2}|c+1){2,5}2"},
]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder, families = tmp_path_factory.mktemp("words") / "gqa", model_families()
    write_tiny_checkpoint(folder, "gqa", families, vocab_size=len(WORDS))
    write_tiny_heads(folder, families)
    tokenizer = Tokenizer(models.BPE({text: i for i, text in enumerate(WORDS)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in WORDS[:2]])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": WORDS[1]}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def requests():
    """Every feature at every temperature; prompts on both sides of page edges, some shared."""
    found = []
    for index, (asked, temperature) in enumerate(product(FEATURES, (0.0, 0.7, 1.3))):
        prompt = [2 + (i * i * 5 + i) % 8 for i in range(index % 4 * 5)] + [2 + index % 8]
        found.append(
            asking(index, prompt, 10 + index % 5, temperature=temperature, seed=index, **asked)
        )
    return found


def told(record):
    """All that a request was given."""
    logprobs = [
        (round(of.chosen, 9), [(token, round(value, 9)) for token, value in of.top])
        for of in record.logprobs
    ]
    return record.output_token_ids, record.text, record.finish_reason, record.stopped_by, logprobs


def served(engine, wanted):
    client = Client(engine)
    client.submit(*wanted)
    records = client.finish()
    assert all(record.status is Status.FINISHED for record in records.values())
    return {index: told(record) for index, record in records.items()}


@pytest.fixture(scope="module")
def alone(model):
    """What each request gets run alone, without drafts."""
    found = {}
    for request in requests():
        engine = build(
            model, attention="reference", allocator="contiguous", index="none", page_size=16,
            structured="xgrammar",
        )  # fmt: skip
        found |= served(engine, [request])
    reasons = [reason.value for _, _, reason, _, _ in found.values()]
    assert {"stop", "length"} <= set(reasons)
    assert any(stopped_by == "ab" for _, _, _, stopped_by, _ in found.values())
    return found


@pytest.mark.parametrize("draft", DRAFTS)
def test_no_way_to_draft_changes_what_a_request_gets(model, alone, draft):
    """And a drafter's own cache rows are those of committed tokens alone, at every step."""
    engine = build(
        model, spec=DRAFTS[draft], structured="xgrammar", index="radix", num_pages=16,
        budget_tokens=24,
    )  # fmt: skip
    own = engine.core.drafts.host is None and engine.executor.drafter.attention
    rebuilt = Rebuilt(engine, within=1e-12) if own else None
    assert served(engine, requests()) == alone
    assert rebuilt is None or rebuilt.checked
    assert engine.core.ledger.accepted
    assert engine.core.queues.counters.preemptions
    assert engine.core.queues.counters.chunks
    assert engine.core.cache.counters.hits


@pytest.mark.parametrize("draft", DRAFTS)
def test_drafts_follow_from_the_tokens_however_the_prompt_was_computed(model, draft):
    """At once, in chunks, or found in the cache behind a request that went on otherwise."""
    spec = DRAFTS[draft]
    if hasattr(spec, "cached_requests"):
        spec = dataclasses.replace(spec, cached_requests=0)  # answers of others are to be used
    prompt = [2 + (i * i * 5 + i) % 8 for i in range(70)]
    request = asking(1, (*prompt[:58], 2, 2, 3, 4, 2, 3), 12, seed=1, temperature=0.7)
    made = [build(model, spec=spec, index="radix", budget_tokens=b) for b in (128, 50, 128)]
    served(made[2], [asking(0, prompt, 9)])
    (cold, first), *others = [drafts_of(engine, request) for engine in made]
    assert cold
    assert others[1][1].cached_tokens >= 48
    for drafts, record in others:
        assert drafts == cold
        assert record.accepted_tokens == first.accepted_tokens


def drafted_after(engine, *requests):
    """The first draft after each number of computed tokens, of all requests; how many accepted
    paths left out earlier nodes of their trees; and the tokens of the last request."""
    drafts, left_out, execute = {}, [], engine.executor.execute

    def watching(plan):
        for row, draft in plan.batch.drafts.items():
            drafts.setdefault(int(plan.batch.starts[row]), (draft.tokens, draft.parents))
        result = execute(plan)
        left_out.extend(p for p in result.kept_paths.values() if p != tuple(range(len(p))))
        return result

    engine.executor.execute = watching
    client = Client(engine)
    client.submit(*requests)
    records = client.finish()
    return drafts, len(left_out), records[requests[-1].index].output_token_ids


@pytest.mark.parametrize(
    "draft",
    ["eagle paths", "eagle sampled paths", "eagle2", "eagle3 dynamic", "hydra paths",
     "medusa paths", "dflash ddtree"],
)  # fmt: skip
def test_drafts_after_an_accepted_path_are_those_after_the_same_tokens_as_a_prompt(model, draft):
    """So features are those of accepted nodes: ones of other nodes would give other drafts."""
    prompt, most = [2, 3, 4, 5, 2], 24

    def asked(index, tokens):
        return asking(
            index, tokens, most + len(prompt) - len(tokens), seed=1, temperature=0.7,
            ignore_eos=True,
        )  # fmt: skip

    settings = {"spec": DRAFTS[draft], "index": "none", "num_pages": 200, "max_requests": 32}
    drafts, left_out, output = drafted_after(build(model, **settings), asked(0, prompt))
    assert left_out
    known = [*prompt, *output]
    again = [asked(end, known[:end]) for end in sorted(drafts, reverse=True)]
    assert drafted_after(build(model, budget_tokens=1000, **settings), *again)[0] == drafts
