"""What a target writes for its drafter: windows of a text and its own answers to prompts.

A plan is cheap to make and has a digest; `groups` lets the target write. Shapes: N windows, T
tokens of each.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from interlock.core.request import SamplingParams
from interlock.models.recipe.corpus import Corpus, is_held_out, read_corpus
from interlock.models.recipe.drafters.target import Answer, Target

LONG_TOKENS = 1024
TEXT_WINDOWS = {"text": (256, 1024), "long": (LONG_TOKENS, 192)}
"""Length and number, at most, of the windows of a text itself."""
BUCKET_TOKENS = 128
HELD_OUT = "held_out"
HELD_OUT_PROMPTS, HELD_OUT_TOKENS = 64, 64
SAMPLED_SHARE = 0.4
TEMPERATURE = 0.8


@dataclass(frozen=True)
class Group:
    """Equally long windows; `mask_NT` as in `Window`. Training draws from it by `share`."""

    name: str
    ids_NT: Tensor
    mask_NT: Tensor
    share: float


class Plan(ABC):
    """Which windows; the group named HELD_OUT, greedy answers only, is kept from training."""

    @abstractmethod
    def digest(self) -> str:
        """Different for plans whose groups can differ."""

    @abstractmethod
    def groups(self, target: Target) -> list[Group]:
        """The windows, with answers that the target writes now."""


@dataclass(frozen=True)
class TextPlan(Plan):
    """Continuations of random places in a text, and windows of the text itself."""

    corpus: Corpus
    own_windows: int
    prompt_tokens: int
    own_tokens: int
    seed: int

    def digest(self) -> str:
        """Of documents and numbers."""
        return _digest([TEXT_WINDOWS, *(vars(self) | vars(self.corpus) | {"corpus": 0}).values()])

    def groups(self, target: Target) -> list[Group]:
        """Half of what is drawn are continuations, a quarter each short and long windows.

        Raises:
            ValueError: the text is shorter than a prompt.
        """
        ids = encode_documents(target, self.corpus.train)
        held = encode_documents(target, self.corpus.held_out)
        if len(held) < 2 * self.prompt_tokens:
            cut = len(ids) - len(ids) // 20
            ids, held = ids[:cut], ids[cut:]
        if min(len(ids), len(held)) < self.prompt_tokens:
            raise ValueError(
                f"the text has {len(ids)} tokens to train on and {len(held)} held-out ones: fewer "
                f"than a prompt of {self.prompt_tokens}; give more text or a smaller "
                "--prompt-tokens"
            )
        generator = torch.Generator().manual_seed(self.seed)
        own = self._continue(target, draw(ids, self.prompt_tokens, self.own_windows, generator))
        groups = [Group("own", own, torch.ones_like(own, dtype=torch.bool), 2.0)]
        longest = target.description.max_positions
        for name, (length, most) in TEXT_WINDOWS.items():
            if length < len(ids) and length <= longest:
                count = min(most, 2 * len(ids) // length)  # more would repeat a short text
                windows = draw(ids, length, count, generator)
                groups.append(Group(name, windows, torch.ones_like(windows, dtype=torch.bool), 1.0))
        places = torch.linspace(0, len(held) - self.prompt_tokens, HELD_OUT_PROMPTS).long()
        prompts = torch.stack([held[p : p + self.prompt_tokens] for p in places.tolist()])
        answers = self._continue(target, prompts, greedy=True, tokens=HELD_OUT_TOKENS)
        mask = torch.zeros_like(answers, dtype=torch.bool)
        mask[:, self.prompt_tokens - 1 : -1] = True
        return [*groups, Group(HELD_OUT, answers, mask, 0.0)]

    def _continue(
        self, target: Target, prompts: Tensor, greedy: bool = False, tokens: int | None = None
    ) -> Tensor:
        tokens = tokens or self.own_tokens
        sampling = [
            SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=temperature)
            for temperature in ([0.0] * len(prompts) if greedy else _temperatures(len(prompts)))
        ]
        answers = target.write(prompts.tolist(), sampling, self.seed)
        return torch.tensor([[*answer.prompt, *answer.tokens] for answer in answers])


@dataclass(frozen=True)
class PromptPlan(Plan):
    """Answers to the user's prompts, until the target ends them; only answers count.

    `chat` puts each prompt through the model's chat template as a user's message.
    """

    prompts: tuple[str, ...]
    chat: bool
    own_windows: int
    own_tokens: int
    seed: int

    def digest(self) -> str:
        """Of prompts and numbers."""
        return _digest(list(vars(self).values()))

    def groups(self, target: Target) -> list[Group]:
        """Windows padded to multiples of BUCKET_TOKENS, drawn in proportion to their tokens.

        Prompts are answered in turn until there are `own_windows` answers; the second and later
        answers of a prompt are all sampled. A prompt that leaves no room for an answer is cut at
        its front.

        Raises:
            ValueError: fewer than two prompts: one is needed to train and one to measure.
        """
        if len(self.prompts) < 2:
            raise ValueError(f"{len(self.prompts)} prompts: two are needed, one is held out")
        longest = min(LONG_TOKENS, target.description.max_positions)
        room = longest - min(self.own_tokens, longest // 2)
        held = {p for p in self.prompts if is_held_out(p)} or {self.prompts[-1]}
        encoded = {p: self._encode(target, p)[-room:] for p in dict.fromkeys(self.prompts)}
        train = [ids for p, ids in encoded.items() if p not in held] or list(encoded.values())[:1]
        measured = [ids for p, ids in encoded.items() if p in held][:HELD_OUT_PROMPTS]
        asked = [train[n % len(train)] for n in range(self.own_windows)]
        heat = _temperatures(len(asked))
        heat[len(train) :] = [TEMPERATURE] * len(heat[len(train) :])
        groups = self._answer(target, asked, heat, longest, "own")
        return [*groups, *self._answer(target, measured, [0.0] * len(measured), longest, HELD_OUT)]

    def _encode(self, target: Target, prompt: str) -> list[int]:
        assert target.codec is not None  # checked where plans are made
        if not self.chat:
            return target.codec.encode(prompt)
        from interlock.driver.chat_template import chat_ids

        return chat_ids(target.codec, [{"role": "user", "content": prompt}])

    def _answer(
        self,
        target: Target,
        prompts: Sequence[Sequence[int]],
        heat: Sequence[float],
        longest: int,
        name: str,
    ) -> list[Group]:
        sampling = [
            SamplingParams(
                max_tokens=min(self.own_tokens, longest - len(p)),
                temperature=t,
            )
            for p, t in zip(prompts, heat, strict=True)
        ]
        answers = list(target.write(prompts, sampling, self.seed))
        if name == HELD_OUT:
            return [_padded(name, max(map(_length, answers)), answers)]
        buckets: dict[int, list[Answer]] = {}
        for answer in answers:
            padded = min(longest, -(-_length(answer) // BUCKET_TOKENS) * BUCKET_TOKENS)
            buckets.setdefault(padded, []).append(answer)
        return [_padded(f"{name}_{size}", size, found) for size, found in sorted(buckets.items())]


def _length(answer: Answer) -> int:
    return len(answer.prompt) + len(answer.tokens)


def _padded(name: str, length: int, answers: Sequence[Answer]) -> Group:
    ids = torch.zeros(len(answers), length, dtype=torch.long)
    mask = torch.zeros(len(answers), length, dtype=torch.bool)
    for row, answer in enumerate(answers):
        whole = [*answer.prompt, *answer.tokens]
        ids[row, : len(whole)] = torch.tensor(whole)
        mask[row, len(answer.prompt) - 1 : len(whole) - 1] = True
    return Group(name, ids, mask, float(len(answers) * length))


def draw(ids: Tensor, length: int, count: int, generator: torch.Generator) -> Tensor:
    """[count, length]: random windows of a token stream."""
    starts = torch.randint(len(ids) - length + 1, (count,), generator=generator)
    return torch.stack([ids[s : s + length] for s in starts.tolist()])


def encode_documents(target: Target, texts: Sequence[str]) -> Tensor:
    """Token ids of all documents in one row [tokens], each ended by the model's end token."""
    assert target.codec is not None  # checked where plans are made
    end = target.description.eos_token_ids[:1]
    ids: list[int] = []
    for text in texts:
        ids.extend(target.codec.encode(text))
        ids.extend(end)
    return torch.tensor(ids, dtype=torch.long)


