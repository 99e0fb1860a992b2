"""Built-in structured output: none, or grammars compiled by xgrammar."""

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec

from interlock.core.capabilities import (
    Capability,
    Composition,
    EditsLogits,
    FollowsGrammars,
    Requirement,
    needs,
)
from interlock.core.component import Component
from interlock.core.model import ModelDescription
from interlock.core.options import option


@dataclass(frozen=True)
class NoneConfig:
    """Outputs follow no grammar; requests that ask for one are refused."""

    name: str = "none"


@dataclass(frozen=True)
class XGrammarConfig:
    """JSON Schema, regular expressions and EBNF grammars by xgrammar.

    Objects and arrays hold nothing that their schema does not name, whatever it says of more.
    """

    name: str = "xgrammar"
    any_whitespace: bool = option(
        False, "JSON: any white space between parts, not one space after ',' and ':'"
    )
    cache_mib: int = option(256, "memory for compiled grammars that are kept for later requests")
    threads: int = option(4, "CPU threads that compile a grammar")

    def __post_init__(self) -> None:
        for key, most in (("cache_mib", 1 << 20), ("threads", 256)):
            if not 1 <= getattr(self, key) <= most:
                raise ValueError(f"{key}={getattr(self, key)} is not from 1 to {most}")


def components() -> list[Component]:
    """The choices of the `structured` seam."""
    here = "interlock.plugins.structured"
    return [
        Component("structured", "none", NoneConfig, f"{here}.none:build", "no grammars"),
        Component(
            "structured", "xgrammar", XGrammarConfig, f"{here}.xgrammar_masks:build",
            "JSON Schema, regular expressions and EBNF by xgrammar",
            provides=_provides, requires=_requires,
        ),
    ]  # fmt: skip


def _provides(_config: XGrammarConfig, _model: ModelDescription | None) -> Iterable[Capability]:
    return (FollowsGrammars(),)


def _requires(_config: XGrammarConfig, _model: ModelDescription | None) -> Iterable[Requirement]:
    def installed(_composition: Composition) -> str | None:
        if find_spec("xgrammar") is not None:
            return None
        return "structured=xgrammar needs the package xgrammar: pip install 'interlock[structured]'"

    logits = "structured=xgrammar masks logits, and the executor draws from none"
    return (installed, needs(EditsLogits(), logits))
