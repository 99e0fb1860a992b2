"""`interlock explain ...`: what a composition would run, what stands in its way, who needs whom."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from interlock.conf.find_model import describe_models
from interlock.conf.hydra_edge import compose
from interlock.conf.longest_request import length_problems
from interlock.core.capabilities import Capability, Composition, Requirement
from interlock.core.component import BuildContext
from interlock.core.errors import ConfigError
from interlock.core.model_requirements import SETTINGS, model_requirements
from interlock.core.registry import Registry
from interlock.core.request_features import settings_requirements
from interlock.core.resolver import Resolution, resolve
from interlock.core.settings import flat_settings
from interlock.driver.output import show

HELP = """\
Say what a composition would run and why, without reading a weight.

  interlock explain attention=mla cache=contiguous spec=eagle2

Choices and settings are those of `interlock run`. Printed are the components with what each of
them provides, the chain of capabilities (who looks for what, and who provides it), and if it is
refused every reason with the single changes that would work. Exit status 1: it would not run."""


@dataclass(frozen=True)
class Link:
    """A capability that a requirement looked for, who provides it, and if the requirement is met.

    Some look for what must not be there: those are met where nobody provides it.
    """

    source: str
    capability: Capability
    providers: tuple[str, ...]
    met: bool


@dataclass(frozen=True)
class Watched(Composition):
    """A composition that notes which capabilities a requirement looks for."""

    asked: list[Capability] = field(default_factory=list, compare=False)

    def has(self, capability: Capability) -> bool:
        """See Composition."""
        self.asked.append(capability)
        return super().has(capability)


def main(arguments: Sequence[str], registry: Registry) -> int:
    """Print the explanation of these overrides; 0 when they would run."""
    if "--help" in arguments or "-h" in arguments:
        show(HELP)
        return 0
    if flags := [argument for argument in arguments if argument.startswith("-")]:
        raise ConfigError(f"{flags[0]}: `interlock explain` takes choices and settings only")
    config = compose(arguments, registry)
    resolution = resolve(config, registry, describe_models(config, registry))
    problems = refusals(resolution)
    show("\n".join(explanation(resolution, problems)))
    return 1 if problems else 0


def refusals(resolution: Resolution) -> list[str]:
    """Everything for which it would not run that is known without reading a weight."""
    problems = [*map(str, resolution.problems), *length_problems(resolution)]
    return problems or [*_workload_problems(resolution)]


def _workload_problems(resolution: Resolution) -> Sequence[str]:
    """What the workload lacks, such as a file's path; what is in the file is not looked at."""
    try:
        resolution.build("workload", BuildContext(resolution.model, seed=resolution.config.seed))
    except ConfigError as error:
        return error.problems
    return []


def explanation(resolution: Resolution, problems: Sequence[str]) -> Iterator[str]:
    """The lines that are printed; `problems` are its refusals."""
    yield "This would NOT run." if problems else "This would run."
    forms = ", ".join(sorted(resolution.model.forms))
    config = resolution.config
    yield ""
    yield f"model={resolution.model.name} ({resolution.model.family}, {forms} attention)"
    yield f"device={config.device} dtype={config.dtype}"
    yield ""
    yield from _components(resolution)
    yield ""
    yield "Who looks for what, and who provides it:"
    for link in chain(resolution):
        provided = ", ".join(link.providers) if link.providers else "nobody"
        without = " (works without)" if link.met and not link.providers else ""
        refused = "" if link.met else " (refused)"
        yield f"  {link.source} looks for {said(link.capability)}: {provided}{without}{refused}"
    if problems:
        yield ""
        yield "Refused:"
        yield from (f"  - {problem}" for problem in problems)


def _components(resolution: Resolution) -> Iterator[str]:
    yield "Components, and what they provide:"
    offers = offered(resolution)
    width = max(map(len, offers))
    for choice in resolution.chosen.values():
        provides = ", ".join(map(said, offers[choice.key])) or "-"
        origin = "" if choice.origin.distribution == "interlock" else f" [{choice.origin}]"
        yield f"  {choice.key.ljust(width)}  {provides}{origin}"


def offered(resolution: Resolution) -> dict[str, list[Capability]]:
    """Choice, as it is typed -> its capabilities."""
    return {
        choice.key: list(choice.component.provides(choice.config, resolution.model))
        for choice in resolution.chosen.values()
    }


def chain(resolution: Resolution) -> list[Link]:
    """Every capability that some requirement of the composition looked for, each once a source."""
    offers = offered(resolution)
    links: dict[tuple[str, Capability], Link] = {}
    for source, requirements in _requirements(resolution):
        for requirement in requirements:
            watched = _watched(resolution)
            met = requirement(watched) is None
            for capability in watched.asked:
                providers = tuple(key for key, found in offers.items() if capability in found)
                before = links.get((source, capability))
                all_met = met and (before is None or before.met)
                links[source, capability] = Link(source, capability, providers, all_met)
    return list(links.values())


def _requirements(resolution: Resolution) -> Iterator[tuple[str, Iterable[Requirement]]]:
    """As the resolver asks them."""
    settings = flat_settings(resolution.config)
    yield f"model={resolution.model.name}", model_requirements(resolution.model)
    for setting, requirement in SETTINGS.items():
        yield f"{setting}={settings[setting]}", [requirement]
    for choice in resolution.chosen.values():
        yield choice.key, choice.component.requires(choice.config, resolution.model)
    yield "sampling", settings_requirements()


def _watched(resolution: Resolution) -> Watched:
    names: Mapping[str, tuple[str, Any]] = {
        seam: (choice.component.name, choice.config) for seam, choice in resolution.chosen.items()
    }
    config = resolution.config
    return Watched(
        names, resolution.capabilities, resolution.model, config.device, config.dtype,
        flat_settings(config),
    )  # fmt: skip


def said(capability: Capability) -> str:
    """A capability as it is written in Python, without what says nothing."""
    values = [str(getattr(capability, f.name)) for f in dataclasses.fields(capability)]
    return type(capability).__name__ + (f"({', '.join(values)})" if values else "")
