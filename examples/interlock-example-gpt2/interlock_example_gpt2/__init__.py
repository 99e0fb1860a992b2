"""An Interlock plugin: the model family GPT-2."""

from interlock.core.hooks import hookimpl
from interlock.core.model import ModelFamily

INTERLOCK_CONTRACT = 1
"""The plugin contract this package was written for; Interlock refuses another one."""


@hookimpl
def interlock_model_families() -> list[ModelFamily]:
    """What this package adds: one family."""
    from interlock_example_gpt2.family import GPT2Family

    return [GPT2Family()]
