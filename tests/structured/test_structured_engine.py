"""Grammars in the engine: outputs against languages spelt out, with every drafter."""

import json
import re
from functools import cache
from itertools import accumulate, product

import pytest

from interlock.core.errors import ConfigError, PluginError
from interlock.core.registry import load_registry
from interlock.core.request import FinishReason, Status
from interlock.core.streams import Purpose, uniform
from interlock.core.testing.replay_drafter import Continuations, ReplayConfig, replay_component
from interlock.core.testing.sampler_contract import reference_law, reference_logits
from interlock.plugins.models.hugging_face import HuggingFaceDirectory
from interlock.plugins.models.text import load_codec
from interlock.plugins.speculative import NgramConfig
from interlock.plugins.speculative.heads.options import EagleConfig
from tests.engine.serving import Client, asking, build, outputs, plus, serve
from tests.models.loading import load, whole_logits

END = 256
OBJECTS = [
    json.dumps({"kind": kind, "on": on, "of": list(of)})
    for kind, on in product(("box", "bag"), (True, False))
    for of in [*product((7, 42), repeat=1), *product((7, 42), repeat=2)]
]
NESTED = "\n".join(
    ["root ::= r4", 'r0 ::= "a"']
    + [f'r{n + 1} ::= r{n} | "(" r{n} ")" | "[" r{n} "]"' for n in range(4)]
)
LANGUAGES = {
    "regex": ("(ab|a\u00e9|b)d{1,3}(x|yy)?", [
        head + "d" * count + tail
        for head in ("ab", "a\u00e9", "b") for count in (1, 2, 3) for tail in ("", "x", "yy")
    ]),
    "grammar": (NESTED, [
        left + "a" + right
        for depth in range(5) for kinds in product("([", repeat=depth)
        for left, right in [("".join(kinds), "".join(")" if k == "(" else "]"
                                                    for k in reversed(kinds)))]
    ]),
    "json_schema": (json.dumps({
        "type": "object",
        "properties": {
            "kind": {"enum": ["box", "bag"]}, "on": {"type": "boolean"},
            "of": {"type": "array", "items": {"enum": [7, 42]}, "minItems": 1, "maxItems": 2},
        },
        "required": ["kind", "on", "of"],
    }), OBJECTS),
}  # fmt: skip


@cache
def parts(model):
    import torch

    return load(model, torch.float64), load_codec(HuggingFaceDirectory(model))


def spelt(model, request, language):
    """The output of a loop that allows the tokens with which some text of the language goes on."""
    decoder, codec = parts(model)
    texts = [[*codec.encode(text), END] for text in language]
    output = []
    while END not in output:
        left = {t[len(output)] for t in texts if t[: len(output)] == output}
        raw = whole_logits(decoder, [*request.prompt_token_ids, *output])[-1].tolist()
        logits = reference_logits(raw, request.sampling, request.prompt_token_ids, output, {END})
        logits = [x if token in left else float("-inf") for token, x in enumerate(logits)]
        law = reference_law(logits, request.sampling)
        at = len(request.prompt_token_ids) + len(output)
        number = uniform(request.sampling.seed, at, Purpose.TARGET)
        output.append(next(t for t, edge in enumerate(accumulate(law)) if edge > number))
    return output


def wanted():
    """Two requests a language, greedy and drawn, with a penalty on one of them."""
    requests = []
    for kind, (text, _) in LANGUAGES.items():
        prompt = [5 + 3 * len(requests), 70, 71]
        requests.append(asking(len(requests), prompt, 60, seed=1, **{kind: text}))
        drawn = {"temperature": 1.0, "seed": len(requests), "presence_penalty": 0.5, kind: text}
        requests.append(asking(len(requests), [*prompt, 70], 60, **drawn))
    free = asking(len(requests), [9, 8, 7], 12, temperature=0.7, seed=3)
    return [*requests, free]


@pytest.fixture(scope="module")
def right(spelling):
    requests = wanted()
    kinds = [kind for kind in LANGUAGES for _ in range(2)]
    expected = {
        request.index: spelt(spelling, request, LANGUAGES[kind][1])
        for request, kind in zip(requests, kinds, strict=False)
    }
    return expected | outputs(serve(build(spelling), requests[-1]))


DRAFTERS = {
    "none": "none",
    "chain": ReplayConfig("replay", 4, tree=False),
    "tree": ReplayConfig("replay", 8, tree=True),
    "ngram": NgramConfig(ngram_min=1),
    "eagle": EagleConfig(num_drafts=3),
}


@pytest.mark.parametrize("pages", [64, 17])
@pytest.mark.parametrize("spec", DRAFTERS)
def test_outputs_are_those_of_a_language_spelt_out(spelling, right, spec, pages):
    requests = wanted()
    known = Continuations([(*r.prompt_token_ids, *right[r.index]) for r in requests])
    engine = build(
        spelling, plus(replay_component("replay", known)), spec=DRAFTERS[spec],
        structured="xgrammar", num_pages=pages,
    )  # fmt: skip
    records = serve(engine, *requests)
    assert outputs(records) == right
    for kind, pair in zip(LANGUAGES, ((0, 1), (2, 3), (4, 5)), strict=True):
        for index in pair:
            assert records[index].finish_reason is FinishReason.STOP
            text = parts(spelling)[1].decode(records[index].output_token_ids)
            assert text in LANGUAGES[kind][1]
    assert (engine.core.queues.counters.preemptions > 0) == (pages == 17)
    assert engine.core.ledger.accepted or spec in ("none", "eagle")


def test_the_root_of_a_pushdown_grammar_is_not_bounded(spelling):
    ask = asking(0, 4, 40, grammar='root ::= "(" root ")" | "a"', logit_bias={7: 50})
    (record,) = serve(build(spelling, structured="xgrammar"), ask).values()
    assert parts(spelling)[1].decode(record.output_token_ids) == "(" * 40
    assert record.finish_reason is FinishReason.LENGTH


