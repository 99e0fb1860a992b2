"""Traffic made to order: `workload=synthetic`, the default.

A request's prompt is [shared prefix] + [own part]; in a conversation of several turns each later
prompt is the former prompt + a stand-in answer of the former output length + a new own part.
Prompts are pieces of the model's held-out text (`held_out.txt` in its directory), so that accepted
drafts mean something, or random ids. Prompt + output never exceeds the model's positions: prefix
and own part are cut, and a conversation that has no room left is followed by a new one.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from interlock.core.component import BuildContext
from interlock.core.errors import WorkloadError
from interlock.core.request import Request
from interlock.core.workload import BadRequest, Workload, WorkloadContext
from interlock.plugins.frontend.arrivals import arrival_times, stream
from interlock.plugins.frontend.configs import SyntheticConfig
from interlock.plugins.frontend.pieces import Pieces, random_pieces, text_pieces

ARRIVALS, LENGTHS, SHARING, TOKENS = range(4)
HELD_OUT = "held_out.txt"


class _Turn(NamedTuple):
    """A request before it has its place in the order of arrival."""

    conversation: int
    number: int
    prompt: tuple[int, ...]
    output_tokens: int


class Synthetic(Workload):
    """Requests drawn from the laws of a config, all from the run's seed."""

    def __init__(self, config: SyntheticConfig) -> None:
        self.config = config

    def requests(self, context: WorkloadContext) -> list[Request | BadRequest]:
        """`num_requests` requests in order of arrival."""
        config = self.config
        if context.model.max_positions < 2:
            raise WorkloadError(
                f"model {context.model.name!r} has max_positions={context.model.max_positions}; "
                "workload.name=synthetic needs at least 2, a prompt and an output token"
            )
        turns = self._turns(context)
        starts = arrival_times(
            config.arrivals,
            1 + turns[-1].conversation,
            config.rate,
            config.burstiness,
            stream(context.seed, ARRIVALS),
        )
        timed = [(float(starts[t.conversation]) + t.number * config.think_s, t) for t in turns]
        timed.sort(key=lambda entry: entry[0])
        return [
            Request(
                index=index,
                prompt_token_ids=turn.prompt,
                sampling=replace(
                    context.sampling, max_tokens=turn.output_tokens, ignore_eos=config.ignore_eos
                ),
                arrival_s=arrival_s,
                conversation=turn.conversation if config.turns > 1 else None,
                turn=turn.number if config.turns > 1 else None,
            )
            for index, (arrival_s, turn) in enumerate(timed)
        ]

    def _turns(self, context: WorkloadContext) -> list[_Turn]:
        """Turns of one conversation after the other, until there are enough requests."""
        config, most = self.config, context.model.max_positions
        pieces = _pieces(config.source, context)
        prefixes = [pieces.take(min(config.prefix_tokens, most)) for _ in range(config.prefixes)]
        lengths, sharing = stream(context.seed, LENGTHS), stream(context.seed, SHARING)
        draw = _length_law(config.prompt_lengths, config.prompt_tokens, config.prompt_spread)
        draw_output = _length_law(config.output_lengths, config.output_tokens, config.output_spread)
        turns: list[_Turn] = []
        conversation = 0
        while len(turns) < config.num_requests:
            before = pieces.opening + _prefix(prefixes, config.prefix_share, sharing)
            for number in range(config.turns):
                own = min(draw(lengths), most)
                output = min(draw_output(lengths), most - 1)
                if number and len(before) + own + output > most:
                    break
                prompt = _fit(before, pieces.take(own), most - output)
                turns.append(_Turn(conversation, number, prompt, output))
                before = prompt + pieces.take(output)
            conversation += 1
        return turns[: config.num_requests]


def build(config: SyntheticConfig, _context: BuildContext) -> Synthetic:
    """The workload of a config."""
    return Synthetic(config)


def _prefix(prefixes: list[tuple[int, ...]], share: float, rng: Generator) -> tuple[int, ...]:
    """One of the shared prefixes, or nothing; takes two draws in any case."""
    shared, which = rng.random() < share, rng.random()
    return prefixes[int(which * len(prefixes))] if shared and prefixes else ()


def _fit(before: tuple[int, ...], own: tuple[int, ...], room: int) -> tuple[int, ...]:
    """`before + own` cut to `room` tokens, of which at least one is the request's own."""
    before = before[: room - 1]
    return before + own[: room - len(before)]


def _length_law(law: str, mean: int, spread: float) -> Callable[[Generator], int]:
    """Draws a length of at least 1.

    uniform: integers within mean * (1 -+ spread); lognormal: mean `mean`, std `mean * spread`.
    """
    if law == "uniform":
        low, high = round(mean * (1 - spread)), round(mean * (1 + spread))
        return lambda rng: max(1, int(rng.integers(low, high + 1)))
    if law == "lognormal":
        sigma = float(np.sqrt(np.log1p(spread**2)))
        mu = float(np.log(mean)) - sigma**2 / 2
        return lambda rng: max(1, round(rng.lognormal(mu, sigma)))
    return lambda rng: mean


def _pieces(source: str, context: WorkloadContext) -> Pieces:
    """Where tokens come from; `auto` is the held-out text where model and tokenizer have one."""
    rng, model = stream(context.seed, TOKENS), context.model
    path = model.directory / HELD_OUT if model.directory else None
    has_text = path is not None and path.is_file() and context.encode is not None
    if source == "random" or (source == "auto" and not has_text):
        return random_pieces(model.vocab_size, rng)
    if path is None or context.encode is None or not has_text:
        lacking = "tokenizer" if context.encode is None else HELD_OUT
        raise WorkloadError(
            f"workload.source=text: model {model.name!r} has no {lacking}; "
            "use workload.source=random"
        )
    return text_pieces(_read(path), context.encode, rng)


def _read(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise WorkloadError(f"{path}: cannot be read: {error}") from error
    if not text.strip():
        raise WorkloadError(f"{path}: the text is empty; use workload.source=random")
    return text
