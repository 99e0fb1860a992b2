"""The errors a user can meet. Each message names the setting, its value and what is allowed."""

from collections.abc import Sequence
from typing import Any


class InterlockError(Exception):
    """Base of every error that is somebody's mistake rather than a bug of ours."""


class ConfigError(InterlockError):
    """The configuration cannot be run. Carries every problem found, not the first."""

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


class PluginError(ConfigError):
    """A plugin that the configuration selects is missing or broken."""


class CheckpointError(InterlockError):
    """A model directory is incomplete, corrupt, or not what its config says."""


class WorkloadError(InterlockError):
    """A workload file cannot be read; names the file and the line."""


class RequestError(InterlockError):
    """One request is refused at intake; the others go on."""


class ContractError(InterlockError):
    """A component returned something its interface forbids. Names the component."""


class RunFolderError(InterlockError):
    """A run folder cannot be written or read; names the file."""


class RankError(InterlockError):
    """A process that shares the model ended or stopped answering; names its rank and the cause."""


def shown(value: Any) -> str:
    """A value that a user gave, for a message: at most 100 characters, whatever it is."""
    try:
        text = repr(value)
    except Exception:  # a number of more digits than Python writes, or an object of anybody's
        text = f"<{type(value).__name__} that cannot be written out>"
    return text if len(text) <= 100 else f"{text[:96]} ..."
