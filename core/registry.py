"""Everything that installed plugins contribute, and where each part came from."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from interlock.core.closest import unknown_name
from interlock.core.component import BuildContext, Component
from interlock.core.errors import ContractError, InterlockError, PluginError
from interlock.core.hooks import CONTRACT, PROJECT, StepObserver, since
from interlock.core.model import ModelFamily
from interlock.core.model_files import ModelFiles, ModelFormat
from interlock.core.plugin_loading import (
    BrokenPlugin,
    Contribution,
    Origin,
    cause_of,
    load_plugin,
)
from interlock.core.seams import SEAMS
from interlock.core.settings import AUTO
from interlock.core.text import CodecReader, TextCodec

if TYPE_CHECKING:
    from interlock.core.search import SearchOf

logger = logging.getLogger(PROJECT)


@dataclass(frozen=True)
class Chosen:
    """A component with its options, ready to build."""

    component: Component
    config: Any
    origin: Origin

    @property
    def key(self) -> str:
        """The choice as it is typed: `spec/verifier=target_only`."""
        return f"{self.component.seam}={self.component.name}"

    def build(self, context: BuildContext) -> Any:
        """The instance, which implements the seam's interface.

        Raises PluginError naming the plugin, the choice and the cause when the component's module
        cannot be imported or its constructor fails; ContractError for a wrong type.
        """
        try:
            built = self.component.make(self.config, context)
        except (InterlockError, MemoryError):
            raise
        except (Exception, SystemExit) as error:
            raise PluginError(
                f"{self.key} (from {self.origin}) could not be built: {cause_of(error)}"
            ) from error
        seam = SEAMS[self.component.seam]
        if not isinstance(built, seam.interface_class()) and not (seam.optional and built is None):
            raise ContractError(
                f"{self.key} (from {self.origin}) built a {type(built).__name__}, "
                f"not a {seam.interface_class().__name__}"
            )
        return built


@dataclass
class Registry:
    """Components by (seam, name), model families by name, and the plugins that were left out."""

    components: dict[tuple[str, str], Component] = field(default_factory=dict)
    origins: dict[tuple[str, str], Origin] = field(default_factory=dict)
    families: dict[str, ModelFamily] = field(default_factory=dict)
    formats: dict[str, ModelFormat] = field(default_factory=dict)
    codecs: list[CodecReader] = field(default_factory=list)
    searches: "list[SearchOf]" = field(default_factory=list)
    config_dirs: list[str] = field(default_factory=list)
    observers: list[StepObserver] = field(default_factory=list)
    broken: list[BrokenPlugin] = field(default_factory=list)
    contracts: dict[Origin, int] = field(default_factory=dict)
    """The plugin contract that each loaded plugin was written for."""

    def names(self, seam: str) -> list[str]:
        """What can be chosen for a seam, sorted; `auto` where some component is automatic."""
        names = [name for key, name in self.components if key == seam]
        return sorted(names + ([AUTO] if self.automatic(seam) else []))

    def automatic(self, seam: str) -> list[Component]:
        """The components that `<seam>=auto` may become, in the order of their plugins."""
        return [c for c in self.components.values() if c.seam == seam and c.automatic]

    def chosen(self, seam: str, name: str, config: Any = None) -> Chosen:
        """The component of this name with its options (None: the defaults), or PluginError."""
        component = self.components.get((seam, name))
        if component is None:
            raise PluginError(self.unknown(seam, name))
        return Chosen(component, config or component.config(), self.origins[seam, name])

    def unknown(self, seam: str, name: str, known: Iterable[str] | None = None) -> str:
        """Why this choice is not there: a broken plugin offered it, or nobody did."""
        for plugin in self.broken:
            if (seam, name) in plugin.offered:
                return f"{seam}={name} cannot be chosen: {plugin}"
        names = self.names(seam) if known is None else known
        message = unknown_name(seam.replace("/", " "), name, names)
        maybe = [f"; it may belong to a broken plugin: {plugin}" for plugin in self.broken]
        return message + "".join(maybe)

    def require_all_plugins(self) -> None:
        """Raise PluginError listing the plugins that were left out, if any was (strict mode)."""
        if self.broken:
            raise PluginError([f"strict_plugins=true: {plugin}" for plugin in self.broken])

    def codec(self, files: ModelFiles | None) -> TextCodec | None:
        """The codec of a model's tokenizer files; None without any (then: token ids only)."""
        found = (reader(files) for reader in self.codecs if files)
        return next((codec for codec in found if codec is not None), None)

    def add(self, contribution: Contribution) -> None:
        """Take in what a plugin contributes. PluginError when another one has the same name."""
        origin = contribution.origin
        self.contracts[origin] = contribution.contract
        for component in contribution.components:
            self._claim(component.seam, component.name, "=", origin)
            self.components[component.seam, component.name] = component
        for family in contribution.families:
            self._claim("model family", family.name, " ", origin)
            self.families[family.name] = family
        for form in contribution.formats:
            self._claim("model format", form.name, " ", origin)
            self.formats[form.name] = form
        for place in ("codecs", "searches", "config_dirs", "observers"):
            getattr(self, place).extend(getattr(contribution, place))

    def _claim(self, kind: str, name: str, joint: str, origin: Origin) -> None:
        if (kind, name) in self.origins:
            first = self.origins[kind, name]
            raise PluginError(
                f"{kind}{joint}{name} is offered by two plugins, {first} and {origin}; uninstall "
                "one of them"
            )
        self.origins[kind, name] = origin


def build_registry(found: Iterable[EntryPoint]) -> Registry:
    """The registry of these entry points. A broken plugin is left out with one logged warning.

    The same entry point of the same distribution found twice is loaded once. Interlock's own
    plugin comes first, then the others by distribution. PluginError for two plugins that offer
    one name.
    """
    unique: Mapping[tuple[str, str, str], EntryPoint] = {
        (_normal(Origin.of(point).distribution), point.name, point.value): point
        for point in reversed(list(found))
    }
    registry = Registry()
    for key in sorted(unique, key=lambda key: (key[0] != PROJECT, key)):
        loaded = load_plugin(unique[key])
        if isinstance(loaded, BrokenPlugin):
            registry.broken.append(loaded)
            logger.warning("%s", loaded)
        else:
            registry.add(loaded)
            if loaded.contract < CONTRACT:
                logger.warning("plugin %s still works: %s", loaded.origin, since(loaded.contract))
    return registry


@cache
def load_registry() -> Registry:
    """The registry of all installed plugins, loaded once per process."""
    return build_registry(entry_points(group=PROJECT))


def _normal(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")
