"""Chats as prompts: a checkpoint's template, rendered in jinja2's sandbox as untrusted code."""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from interlock.core.errors import ConfigError
from interlock.core.text import TextCodec

Messages = Sequence[Mapping[str, Any]]


def chat_text(
    codec: TextCodec,
    messages: Messages,
    add_generation_prompt: bool = True,
    now: Callable[[], datetime] = datetime.now,
) -> str:
    """The messages as one prompt, up to where the assistant's answer begins.

    `now` is what templates that print a date read. Raises ConfigError without a template, or with
    what the template itself refuses.
    """
    if codec.chat_template is None:
        raise ConfigError("this model has no chat template; give prompts as plain text")
    try:
        return render_chat(
            codec.chat_template,
            now,
            messages=[dict(message) for message in messages],
            add_generation_prompt=add_generation_prompt,
            tools=None,
            documents=None,
            **codec.special_tokens,
        )
    except Exception as error:  # a template is a program of the model's: anything can come
        raise ConfigError(f"the model's chat template refuses these messages: {error}") from None


def chat_ids(codec: TextCodec, messages: Messages) -> list[int]:
    """Token ids of the rendered messages, which contain their special tokens."""
    return codec.encode(chat_text(codec, messages), add_special_tokens=False)


class _GenerationBlock(Extension):
    """`{% generation %}` marks the assistant's words for training; rendering ignores it."""

    tags = {"generation"}  # noqa: RUF012  (jinja2's own attribute)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def render_chat(template: str, now: Callable[[], datetime], **values: Any) -> str:
    """The rendered text, with the names and whitespace rules that Hugging Face templates expect.

    Raises jinja2.TemplateError for a malformed template or one that refuses the messages.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: now().strftime(form)
    return environment.from_string(template).render(**values)


def _refuse(message: str) -> None:
    raise TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without the HTML escapes of jinja2's own filter."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
