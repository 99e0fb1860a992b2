"""A study file as nested mappings, lists and texts: nothing is guessed from how a value looks.

YAML 1.1 reads `no`, `on` and `1e3` as something else than what was typed; here every scalar is
text, which whoever needs a number turns into one. Keys that stand twice are problems.
"""

from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]  # a dependency of Hydra, without stubs

from interlock.core.errors import ConfigError

MOST_NODES = 1_000_000


def read_yaml(path: Path) -> tuple[Any, str, list[str]]:
    """The file's tree, its text, and lines of keys that stand twice. ConfigError: it is no YAML."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}; give a study file") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 at byte {error.start}") from error
    problems: list[str] = []
    return parse_yaml(text, str(path), problems), text, problems


def parse_yaml(text: str, place: str, problems: list[str]) -> Any:
    """The tree of a text; see `read_yaml`. Problems name the line, errors `place` too."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        return None if node is None else _Reader(problems).plain(node)
    except yaml.YAMLError as error:
        raise ConfigError(f"{place}: not YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise ConfigError(
            f"{place}: its lists and mappings are nested too deeply, or an alias holds itself"
        ) from error
    except _TooLargeError as error:
        raise ConfigError(
            f"{place}: its aliases stand for more than {MOST_NODES:,} values; write out what varies"
        ) from error


class _TooLargeError(Exception):
    """A few lines of aliases of aliases would fill the memory."""


class _Reader:
    """Turns nodes into plain values, each alias as what it stands for."""

    def __init__(self, problems: list[str]) -> None:
        self._problems, self._left = problems, MOST_NODES

    def plain(self, node: Any) -> Any:
        """The value of a node. RecursionError, _TooLargeError: see `parse_yaml`."""
        self._left -= 1
        if self._left < 0:
            raise _TooLargeError
        if isinstance(node, yaml.SequenceNode):
            return [self.plain(item) for item in node.value]
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node)
        return node.value

    def _mapping(self, node: Any) -> dict[str, Any]:
        problems = self._problems
        found: dict[str, Any] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                problems.append(f"line {line}: a key is a name, not a list or a mapping")
            elif key.value in found:
                problems.append(f"line {line}: {key.value!r} stands here a second time")
            else:
                found[key.value] = self.plain(value)
        return found
