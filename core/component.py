"""A component: a config dataclass, a way to build the class, and what it provides and requires."""

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from interlock.core.capabilities import Capability, Requirement, none_provided, none_required
from interlock.core.model import ModelDescription, ModelFamily

if TYPE_CHECKING:
    import torch

    from interlock.core.executor import ModelParts
    from interlock.core.model_files import ModelFormat
    from interlock.core.text import TextCodec

CONTRACT = 1
"""Version of the plugin contract: hooks, seams and the values that cross them."""


@dataclass(frozen=True)
class BuildContext:
    """What a component's constructor may need besides its own config."""

    model: ModelDescription
    device: "torch.device | None" = None
    dtype: "torch.dtype | None" = None
    page_size: int = 16
    num_pages: int = 0
    seed: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    """The process's, for strategies that join what a launcher started."""
    parts: "ModelParts | None" = None
    """For executors of a composition that runs the model."""
    codec: "TextCodec | None" = None
    """The model's tokenizer; None: token ids only."""
    formats: "Sequence[ModelFormat]" = ()
    """How further models that a component reads (a draft head) may be stored."""
    families: Sequence[ModelFamily] = ()
    """Who describes and builds a model that a component reads."""
    numerics: str = "fast"
    """The setting: "fast", or "batch_invariant" for what then must provide BatchInvariant."""
    payload_bytes: int = 0
    """Of one page in a tier, for stores that are to know before the first write."""
    load_timeout_s: float = 1.0
    """The setting `cache.load_timeout_s`: no call of a tier may take longer."""
    folder: Path = Path()
    """Where relative paths of what the run writes lead: the run's folder."""
    cache_dtype: str = "auto"
    """The setting `cache.dtype`: "auto", or "fp8" for what then must provide StoresFp8."""

    @property
    def batch_invariant(self) -> bool:
        """True if a row's bits must depend on its own tokens alone."""
        return self.numerics == "batch_invariant"


Build = Callable[[Any, BuildContext], Any]


@dataclass(frozen=True)
class Component:
    """One choice of one seam.

    `seam` is the config group ("cache/eviction"), `name` the choice, `config` its dataclass whose
    fields are the options (each with a default, documented in `help`). `build` is a callable
    (config, context) -> instance, or "package.module:callable", imported only when chosen.
    `automatic` components may be what `<seam>=auto` resolves to.
    """

    seam: str
    name: str
    config: type
    build: Build | str
    summary: str
    provides: Callable[[Any, ModelDescription | None], Iterable[Capability]] = none_provided
    requires: Callable[[Any, ModelDescription | None], Iterable[Requirement]] = none_required
    automatic: bool = False

    def make(self, config: Any, context: BuildContext) -> Any:
        """Build the instance, importing its module now."""
        build = self.build
        if isinstance(build, str):
            module, _, attribute = build.partition(":")
            build = getattr(importlib.import_module(module), attribute)
        return build(config, context)
