"""What a composition that changes its model's output costs, measured through its own engine.

Three figures from the held-out text of the model (`held_out.txt` beside its weights), which its
training has not seen:

perplexity           of windows of the text, as prompts: exp of the mean negative log-probability
choice_accuracy      share of windows whose true continuation is likelier than those of three others
output_perplexity    of what the composition itself writes after such windows, under the raw law: a
                     verifier that accepts what the model would not say shows here
"""

import math
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from interlock.core.assemble import build_engine
from interlock.core.engine import Engine
from interlock.core.errors import InterlockError
from interlock.core.registry import Registry
from interlock.core.request import Request, RequestRecord, SamplingParams, Status
from interlock.core.settings import EngineConfig

HELD_OUT = "held_out.txt"
WINDOWS, CONTEXT, CONTINUATION, CHOICES = 16, 64, 24, 4
SEED = 20_260
"""Of the windows: the same for every cell of every study."""


def measure_quality(config: EngineConfig, registry: Registry) -> dict[str, float]:
    """The three figures, on a fresh engine of this configuration.

    Raises InterlockError where the model has no held-out text or tokenizer, or its engine cannot
    return log-probabilities.
    """
    with closing(build_engine(config, registry, environment={})) as engine:
        windows = _windows(engine)
        questions = [_question(windows, at) for at in range(len(windows))]
        scored = SamplingParams(max_tokens=1, prompt_logprobs=0, ignore_eos=True)
        written = SamplingParams(max_tokens=CONTINUATION, logprobs=0, ignore_eos=True)
        asked = [(prompt, scored) for question in questions for prompt in question]
        asked += [(window[:CONTEXT], written) for window in windows]
        records = _records(engine, asked)
    by_choice = [_prompt_logprobs(record) for record in records[: len(windows) * CHOICES]]
    truths = by_choice[::CHOICES]
    right = 0
    for at in range(len(windows)):
        sums = [math.fsum(one[-CONTINUATION:]) for one in by_choice[at * CHOICES :][:CHOICES]]
        right += sums[0] > max(sums[1:])
    outputs = [[one.chosen for one in r.logprobs] for r in records[len(windows) * CHOICES :]]
    return {
        "perplexity": _perplexity(truths),
        "choice_accuracy": right / len(windows),
        "output_perplexity": _perplexity(outputs),
    }


def _windows(engine: Engine) -> list[tuple[int, ...]]:
    """Pieces of the held-out text, apart from each other, each context and continuation."""
    model, codec = engine.resolution.model, engine.codec
    path = Path(model.directory) / HELD_OUT if model.directory else None
    if path is None or not path.is_file() or codec is None:
        lacks = "tokenizer" if codec is None else f"{HELD_OUT} beside its weights"
        raise InterlockError(f"model {model.name!r} has no {lacks}: quality is not measured")
    ids = codec.encode(path.read_text(encoding="utf-8")[: 40 * WINDOWS * (CONTEXT + CONTINUATION)])
    length = CONTEXT + CONTINUATION
    if len(ids) < WINDOWS * length:
        raise InterlockError(f"{path}: {len(ids)} tokens, of {WINDOWS * length} that are needed")
    starts = np.random.default_rng(SEED).choice(len(ids) // length, WINDOWS, replace=False)
    return [tuple(ids[int(at) * length :][:length]) for at in starts]


def _question(windows: Sequence[tuple[int, ...]], at: int) -> list[tuple[int, ...]]:
    """A context with its true continuation, then with those of three other windows."""
    context = windows[at][:CONTEXT]
    others = [windows[(at + step) % len(windows)] for step in range(CHOICES)]
    return [context + other[CONTEXT:] for other in others]


def _records(
    engine: Engine, asked: Sequence[tuple[tuple[int, ...], SamplingParams]]
) -> list[RequestRecord]:
    for index, (prompt, sampling) in enumerate(asked):
        engine.submit(Request(index, prompt, sampling))
    found = [output.finished for output in engine.outputs() if output.finished is not None]
    failed = [record for record in found if record.status is not Status.FINISHED]
    if failed:
        raise InterlockError(f"quality cannot be measured: {failed[0].error or 'it did not end'}")
    return sorted(found, key=lambda record: record.index)


def _prompt_logprobs(record: RequestRecord) -> list[float]:
    return [one.chosen for one in record.prompt_logprobs if one is not None]


def _perplexity(rows: Sequence[Sequence[float]]) -> float:
    values = [value for row in rows for value in row]
    mean = math.fsum(values) / len(values)
    return math.exp(-mean) if mean > -700 else math.inf
