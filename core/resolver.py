"""Accept or refuse a composition before any weight is loaded, with every reason at once.

Nothing here knows a component: requirements are predicates over capabilities, `auto` becomes the
candidate that leaves no problem, and remedies are found by trying single substitutions.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from interlock.core.capabilities import Capability, Composition, Requirement, UsesDevices
from interlock.core.component import BuildContext
from interlock.core.errors import ConfigError, PluginError
from interlock.core.model import ModelDescription
from interlock.core.model_requirements import SETTINGS, model_requirements
from interlock.core.plugin_loading import cause_of
from interlock.core.registry import Chosen, Registry
from interlock.core.request_features import settings_requirements
from interlock.core.seams import SEAMS
from interlock.core.settings import AUTO, DTYPES, Choice, EngineConfig, flat_settings

T = TypeVar("T")
Identity = tuple[str, int]
"""Who requires something, as typed (`spec=eagle`), and which of its requirements."""


@dataclass(frozen=True)
class Problem:
    """A requirement that is not met: who has it, why, and each single change that mends it."""

    source: str
    reason: str
    remedies: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = self.reason if self.source in self.reason else f"{self.source}: {self.reason}"
        if not self.remedies:
            return f"{text} (no single other choice would work)"
        return f"{text}; any of these would work: {', '.join(self.remedies)}"


@dataclass(frozen=True)
class Resolution:
    """What a configuration comes to: its components, what they offer, and what is wrong."""

    config: EngineConfig
    """The configuration with every `auto` replaced by what it became."""
    chosen: Mapping[str, Chosen]
    model: ModelDescription
    capabilities: frozenset[Capability]
    problems: tuple[Problem, ...]

    def require(self) -> "Resolution":
        """This resolution, or ConfigError with every problem."""
        if self.problems:
            raise ConfigError([str(problem) for problem in self.problems])
        return self

    def build(self, seam: str, context: BuildContext) -> Any:
        """The instance of a seam's component; see `Chosen.build`."""
        return self.chosen[seam].build(context)


@dataclass(frozen=True)
class _Candidate:
    chosen: Mapping[str, Chosen]
    model: ModelDescription
    device: str
    dtype: str
    settings: Mapping[str, Any]

    def composition(self) -> Composition:
        names = {seam: (c.component.name, c.config) for seam, c in self.chosen.items()}
        offered: set[Capability] = set()
        for choice in self.chosen.values():
            offered.update(_asked(choice, choice.component.provides, self.model))
        return Composition(
            names, frozenset(offered), self.model, self.device, self.dtype, self.settings
        )

    def problems(self) -> dict[Identity, str]:
        composition = self.composition()
        found: dict[Identity, str] = {}
        for source, requirements in self._requirements():
            for number, requirement in enumerate(requirements):
                reason = _answer(source, requirement, composition)
                if reason is not None:
                    found[source, number] = reason
        return found

    def _requirements(self) -> Iterator[tuple[str, Iterable[Requirement]]]:
        yield f"model={self.model.name}", model_requirements(self.model)
        for setting, requirement in SETTINGS.items():
            yield f"{setting}={self.settings[setting]}", [requirement]
        for choice in self.chosen.values():
            yield choice.key, _asked(choice, choice.component.requires, self.model)
        yield "sampling", settings_requirements()


def resolve(
    config: EngineConfig,
    registry: Registry,
    models: Sequence[ModelDescription],
    cuda_devices: Callable[[], int] | None = None,
) -> Resolution:
    """The composition that `config` asks for, over one of `models` (the first that fits).

    `auto` choices become the automatic component, in plugin order, that leaves the fewest
    problems: none, if any fits. `cuda_devices` counts the devices (None: torch is asked, and only
    for a CUDA device). Raises PluginError for a choice that no plugin offers. Problems are in the
    result, not raised: see `Resolution.require`.
    """
    best = _best(config, registry, models)
    offered = best.composition().capabilities
    ranks = next((c.count for c in offered if isinstance(c, UsesDevices)), 1)
    problems = [*_device_problems(config.device, ranks, cuda_devices or _torch_cuda_devices)]
    found = best.problems()
    problems += [
        Problem(identity[0], reason, tuple(_remedies(identity, found, best, registry)))
        for identity, reason in found.items()
    ]
    return Resolution(
        config=_resolved(config, best),
        chosen=best.chosen,
        model=best.model,
        capabilities=offered,
        problems=tuple(problems),
    )


