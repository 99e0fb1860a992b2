"""Conversations whose turns wait for answers: `workload=chat [workload.path=FILE]`.

A line of the file is a list of what the user says, turn by turn, or an object whose `messages` are
such a list, beside the sampling fields, `arrival_s`, `tenant`, `adapter`, `priority` and
`retention` of a prompts file.
Messages with a role and a content work as well: one that a written answer follows is history, every
other of the user's begins a turn. A turn starts `think_s` after the last one's answer ended, and
its prompt extends that turn's tokens.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from interlock.core.closest import unknown_name
from interlock.core.component import BuildContext
from interlock.core.errors import InterlockError, RequestError, WorkloadError
from interlock.core.request import Request, RequestRecord, SamplingParams, Status
from interlock.core.workload import BadRequest, Dialogue, Workload, WorkloadContext
from interlock.plugins.frontend.arrivals import arrival_times, stream
from interlock.plugins.frontend.configs import ChatConfig
from interlock.plugins.frontend.jsonl import read_objects
from interlock.plugins.frontend.prompts import (
    FIELD_KEYS,
    SAMPLING_KEYS,
    checked_field,
    checked_messages,
    line_sampling,
)
from interlock.plugins.frontend.retention import read_retention

SHIPPED = Path(__file__).with_name("conversations.jsonl")
KEYS = ("messages", *SAMPLING_KEYS, *FIELD_KEYS)
ARRIVALS = 0
Messages = list[dict[str, str]]


@dataclass
class _Chain:
    """One conversation on its way: what of it is still to be asked, and how."""

    number: int
    place: str
    chat: Dialogue
    turns: list[Messages]
    first_later_index: int
    fields: Mapping[str, Any] = field(default_factory=dict)
    turn: int = 0

    def ask(self, index: int, arrival_s: float) -> Request:
        """The request of the turn that is due. Raises InterlockError for what cannot be asked."""
        prompt = self.chat.ask(*self.turns[self.turn])
        return Request(
            index=index, prompt_token_ids=prompt, arrival_s=arrival_s,
            conversation=self.number, turn=self.turn, **self.fields,
        )  # fmt: skip

    def next_index(self) -> int:
        """The index of the turn that is due, which no other conversation's length changes."""
        return self.first_later_index + self.turn - 1

    def give_up(self, reason: str) -> Iterator[BadRequest]:
        """An entry for every turn that will not take place."""
        for _ in range(len(self.turns) - self.turn):
            yield BadRequest(self.next_index(), f"{reason} ({self.place})")
            self.turn += 1


class Chat(Workload):
    """The conversations of a file, each a chain of requests."""

    def __init__(self, config: ChatConfig) -> None:
        self.config = config
        self._open: dict[int, _Chain] = {}

    def requests(self, context: WorkloadContext) -> list[Request | BadRequest]:
        """The first turn of every conversation, in file order."""
        if context.conversation is None:
            lacking = "tokenizer" if context.encode is None else "chat template"
            raise WorkloadError(
                f"workload=chat: model {context.model.name!r} has no {lacking}; workload=synthetic "
                "workload.turns=4 makes conversations of any model's tokens"
            )
        config, self._open = self.config, {}
        lines = list(self._lines())
        process = "poisson" if config.rate else "at_once"
        times = arrival_times(
            process, len(lines), config.rate or 1.0, 1.0, stream(context.seed, ARRIVALS)
        )
        entries: list[Request | BadRequest] = []
        later = len(lines)
        for number, (place, line) in enumerate(lines):
            try:
                chain = _chain(
                    number, place, line, later, context.conversation(), self._defaults(context)
                )
                arrival_s = checked_field(line, "arrival_s", float(times[number]))
                entries.append(chain.ask(number, arrival_s))
            except InterlockError as problem:
                entries.append(BadRequest(number, f"{problem} ({place})"))
                continue
            later += len(chain.turns) - 1
            self._open[number] = chain
        return entries

    def follow(self, record: RequestRecord) -> Sequence[Request | BadRequest]:
        """The next turn, once a turn was answered; the refusal of all of them if it was not."""
        chain = self._open.pop(record.index, None)
        if chain is None:
            return ()
        chain.turn += 1
        if chain.turn == len(chain.turns):
            return ()
        if record.status is not Status.FINISHED or record.finished_s is None:
            why = record.error or f"it was {record.status.value}"
            return list(chain.give_up(f"turn {chain.turn - 1} has no answer: {why}"))
        chain.chat.answer(record.output_token_ids, record.text)
        index = chain.next_index()
        try:
            request = chain.ask(index, record.finished_s + self.config.think_s)
        except InterlockError as problem:
            return list(chain.give_up(str(problem)))
        self._open[index] = chain
        return [request]

    def _defaults(self, context: WorkloadContext) -> SamplingParams:
        most = self.config.max_tokens
        return context.sampling if most is None else replace(context.sampling, max_tokens=most)

    def _lines(self) -> Iterator[tuple[str, dict[str, Any]]]:
        path = self.config.path or str(SHIPPED)
        found = 0
        for number, line in read_objects(path, "a JSON-lines file of conversations", "messages"):
            place = f"{path}, line {number}"
            for key in line:
                if key not in KEYS:
                    raise WorkloadError(f"{place}: {unknown_name('key', key, KEYS)}")
            yield place, {key: value for key, value in line.items() if value is not None}
            found += 1
            if found == self.config.limit:
                return
        if not found:
            raise WorkloadError(f"{path}: the file holds no conversations")


def build(config: ChatConfig, _context: BuildContext) -> Chat:
    """The workload of a config."""
    return Chat(config)


def _chain(
    number: int, place: str, line: Mapping[str, Any], later: int, chat: Dialogue,
    defaults: SamplingParams,
) -> _Chain:  # fmt: skip
    sampling = line_sampling(line, defaults)
    if sampling.echo:
        raise RequestError("echo=True: every prompt is the conversation so far; leave it out")
    fields = {
        "sampling": sampling,
        "tenant": checked_field(line, "tenant", ""),
        "adapter": checked_field(line, "adapter", None),
        "priority": checked_field(line, "priority", 0),
        "retention": read_retention(line.get("retention")),
    }
    return _Chain(number, place, chat, _turns(line), later, fields)


def _turns(line: Mapping[str, Any]) -> list[Messages]:
    """The messages that each turn adds: up to a user's message that no answer follows."""
    said = line.get("messages")
    if isinstance(said, list):
        said = [{"role": "user", "content": m} if isinstance(m, str) else m for m in said]
    messages = checked_messages(said)
    turns: list[Messages] = [[]]
    for message, after in zip(messages, [*messages[1:], None], strict=True):
        turns[-1].append(message)
        answered = after is not None and after["role"] == "assistant"
        if message["role"] == "user" and not answered:
            turns.append([])
    if turns.pop():
        raise RequestError("the last message is not the user's, so no answer is asked for")
    return turns
