"""The YAML presets that can be selected: Interlock's `conf` and the folders plugins contribute."""

import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

STUDIES = "experiment"
"""Interlock's own folder of whole studies, which are no choices of a run. Elsewhere a group of this
name is like any other."""


@dataclass(frozen=True)
class Preset:
    """One YAML file of a config group; `summary` is its first comment line."""

    group: str
    name: str
    path: Path

    @property
    def summary(self) -> str:
        """What the file says about itself."""
        for line in self.path.read_text(encoding="utf-8", errors="replace").splitlines():
            text = line.removeprefix("#").strip()
            if line.startswith("#") and text and not text.startswith("@package"):
                return text
        return ""


def find_presets(folders: Iterable[str | Path] = ()) -> list[Preset]:
    """Presets of Interlock and of these folders, by group and name; earlier folders win."""
    found: dict[tuple[str, str], Preset] = {}
    own = conf_folder()
    for folder in (own, *map(Path, folders)):
        for path in sorted(folder.rglob("*.yaml")):
            group = path.parent.relative_to(folder).as_posix()
            if group != "." and (folder != own or group != STUDIES):
                found.setdefault((group, path.stem), Preset(group, path.stem, path))
    return [found[key] for key in sorted(found)]


def conf_folder() -> Path:
    """Where Interlock's own presets are."""
    spec = importlib.util.find_spec("interlock.conf")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent
