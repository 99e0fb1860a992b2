"""A study file as nested mappings, lists and texts: nothing is guessed from how a value looks.

YAML 1.1 reads `no`, `on` and `1e3` as something else than what was typed; here every scalar is
text, which whoever needs a number turns into one. Keys that stand twice are problems.
"""

from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]  # a dependency of Hydra, without stubs

from interlock.core.errors import ConfigError


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
    except yaml.YAMLError as error:
        raise ConfigError(f"{place}: not YAML: {' '.join(str(error).split())}") from error
    return None if node is None else _plain(node, problems)


def _plain(node: Any, problems: list[str]) -> Any:
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item, problems) for item in node.value]
    if isinstance(node, yaml.MappingNode):
        found: dict[str, Any] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                problems.append(f"line {line}: a key is a name, not a list or a mapping")
            elif key.value in found:
                problems.append(f"line {line}: {key.value!r} stands here a second time")
            else:
                found[key.value] = _plain(value, problems)
        return found
    return node.value