def read_prompts(path: Path) -> tuple[str, ...]:
    """The prompts of a file: JSON objects with a text `prompt`, one a line, or plain lines.

    Raises:
        ValueError: a line that is neither, or no prompt at all; names the line.
    """
    prompts: list[str] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        if path.suffix != ".jsonl":
            prompts.append(line)
            continue
        try:
            prompt = json.loads(line)["prompt"]
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{path}, line {number}: no JSON object with a `prompt`") from None
        if not isinstance(prompt, str) or not prompt.strip():
            raise ValueError(f"{path}, line {number}: prompt={prompt!r} is no text")
        prompts.append(prompt)
    if not prompts:
        raise ValueError(f"{path}: no prompt in it")
    return tuple(prompts)


def read_text(target: Target, folder: Path | None, pattern: str) -> Corpus:
    """The text's two parts; without a folder the shipped model's own held-out text, if it has one.

    Raises:
        FileNotFoundError: no file matched, or all were empty.
    """
    corpus = read_corpus(folder, pattern)
    own = target.directory / "held_out.txt"
    return corpus if folder or not own.is_file() else Corpus(corpus.train, [own.read_text()])


def _temperatures(count: int) -> list[float]:
    """Evenly mixed: SAMPLED_SHARE of the answers are drawn at TEMPERATURE, the rest is greedy."""
    return [TEMPERATURE * (n * SAMPLED_SHARE % 1 + SAMPLED_SHARE >= 1) for n in range(count)]


def _digest(values: Sequence[object]) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()
