"""The built-in plugin: the components and model families of every group."""

from typing import TYPE_CHECKING

from interlock.core.component import Component
from interlock.core.hooks import hookimpl
from interlock.core.model import ModelFamily
from interlock.core.model_files import ModelFormat
from interlock.core.text import CodecReader
from interlock.plugins import (
    attention,
    cache,
    executor,
    frontend,
    models,
    parallel,
    scheduler,
    search,
    speculative,
    structured,
)

if TYPE_CHECKING:
    from interlock.core.search import SearchOf

INTERLOCK_CONTRACT = 1

GROUPS = (attention, cache, scheduler, speculative, parallel, structured, executor, frontend)


@hookimpl
def interlock_components() -> list[Component]:
    """Every built-in component."""
    return [component for group in GROUPS for component in group.components()]


@hookimpl
def interlock_model_families() -> list[ModelFamily]:
    """Every built-in model family."""
    return models.model_families()


@hookimpl
def interlock_model_formats() -> list[ModelFormat]:
    """Every built-in way to store a model."""
    return models.model_formats()


@hookimpl
def interlock_codec_readers() -> list[CodecReader]:
    """Every built-in way to read a model's tokenizer."""
    return models.codec_readers()


@hookimpl
def interlock_searches() -> "list[SearchOf]":
    """Every built-in search over a request's outputs."""
    return search.searches()