def reasons_against(
    config: EngineConfig, registry: Registry, models: Sequence[ModelDescription]
) -> tuple[str, ...]:
    """What `resolve` would report about components and model, without looking for remedies."""
    return tuple(_best(config, registry, models).problems().values())


def _unfitness(candidate: _Candidate) -> tuple[int, int]:
    """A model that the attention cannot compute is worse than anything else."""
    found = candidate.problems()
    model = f"model={candidate.model.name}"
    return sum(source == model for source, _ in found), len(found)


def _best(
    config: EngineConfig, registry: Registry, models: Sequence[ModelDescription]
) -> _Candidate:
    if not models:
        raise ConfigError("model=auto: no model is shipped here; set model=DIRECTORY")
    return min(_candidates(config, registry, models), key=_unfitness)


def _candidates(
    config: EngineConfig, registry: Registry, models: Sequence[ModelDescription]
) -> Iterator[_Candidate]:
    settings = flat_settings(config)
    options = [_choices_of(seam, config.choices[seam], registry) for seam in SEAMS]
    for model in models:
        for chosen in itertools.product(*options):
            yield _Candidate(
                {choice.component.seam: choice for choice in chosen},
                model,
                config.device,
                dtype_of(config, model),
                settings,
            )


def dtype_of(config: EngineConfig, model: ModelDescription) -> str:
    """Of weights and cache: `auto` is float32 on a CPU and the checkpoint's own on CUDA."""
    if config.dtype != AUTO:
        return config.dtype
    return "float32" if config.device == "cpu" else model.dtype


def _choices_of(seam: str, choice: Choice, registry: Registry) -> list[Chosen]:
    if choice.name == AUTO:
        return [registry.chosen(seam, c.name) for c in registry.automatic(seam)]
    return [registry.chosen(seam, choice.name, choice.config)]


def _remedies(
    identity: Identity, found: Mapping[Identity, str], now: _Candidate, registry: Registry
) -> Iterator[str]:
    """Every single change without this problem and without a new one."""
    for change, candidate in _changes(now, registry):
        left = candidate.problems()
        if identity not in left and left.keys() <= found.keys():
            yield change


def _changes(now: _Candidate, registry: Registry) -> Iterator[tuple[str, _Candidate]]:
    """Every other choice of a seam, dtype, and default of a setting that requires something."""
    for (seam, name), component in registry.components.items():
        if name != now.chosen[seam].component.name:
            other = registry.chosen(seam, name, component.config())
            yield other.key, replace(now, chosen={**now.chosen, seam: other})
    for dtype in (dtype for dtype in DTYPES if dtype not in (AUTO, now.dtype)):
        yield f"dtype={dtype}", replace(now, dtype=dtype)
    for setting, value in flat_settings(EngineConfig()).items():
        if setting in SETTINGS and now.settings[setting] != value:
            yield f"{setting}={value}", replace(now, settings={**now.settings, setting: value})


def _device_problems(device: str, ranks: int, cuda_devices: Callable[[], int]) -> Iterator[Problem]:
    kind, _, index = device.partition(":")
    if kind != "cuda":
        return
    count = cuda_devices()
    if ranks > 1 and (index or ranks > count):
        reason = f"{ranks} ranks use cuda:0 to cuda:{ranks - 1} (device=cuda); torch sees {count}"
        yield Problem(f"device={device}", reason, ("device=cpu",))
    elif int(index or 0) >= count:
        reason = f"torch sees {count} CUDA devices" + (f", 0 to {count - 1}" if count else "")
        remedies = ("device=cpu", *(f"device=cuda:{n}" for n in range(count)))
        yield Problem(f"device={device}", reason, remedies)


def _torch_cuda_devices() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _resolved(config: EngineConfig, best: _Candidate) -> EngineConfig:
    return replace(
        config,
        model=best.model.name if config.model == AUTO else config.model,
        dtype=best.dtype,
        choices={seam: Choice(c.component.name, c.config) for seam, c in best.chosen.items()},
    )


def _answer(source: str, requirement: Requirement, composition: Composition) -> str | None:
    try:
        return requirement(composition)
    except Exception as error:
        raise PluginError(f"{source} cannot judge a composition: {cause_of(error)}") from error


def _asked(
    choice: Chosen,
    question: Callable[[Any, ModelDescription | None], Iterable[T]],
    model: ModelDescription,
) -> list[T]:
    try:
        return list(question(choice.config, model))
    except Exception as error:
        raise PluginError(
            f"{choice.key} (from {choice.origin}) cannot say what it provides or requires: "
            f"{cause_of(error)}"
        ) from error
