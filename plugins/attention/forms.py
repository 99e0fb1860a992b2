"""The check that a backend was given layers of the one form that it serves."""

from interlock.core.errors import ConfigError
from interlock.core.model import AttentionForm, AttentionSpec


def require_form(
    choice: str, form: AttentionForm, specs: tuple[AttentionSpec, ...], first_layer: int
) -> None:
    """Raise ConfigError naming the layers that are not of `form`."""
    others = [first_layer + at for at, spec in enumerate(specs) if spec.form != form]
    if others:
        found = sorted({spec.form for spec in specs if spec.form != form})
        raise ConfigError(
            f"attention={choice} serves layers of form {form!r} only; layers {others} have form "
            f"{', '.join(map(repr, found))}; choose attention=auto or attention=reference"
        )
