"""Requests from a JSON-lines file: `workload=prompts workload.path=FILE`.

A line holds one of `prompt` (text), `messages` (chat) or `prompt_token_ids`, and optionally
sampling fields, `arrival_s`, `tenant`, `adapter`, `priority` and `retention`; null means "not
given". A file that is not such a file stops the start; a line that asks for something impossible
fails alone.
"""

import sys
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from interlock.core.closest import unknown_name
from interlock.core.component import BuildContext
from interlock.core.errors import ConfigError, InterlockError, RequestError, WorkloadError
from interlock.core.request import Request, SamplingParams
from interlock.core.workload import BadRequest, Workload, WorkloadContext
from interlock.plugins.frontend.arrivals import arrival_times, stream
from interlock.plugins.frontend.configs import PromptsConfig
from interlock.plugins.frontend.jsonl import read_objects
from interlock.plugins.frontend.retention import read_retention

PROMPT_KEYS = ("prompt", "messages", "prompt_token_ids")
SAMPLING_KEYS = tuple(field.name for field in fields(SamplingParams))
FIELD_KEYS = ("arrival_s", "tenant", "adapter", "priority", "retention")
KEYS = (*PROMPT_KEYS, *SAMPLING_KEYS, *FIELD_KEYS)
ARRIVALS = 0


class Prompts(Workload):
    """The lines of a file, in order."""

    def __init__(self, config: PromptsConfig) -> None:
        if problems := config.missing():
            raise ConfigError(problems)
        self.config = config

    def requests(self, context: WorkloadContext) -> list[Request | BadRequest]:
        """One entry a line that is not blank; text needs the model's tokenizer."""
        lines = self._lines()
        rate = self.config.rate
        process = "poisson" if rate else "at_once"
        times = arrival_times(process, len(lines), rate or 1.0, 1.0, stream(context.seed, ARRIVALS))
        defaults = context.sampling
        if self.config.max_tokens is not None:
            defaults = replace(defaults, max_tokens=self.config.max_tokens)
        context = replace(context, sampling=defaults)
        return [
            _entry(index, place, line, float(times[index]), context)
            for index, (place, line) in enumerate(lines)
        ]

    def _lines(self) -> list[tuple[str, dict[str, Any]]]:
        path, lines = self.config.path, []
        for number, line in read_objects(path, "a JSON-lines file of prompts"):
            place = f"{path}, line {number}"
            for key in line:
                if key not in KEYS:
                    raise WorkloadError(f"{place}: {unknown_name('key', key, KEYS)}")
            lines.append((place, {k: v for k, v in line.items() if v is not None}))
            if len(lines) == self.config.limit:
                break
        if not lines:
            raise WorkloadError(f"{path}: the file holds no requests")
        return lines


def build(config: PromptsConfig, _context: BuildContext) -> Prompts:
    """The workload of a config."""
    return Prompts(config)


def _entry(
    index: int, place: str, line: Mapping[str, Any], arrival_s: float, context: WorkloadContext
) -> Request | BadRequest:
    try:
        text, ids = _prompt(line, context)
        return Request(
            index=index,
            prompt_token_ids=ids,
            sampling=line_sampling(line, context.sampling),
            arrival_s=checked_field(line, "arrival_s", arrival_s),
            tenant=checked_field(line, "tenant", ""),
            adapter=checked_field(line, "adapter", None),
            priority=checked_field(line, "priority", 0),
            retention=read_retention(line.get("retention")),
            prompt_text=text,
        )
    except InterlockError as problem:
        return BadRequest(index, f"{problem} ({place})")


def _prompt(
    line: Mapping[str, Any], context: WorkloadContext
) -> tuple[str | None, tuple[int, ...]]:
    given = [key for key in PROMPT_KEYS if key in line]
    if len(given) != 1:
        found = " and ".join(given) or "none of them"
        raise RequestError(f"needs one of {', '.join(PROMPT_KEYS)}; it has {found}")
    value = line[given[0]]
    if given[0] == "prompt":
        return value, _encode(value, context)
    if given[0] == "messages":
        return None, _chat(value, context)
    if not isinstance(value, list) or not all(type(token) is int for token in value):
        raise RequestError("prompt_token_ids is not a list of integers")
    return None, tuple(value)


def _encode(text: Any, context: WorkloadContext) -> tuple[int, ...]:
    """Ids of a text; none for an empty one, whatever the tokenizer would put before it."""
    _require_text("prompt", text)
    if context.encode is None:
        raise RequestError(
            f"model {context.model.name!r} has no tokenizer; give prompt_token_ids, not text"
        )
    return tuple(context.encode(text)) if text else ()


def _chat(messages: Any, context: WorkloadContext) -> tuple[int, ...]:
    messages = checked_messages(messages)
    if context.apply_chat_template is None:
        raise RequestError(f"model {context.model.name!r} has no chat template; give a prompt")
    return tuple(context.apply_chat_template(messages))


def checked_messages(messages: Any) -> list[dict[str, str]]:
    """`messages` if it is a list of objects with a role and a content; else RequestError."""
    if not isinstance(messages, list) or not messages:
        raise RequestError("messages is not a list of at least one message")
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or set(message) != {"role", "content"}:
            raise RequestError(f"messages[{number}] is not an object with a role and a content")
        for key, value in message.items():
            _require_text(f"messages[{number}].{key}", value)
    return messages


def _require_text(name: str, value: Any) -> None:
    if not isinstance(value, str):
        raise RequestError(f"{name}={value!r} is not text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise RequestError(f"{name} holds half a surrogate pair, which is not text") from None


def line_sampling(line: Mapping[str, Any], defaults: SamplingParams) -> SamplingParams:
    """As the line says, in range or not: intake checks it with the model at hand."""
    return replace(defaults, **{k: _frozen(line[k]) for k in SAMPLING_KEYS if k in line})


def _frozen(value: Any) -> Any:
    """JSON's lists as the tuples that parameters hold."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def checked_field(line: Mapping[str, Any], key: str, default: Any) -> Any:
    """The value of one of FIELD_KEYS, or the default; RequestError for what is none."""
    value = line.get(key, default)
    if key == "tenant":
        _require_text(key, value)
        return value
    if key == "adapter":
        if value is not None:
            _require_text(key, value)
        return value
    allowed = {
        "arrival_s": (
            type(value) in (int, float) and 0 <= value <= sys.float_info.max,
            "seconds >= 0",
        ),
        "priority": (type(value) is int, "an integer"),
    }
    ok, what = allowed[key]
    if not ok:
        raise RequestError(f"{key}={value!r} is not {what}")
    return float(value) if key == "arrival_s" else value