BAD = [
    ({"regex": "a("}, "regex='a(' cannot be followed: Regex parsing error"),
    ({"regex": r"(a)\1"}, "Backreference is not supported"),
    ({"grammar": "root := a"}, "cannot be followed: EBNF lexer error at line 1"),
    ({"grammar": 'top ::= "a"'}, 'The root rule with name "root" is not found'),
    ({"json_schema": "{"}, "json_schema='{' cannot be followed: "),
    ({"json_schema": {"type": "nothing"}}, 'Unsupported type "nothing"'),
    ({"json_schema": {"type": "array", "uniqueItems": True}}, "#: uniqueItems is not followed"),
    ({"json_schema": {"required": 5}}, "it is no JSON Schema: "),
    ({"json_schema": {"enum": 5, "type": "string"}}, "it is no JSON Schema: "),
    ({"json_schema": ""}, "json_schema='' is not a text, or null"),
    ({"regex": 5}, "regex=5 is not a text, or null"),
    ({"regex": "a", "grammar": "b"}, "regex and grammar cannot both hold; ask for one of them"),
    ({"regex": "a", "ignore_eos": True}, "could not end: ignore_eos without stop_token_ids"),
    ({"grammar": "root ::= root"}, "no token could come: allowed_token_ids"),
    ({"regex": "ab", "banned_token_ids": (65,)}, "min_tokens and the grammar forbid"),
    ({"regex": "a", "min_tokens": 3}, "no token could come"),
]


@pytest.mark.parametrize(("sampling", "reason"), BAD)
def test_a_request_that_cannot_be_followed_ends_alone_with_the_reason(spelling, sampling, reason):
    engine = build(spelling, structured="xgrammar")
    good = asking(0, [5, 6], 10, regex="[ab]{4}")
    records = serve(engine, good, asking(1, [5, 6], 10, **sampling), asking(2, [5, 6], 3))
    assert records[1].status is Status.FAILED
    assert reason in records[1].error
    assert re.fullmatch("[ab]{4}", parts(spelling)[1].decode(records[0].output_token_ids))
    assert records[2].status is Status.FINISHED


def test_an_abort_leaves_the_neighbours_in_their_grammars(spelling):
    client = Client(build(spelling, structured="xgrammar", spec=NgramConfig(ngram_min=1)))
    client.submit(*(asking(i, [5, 6], 30, regex="(ab|cd){8}") for i in range(3)))
    client.step(4)
    client.abort(1)
    records = client.finish()
    assert records[1].status is Status.ABORTED
    for index in (0, 2):
        text = parts(spelling)[1].decode(records[index].output_token_ids)
        assert re.fullmatch("(ab|cd){8}", text)


def test_samples_of_one_request_stand_each_in_its_own_place(spelling):
    ask = {"regex": "[a-d]{2,9}", "temperature": 1.5, "repetition_penalty": 1.3}
    together = asking(0, [5, 6, 7, 8, 9], 20, seed=4, n=4, **ask)
    found = {}
    engine = build(spelling, structured="xgrammar", spec=NgramConfig(ngram_min=1))
    engine.submit(together)
    for output in engine.outputs():
        if output.finished is not None:
            found[output.sample] = output.finished
    texts = {parts(spelling)[1].decode(record.output_token_ids) for record in found.values()}
    assert len(found) == 4
    assert len(texts) > 1
    assert all(re.fullmatch("[a-d]{2,9}", text) for text in texts)
    for record in found.values():
        alone = asking(0, [5, 6, 7, 8, 9], 20, seed=record.seed, **ask)
        (solo,) = serve(build(spelling, structured="xgrammar"), alone).values()
        assert solo.output_token_ids == record.output_token_ids


def test_own_end_tokens_come_only_where_the_text_is_complete(spelling):
    ask = {"regex": "a+b", "ignore_eos": True, "stop_token_ids": (270,), "logit_bias": {270: 100}}
    (record,) = serve(build(spelling, structured="xgrammar"), asking(0, 4, 30, **ask)).values()
    *text, last = record.output_token_ids
    assert last == 270
    assert re.fullmatch("a+b", parts(spelling)[1].decode(text))


@pytest.mark.parametrize("field", LANGUAGES)
def test_compositions_that_cannot_follow_grammars_refuse_at_intake(spelling, field):
    ask = asking(0, [5, 6], 8, **{field: LANGUAGES[field][0]})
    for engine in (build(spelling), build(executor="fixed")):
        records = serve(engine, ask, asking(1, [5, 6], 3))
        assert records[0].error.endswith("cannot be served: structured=none follows no grammar")
        assert f"{field}=" in records[0].error
        assert records[1].status is Status.FINISHED


def test_compositions_that_would_never_use_it_are_refused(model_without_text):
    with pytest.raises(ConfigError, match=r"the executor draws from none.*executor=torch"):
        build(executor="fixed", structured="xgrammar")
    with pytest.raises(
        (ConfigError, PluginError), match=r"needs the texts of tokens.*structured=n"
    ):
        build(model_without_text, structured="xgrammar")


def test_a_missing_package_is_named_with_the_extra(spelling, monkeypatch):
    monkeypatch.setattr("interlock.plugins.structured.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'interlock\[structured\]'"):
        build(spelling, structured="xgrammar")


@pytest.fixture(scope="module")
def model_without_text(tmp_path_factory):
    from interlock.core.testing.tiny import write_tiny_checkpoint

    folder = tmp_path_factory.mktemp("silent") / "gqa"
    return write_tiny_checkpoint(folder, "gqa", list(load_registry().families.values()))
