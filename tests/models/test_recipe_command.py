"""The command that trains drafter heads, on a tiny model and a text or prompts of one's own."""

import json

import pytest
import torch
from safetensors.torch import load_file

from interlock.core.testing.tiny import write_tiny_checkpoint
from interlock.models.recipe import train_drafter
from interlock.models.recipe.drafters.store import Store
from interlock.models.recipe.drafters.target import Target
from interlock.models.recipe.drafters.texts import PromptPlan, read_prompts
from interlock.plugins.models import model_families

QUESTIONS = [f"what comes after {number}?" for number in range(12)]


@pytest.fixture(autouse=True)
def small_steps(monkeypatch):
    monkeypatch.setattr(train_drafter, "BATCH_TOKENS", 160)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    folder = tmp_path_factory.mktemp("target")
    write_tiny_checkpoint(
        folder, "gqa", model_families(), tokenizer=True, num_hidden_layers=3, vocab_size=260
    )
    return folder


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    for number in range(20):
        (folder / f"{number}.md").write_text(f"the number {number} is before {number + 1}\n" * 4)
    return folder


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    path = tmp_path_factory.mktemp("prompts") / "mine.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": question}) for question in QUESTIONS))
    return path


def run(kind, target, *options):
    train_drafter.main([kind, "--target", str(target), "--own-tokens", "24", *map(str, options)])


def refused(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        run(*arguments)
    return f"{ended.value} {capsys.readouterr().err}"


@pytest.mark.parametrize("kind", ["eagle", "eagle3", "medusa", "hydra"])
def test_every_kind_trains_on_ones_own_text_from_one_store(kind, target, text, tmp_path_factory):
    shared = tmp_path_factory.getbasetemp() / "shared-store"
    out = tmp_path_factory.mktemp(kind)
    data = ["--text", text, "--pattern", "*.md", "--own-windows", 6, "--prompt-tokens", 16]
    run(kind, target, *data, "--store", shared, "--out", out, "--steps", 50)
    report = json.loads((out / "training.json").read_text())
    assert (report["steps"], report["seed"], report["lr"]) == (50, 0, 1.0)
    first, last = report["loss_curve"][0], report["loss_curve"][-1]
    assert last["loss"] < first["loss"]
    assert report["acceptance"]["emitted_per_pass"] >= 1
    assert report["acceptance"]["prompts"] == 64
    assert report["parameters"] == sum(
        x.numel() for x in load_file(out / "model.safetensors").values() if x.is_floating_point()
    )
    assert len(list(shared.iterdir())) == 1
    (folder,) = shared.iterdir()
    store = Store(folder)
    assert store.groups["own"] == {"count": 6, "length": 40, "share": 2.0}
    assert report["store_tokens"] == store.tokens


def test_answers_to_ones_own_prompts_are_the_targets_and_only_they_count(target):
    plan = PromptPlan((*QUESTIONS, QUESTIONS[0]), chat=False, own_windows=14, own_tokens=9, seed=0)
    model = Target(str(target))
    groups = plan.groups(model)
    asked = set()
    for group in groups:
        for ids, mask in zip(group.ids_NT, group.mask_NT, strict=True):
            places = mask.nonzero().flatten()
            prompt = model.codec.decode(ids[: places[0] + 1].tolist())
            asked.add((group.name == "held_out", prompt))
            assert prompt in QUESTIONS
            assert torch.equal(places, torch.arange(places[0], places[-1] + 1))
            length = len(places)
            ended = ids[places[-1] + 1].item() in model.description.eos_token_ids
            assert length == 9 or ended
            if group.name == "held_out":
                best = model.compute(ids[None, : places[-1] + 2]).best_BT[0]
                assert torch.equal(best[places], ids[places + 1])
    held = {prompt for out, prompt in asked if out}
    assert held
    assert asked == {(question in held, question) for question in QUESTIONS}


def test_prompts_can_go_through_the_models_chat_template(target):
    plan = PromptPlan(tuple(QUESTIONS[:2]), chat=True, own_windows=1, own_tokens=3, seed=0)
    model = Target(str(target))
    own, held = plan.groups(model)
    begins = [model.codec.decode(group.ids_NT[0].tolist()) for group in (own, held)]
    assert all(any(question in text for question in QUESTIONS) for text in begins)
    assert not any(text.startswith("what") for text in begins)


def test_a_head_trains_on_prompts_for_a_time(target, prompts, tmp_path):
    out = tmp_path / "head"
    run("eagle3", target, "--prompts", prompts, "--out", out, "--minutes", 0.02, "--ttt", 1)
    report = json.loads((out / "training.json").read_text())
    assert report["steps"] > 0
    assert report["options"] == {"ttt": 1, "intermediate": 0, "draft_vocab_size": 0}
    assert 1 <= report["acceptance"]["prompts"] < len(QUESTIONS)
    assert len(report["agreement"]) == 7


def test_what_cannot_be_trained_is_refused_with_the_reason(target, text, tmp_path, capsys):
    assert "no directory or file" in refused(capsys, "medusa", tmp_path / "nothing")
    (tmp_path / "empty.md").write_text(" \n")
    given = "--text", tmp_path, "--pattern"
    assert "no file matching '*.rst'" in refused(capsys, "medusa", target, *given, "*.rst")
    assert "no file matching '*.md'" in refused(capsys, "medusa", target, *given, "*.md")
    (tmp_path / "short.md").write_text("a few words")
    reason = refused(capsys, "medusa", target, *given, "*.md")
    assert "fewer than a prompt of 64; give more text" in reason
    assert "not allowed with" in refused(capsys, "medusa", target, *given, "*", "--prompts", "x")
    assert "No such file" in refused(capsys, "medusa", target, "--prompts", tmp_path / "x.jsonl")
    assert "invalid choice: 'medua'" in refused(capsys, "medua", target)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "no prompt in it"),
        ('{"prompt": "a"}\n{"question": "b"}', "line 2: no JSON object with a `prompt`"),
        ('{"prompt": "a"}\n\n["b"]', "line 3: no JSON object with a `prompt`"),
        ('{"prompt": 3}', "line 1: prompt=3 is no text"),
        ('{"prompt": " "}', "line 1: prompt=' ' is no text"),
    ],
)
def test_a_broken_prompt_file_is_refused_with_its_line(tmp_path, content, reason):
    path = tmp_path / "mine.jsonl"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"mine\.jsonl") as refusal:
        read_prompts(path)
    assert reason in str(refusal.value)


def test_plain_lines_are_prompts_too(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text('first one\n\n{"second": 1}\n')
    assert read_prompts(path) == ("first one", '{"second": 1}')


def test_one_prompt_is_too_few_to_train_and_measure(target):
    with pytest.raises(ValueError, match="two are needed, one is held out"):
        PromptPlan(("alone",), False, 1, 4, 0).groups(Target(str(target)))
