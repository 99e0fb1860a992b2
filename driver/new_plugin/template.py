"""Templates: for each seam a component that works, as the parts of a file each."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

from interlock.core.closest import unknown_name
from interlock.core.errors import ConfigError
from interlock.core.seams import SEAMS

SHARED = {"cache/tiers/below": "cache/tiers"}
"""Seams whose components are those of another one."""


@dataclass(frozen=True)
class Template:
    """What a seam's distribution is made of, with placeholders like @Class@."""

    seam: str
    parts: Mapping[str, str]

    def part(self, name: str) -> str:
        """A section's text without the lines around it; empty where there is none."""
        return self.parts.get(name, "")

    @property
    def seams(self) -> list[str]:
        """Where the component can be chosen."""
        return self.part("seams").split() or [self.seam]


def template_of(seam: str) -> Template:
    """The template of a seam (its key, as in `SEAMS`)."""
    key = SHARED.get(seam, seam)
    name = key.replace("/", "_") + ".txt"
    text = (files(__package__) / "templates" / name).read_text("utf-8")
    pieces = re.split(r"^--- (\w+)\n", text, flags=re.MULTILINE)[1:]
    return Template(key, dict(zip(pieces[::2], map(str.rstrip, pieces[1::2]), strict=True)))


def common(name: str) -> str:
    """The text of a file that every distribution has, with its placeholders."""
    return (files(__package__) / "common" / f"{name}.txt").read_text("utf-8")


def seam_called(word: str) -> str:
    """The seam that a word means: `cache/eviction`, `eviction`, `EvictionPolicy`, `drafter`.

    ConfigError for a word that means none.
    """
    meanings = {meaning: key for key in reversed(SEAMS) for meaning in _words(key)}
    found = meanings.get(_plain(word))
    if found is None:
        raise ConfigError(f"--seam {word}: {unknown_name('seam', word, SEAMS)}")
    return found


def _words(key: str) -> set[str]:
    interface = SEAMS[key].interface.partition(":")[2]
    return {_plain(word) for word in (key, key.rpartition("/")[2], interface)}


def _plain(word: str) -> str:
    return re.sub(r"[^a-z]", "", word.lower())
