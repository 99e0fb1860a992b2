"""How long a request may be: the setting, or what the model allows."""

from interlock.core.capabilities import RunsModel
from interlock.core.resolver import Resolution

SIMULATED_MAX_LEN = 1 << 18
"""Longest request where no model sets a limit, in tokens."""


def longest_request(resolution: Resolution) -> int:
    """Prompt and output together, in tokens."""
    asked = resolution.config.max_model_len
    if asked is not None:
        return asked
    runs_model = RunsModel() in resolution.capabilities
    return resolution.model.max_positions if runs_model else SIMULATED_MAX_LEN


def length_problems(resolution: Resolution) -> list[str]:
    """That a request may not be as long as `max_model_len` says; nothing without a model."""
    model, asked = resolution.model, resolution.config.max_model_len
    if RunsModel() not in resolution.capabilities or (asked or 0) <= model.max_positions:
        return []
    why = f" ({model.limited_by})" if model.limited_by else ""
    return [
        f"max_model_len={asked} is beyond the {model.max_positions} positions of model "
        f"{model.name}{why}"
    ]
