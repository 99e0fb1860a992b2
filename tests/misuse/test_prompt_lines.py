"""A prompts file with every kind of bad line: each fails alone and says why, the others run."""

import json
import shutil

import pytest

ANY = {"prompt": "a", "max_tokens": 2}
LINES = [
    ({"prompt": "ok", "max_tokens": 2}, None),
    ({"prompt": ""}, "the prompt is empty"),
    (
        {"prompt": "a" * 512},
        "the prompt has 512 tokens; with room for one more the model takes 511",
    ),
    ({"prompt": "a" * 480, "max_tokens": 40}, "needs 32 pages of 16 tokens"),
    ({"prompt_token_ids": [5, 999]}, "token id 999 is outside the vocabulary 0 .. 256"),
    ({"prompt_token_ids": [10**12, -1]}, "token id 1000000000000 is outside the vocabulary"),
    ({"prompt_token_ids": [True]}, "prompt_token_ids is not a list of integers"),
    ({"prompt_token_ids": [1, 2], "max_tokens": 1}, None),
    ({"messages": [{"role": "user"}]}, "messages[0] is not an object with a role and a content"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content=5 is not text"),
    ({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}, None),
    ({"prompt": "a", "messages": []}, "needs one of prompt, messages, prompt_token_ids"),
    ({"prompt": "\ud800"}, "half a surrogate pair"),
    (ANY | {"tenant": "\ud800"}, "tenant holds half a surrogate pair"),
    (ANY | {"tenant": 5}, "tenant=5 is not text"),
    (ANY | {"tenant": "t", "priority": 2**62}, None),
    (ANY | {"priority": 0.5}, "priority=0.5 is not an integer"),
    (ANY | {"arrival_s": 10**400}, "is not seconds >= 0"),
    (ANY | {"arrival_s": -1}, "arrival_s=-1 is not seconds >= 0"),
    (ANY | {"max_tokens": 0}, "max_tokens=0 is not an integer from 1 to 2**63 - 1"),
    (ANY | {"temperature": -1}, "temperature=-1 is not a finite number >= 0"),
    (ANY | {"temperature": 10**400}, "is not a finite number >= 0"),
    (ANY | {"temperature": 5e-324, "top_p": 1e-300, "top_k": 2**63 - 1}, None),
    (ANY | {"temperature": 1e308}, None),
    (ANY | {"top_p": 1.5}, "top_p=1.5 is not a number from 0 to 1"),
    (ANY | {"seed": 2**64}, "seed=18446744073709551616 is not an integer from 0 to 2**64 - 1"),
    (ANY | {"logprobs": 101}, "logprobs=101 is not an integer from 0 to 100"),
    (ANY | {"logprobs": 2}, None),
    (ANY | {"prompt_logprobs": -1}, "prompt_logprobs=-1 is not an integer from 0 to 100"),
    (ANY | {"prompt_logprobs": 0}, None),
    (ANY | {"n": 0}, "n=0 is not an integer from 1 to 1024"),
    (ANY | {"n": "2"}, "n='2' is not an integer from 1 to 1024"),
    (ANY | {"n": 2, "best_of": 1}, "best_of=1 is not an integer from n to 1024"),
    (ANY | {"best_of": 2000}, "best_of=2000 is not an integer from n to 1024"),
    (ANY | {"stop_token_ids": [999]}, "stop_token_ids=(999,) is not token ids from 0 to 256"),
    (ANY | {"stop_token_ids": list(range(257))}, None),
    (ANY | {"logit_bias": {"97": 3, "98": -1.5}, "repetition_penalty": 1.2}, None),
    (ANY | {"logit_bias": [[97, 3]], "banned_token_ids": [5], "min_tokens": 2}, None),
    (ANY | {"logit_bias": {"x": 3}}, "logit_bias=(('x', 3),) is not biases from -100 to 100"),
    (ANY | {"logit_bias": {"9" * 5000: 3}}, "is not biases from -100 to 100"),
    (ANY | {"stop": "x" * 2000}, "is not up to 16 texts of 1 to 1000 characters"),
    (ANY | {"logit_bias": {"257": 3}}, "of different token ids from 0 to 256"),
    (ANY | {"allowed_token_ids": []}, "leave no token that could come"),
    (ANY | {"min_tokens": 3}, "min_tokens=3 is not an integer from 0 to max_tokens=2"),
    (ANY | {"regex": "a+"}, "regex='a+' cannot be served: structured=none follows no grammar"),
    (ANY | {"json_schema": {"type": "integer"}}, "cannot be served: structured=none"),
    (ANY | {"ignore_eos": "yes"}, "ignore_eos='yes' is not true or false"),
    (ANY | {"stop": "b", "echo": True}, None),
    (ANY | {"stop": ["b", ""]}, "stop=('b', '') is not up to 16 texts of 1 to 1000 characters"),
]


@pytest.fixture
def prompts(tmp_path):
    def write(*lines):
        path = tmp_path / "prompts.jsonl"
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        return f"workload.path={path}"

    return write


def test_every_bad_line_fails_alone_with_its_reason_and_in_its_place(run, tiny, prompts):
    path = prompts(*(line for line, _ in LINES))
    arguments = ("workload=prompts", path, "cache.num_pages=31", "scheduler/order=priority")
    ran = run(f"model={tiny}", *arguments, "progress=false", "hydra.run.dir=run")
    assert ran.status == 0
    assert [line["index"] for line in ran.requests] == list(range(len(LINES)))
    for found, (line, reason) in zip(ran.requests, LINES, strict=True):
        if reason is None:
            assert (found["status"], found["error"]) == ("finished", None), line
        else:
            assert found["status"] == "failed"
            assert reason in found["error"], line
    chosen = next(f for f, (line, _) in zip(ran.requests, LINES, strict=True) if "logprobs" in line
                  and f["logprobs"])  # fmt: skip
    assert [len(one["top"]) for one in chosen["logprobs"]] == [2, 2]
    summary = ran.object("summary.json")
    failed = sum(reason is not None for _, reason in LINES)
    assert (summary["failed"], summary["completed"]) == (failed, len(LINES) - failed)
    assert ran.object("run.json")["num_requests"] == len(LINES)
    assert f"{failed} failed" in ran.out


def test_without_a_tokenizer_only_lines_of_text_fail(run, tiny, prompts, tmp_path):
    bare = shutil.copytree(tiny, tmp_path / "bare")
    (bare / "tokenizer.json").unlink()
    ids = {"prompt_token_ids": [3], "max_tokens": 1}
    path = prompts({"prompt": "a"}, ids, ids | {"stop": "b"})
    ran = run(f"model={bare}", "workload=prompts", path, "progress=false", "hydra.run.dir=run")
    text, ids, stop = ran.requests
    assert "model 'bare' has no tokenizer; give prompt_token_ids" in text["error"]
    assert (ids["error"], ids["text"]) == (None, None)
    assert "model 'bare' has no tokenizer.json; use stop_token_ids" in stop["error"]


def test_a_key_given_twice_is_refused_because_one_of_them_would_be_lost(run, tiny, tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a"}\n{"prompt": "a", "prompt": "b"}\n')
    ran = run(f"model={tiny}", "workload=prompts", f"workload.path={path}", "progress=false")
    (problem,) = ran.problems
    assert problem.endswith(
        "prompts.jsonl, line 2: not valid JSON: the key 'prompt' is there twice"
    )


def test_a_chat_template_that_fails_in_its_own_way_fails_its_requests_alone(
    run, tiny, prompts, tmp_path
):
    model = shutil.copytree(tiny, tmp_path / "templated")
    (model / "chat_template.jinja").write_text("{{ messages[0]['content'] + 1 }}")
    chat = {"messages": [{"role": "user", "content": "hi"}]}
    path = prompts(chat, {"prompt": "a", "max_tokens": 1})
    ran = run(f"model={model}", "workload=prompts", path, "progress=false", "hydra.run.dir=run")
    assert "chat template refuses these messages" in ran.requests[0]["error"]
    assert ran.requests[1]["error"] is None


@pytest.mark.parametrize(
    ("ids", "reason"),
    [([2**60, 1], "hash"), ([-1, 2], "hash"), ([1, 2], None)],
)
def test_block_ids_beyond_a_word_fail_alone(run, tmp_path, ids, reason):
    path = tmp_path / "trace.jsonl"
    line = {"timestamp": 0, "input_length": 600, "output_length": 2, "hash_ids": ids}
    path.write_text(json.dumps(line) + "\n")
    arguments = ("executor=fixed", "workload=trace", f"workload.path={path}", "progress=false")
    (found,) = run(*arguments, "hydra.run.dir=run").requests
    assert (found["error"] is None) == (reason is None)
    assert reason is None or "with ids from 0 to 2**63 / block_tokens" in found["error"]


def test_lines_ask_for_grammars_and_the_run_for_all_others(run, tiny, prompts):
    schema = {"type": "array", "items": {"enum": [1, 22]}, "minItems": 1, "maxItems": 3}
    path = prompts({"prompt": "a", "json_schema": schema}, {"prompt": "b", "regex": "a("},
                   {"prompt": "c", "regex": None})  # fmt: skip
    ran = run(
        f"model={tiny}", "workload=prompts", path, "progress=false", "hydra.run.dir=run",
        "structured=xgrammar", 'sampling.grammar="root ::= \\"x\\" | \\"yy\\""',
    )  # fmt: skip
    assert ran.status == 0
    both, bad, other = ran.requests
    assert "json_schema and grammar cannot both hold" in both["error"]
    assert "regex and grammar cannot both hold" in bad["error"]
    assert other["text"] in ("x", "yy")
    ran = run(
        f"model={tiny}", "workload=prompts", path, "progress=false", "hydra.run.dir=run",
        "structured=xgrammar",
    )  # fmt: skip
    listed, bad, _ = ran.requests
    assert json.loads(listed["text"])
    assert listed["finish_reason"] == "stop"
    assert "regex='a(' cannot be followed: Regex parsing error" in bad["error"]
