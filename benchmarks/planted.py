"""Components with an effect that is known, to test what a study finds: one slow, one without any.

`executor=slowed` is the fixed-cost executor whose every step lasts longer by a share. The eviction
policy `idle` is least recently used under another name; where the cache is large enough that
nothing is ever evicted, it does nothing.
"""

from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from typing import Any

from interlock.core.batch import StepPlan, StepResult
from interlock.core.component import BuildContext, Component
from interlock.core.hooks import PROJECT
from interlock.core.options import option
from interlock.core.plugin_loading import Contribution, Origin
from interlock.core.registry import Registry, build_registry
from interlock.plugins.cache.eviction import LRUConfig
from interlock.plugins.executor import FixedConfig
from interlock.plugins.executor.fixed import FixedExecutor


@dataclass(frozen=True)
class SlowedConfig(FixedConfig):
    """The fixed-cost executor, slower by a share."""

    name: str = "slowed"
    slowdown: float = option(0.05, "share by which every step lasts longer")


@dataclass(frozen=True)
class IdleConfig(LRUConfig):
    """Least recently used under another name."""

    name: str = "idle"


class SlowedExecutor(FixedExecutor):
    """Steps that last longer by `slowdown`."""

    def __init__(self, config: SlowedConfig, context: BuildContext) -> None:
        stops = frozenset(context.model.eos_token_ids)
        super().__init__(config, context.model.vocab_size, stops, context.seed)
        self._factor = 1 + config.slowdown

    def execute(self, plan: StepPlan) -> StepResult:
        """See Executor."""
        result = super().execute(plan)
        assert result.duration_s is not None
        return replace(result, duration_s=result.duration_s * self._factor)


def planted_components(registry: Registry) -> list[Component]:
    """The two, made from the components of a registry that they imitate."""
    fixed = registry.components["executor", "fixed"]
    lru = registry.components["cache/eviction", "lru"]
    summary = "for tests of studies: "
    return [
        replace(
            fixed, name="slowed", config=SlowedConfig, build=_build_slowed,
            summary=f"{summary}as fixed, every step longer by a share",
        ),
        replace(lru, name="idle", config=IdleConfig, summary=f"{summary}lru under another name"),
    ]  # fmt: skip


def planted_registry() -> Registry:
    """All installed plugins and the two planted components."""
    registry = build_registry(entry_points(group=PROJECT))
    planted = planted_components(registry)
    registry.add(Contribution(Origin("planted", "1"), components=planted))
    return registry


def _build_slowed(config: Any, context: BuildContext) -> SlowedExecutor:
    return SlowedExecutor(config, context)
