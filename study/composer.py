"""The configurations of a study's cells, each composed once, however often it is looked at."""

from collections.abc import Callable, Sequence

from interlock.conf.hydra_edge import Seen, compose
from interlock.core.errors import ConfigError
from interlock.core.registry import Registry
from interlock.core.settings import EngineConfig

Told = Callable[[str, int, int], None]
"""What goes on, (what, how many are done, of how many)."""


class Composer:
    """Composes with one registry and the files as they are; `told` follows what takes long."""

    def __init__(self, registry: Registry, told: Told = lambda *_: None) -> None:
        self.registry, self.told = registry, told
        self._seen: Seen = {}
        self._found: dict[tuple[str, ...], EngineConfig | ConfigError] = {}

    def config(self, overrides: Sequence[str]) -> EngineConfig:
        """What these overrides come to. Raises ConfigError with every problem."""
        key = tuple(overrides)
        if key not in self._found:
            try:
                self._found[key] = compose(key, self.registry, seen=self._seen)
            except ConfigError as error:
                self._found[key] = error
        found = self._found[key]
        if isinstance(found, ConfigError):
            raise found
        return found

    def problems(self, overrides: Sequence[str]) -> list[str]:
        """What is wrong with them; nothing where they compose."""
        try:
            self.config(overrides)
        except ConfigError as error:
            return error.problems
        return []
