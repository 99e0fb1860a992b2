"""The text of --help: every group, every choice with its source, every setting, how to quote."""

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

from interlock.conf.decode import describe
from interlock.conf.overrides import QUOTING
from interlock.conf.presets import find_presets
from interlock.core.options import plain
from interlock.core.registry import Registry
from interlock.core.seams import SEAMS
from interlock.core.settings import AUTO, EngineConfig

INTRO = """\
Interlock assembles LLM-serving components into an engine, runs a workload on it and reports.

  python run.py attention=mla cache=radix spec=eagle            one run
  python run.py workload=prompts workload.path=prompts.jsonl    one's own prompts
  python run.py -m cache=radix,none spec=none,ngram             every combination
  python run.py parallel=tensor parallel.size=2                 one model over two processes
  python run.py spec=ngram --cfg job                            show the configuration, run nothing

`interlock run` is the same command. `interlock study FILE` runs an ablation study from a file, with
repeats, intervals and a report; its --help has an example. `interlock chat` talks to a
model. `interlock explain` says what a composition would run and why; `interlock plugins` lists and
checks what is installed; `interlock new-plugin` writes a package to start from.
`interlock picture RUN_DIR` draws the cache of a run that was told cache/events=jsonl.
--hydra-help lists the flags of the configuration system; --version prints the version."""


def help_text(registry: Registry) -> str:
    """What --help prints."""
    groups = "\n".join(_groups(registry))
    settings = "\n".join(_fields(EngineConfig, ""))
    broken = "".join(f"\n{plugin}" for plugin in registry.broken)
    return "\n\n".join(
        [
            INTRO,
            f"Choices: GROUP=NAME\n{groups}{broken}",
            "\n".join(_models(registry)),
            f"Settings: KEY=VALUE\n{settings}",
            QUOTING,
        ]
    )


def _groups(registry: Registry) -> Iterator[str]:
    presets = find_presets(registry.config_dirs)
    for group in sorted({*SEAMS, *(preset.group for preset in presets)}):
        seam = SEAMS.get(group)
        yield f"\n  {group}: {seam.summary if seam else 'presets'}"
        for preset in presets:
            if preset.group == group:
                yield _line(preset.name, preset.summary, _place(preset.path.as_posix(), registry))
        for name in registry.names(group) if seam else ():
            if name == AUTO:
                yield _line(name, "what serves the model", "built-in")
                continue
            component = registry.components[group, name]
            yield _line(name, component.summary, _source(str(registry.origins[group, name])))
            for line in _fields(component.config, f"{group.replace('/', '.')}."):
                yield f"    {line}"


def _models(registry: Registry) -> Iterator[str]:
    yield "Models: model=NAME, besides shipped ones, directories and files"
    for form in registry.formats.values():
        for name, summary in form.models.items():
            yield _line(name, summary, form.name)


def _fields(kind: type, prefix: str) -> Iterator[str]:
    for field in dataclasses.fields(kind):
        if field.name == "name" or not field.metadata.get("option", True):
            continue
        value = getattr(kind(), field.name)
        if dataclasses.is_dataclass(value):
            yield from _fields(type(value), f"{prefix}{field.name}.")
            continue
        about = field.metadata.get("help") or describe(field.type)
        yield f"  {prefix}{field.name}={_shown(value)}  {about}"


def _shown(value: Any) -> str:
    return json.dumps(plain(value)).strip('"')


def _line(name: str, summary: str, source: str) -> str:
    return f"    {name:<16} {summary} [{source}]"


def _source(origin: str) -> str:
    return "built-in" if origin.split()[0] == "interlock" else origin


def _place(path: str, registry: Registry) -> str:
    return next((folder for folder in registry.config_dirs if path.startswith(folder)), "built-in")
