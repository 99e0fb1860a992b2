"""Options of a sweep that only some of the swept choices have, and the form that allows them."""

from collections.abc import Callable, Iterator, Sequence

from interlock.conf.overrides import Setting
from interlock.core.options import defaults_of
from interlock.core.registry import Registry

Has = Callable[[str, str, str], bool | None]
"""Whether this choice of a group has this option (all of its key); None: that is not known."""


def conditional_problems(
    selections: Sequence[Setting], values: Sequence[Setting], has: Has, registry: Registry
) -> Iterator[str]:
    """A problem for each such option, with a study file that says the same, ready to paste.

    And for each that none of the choices has.

    `selections` are swept choices of groups, of components or of presets; `values` all options,
    swept or not.
    """
    for selection in selections:
        if not selection.sweep:
            continue
        group, choices = selection.key, [str(choice) for choice in selection.sweep]
        dotted = group.replace("/", ".")
        for setting in (v for v in values if v.key.startswith(f"{dotted}.")):
            known = {choice: has(group, choice, setting.key) for choice in choices}
            having = [choice for choice in choices if known[choice]]
            if having and False in known.values():
                option = setting.key.removeprefix(f"{dotted}.")
                yield (
                    f"{setting.text}: of {selection.text} only {', '.join(having)} has the option "
                    f"{option}; a study file gives each choice its own options:\n"
                    f"{_study(group, choices, having, setting)}\n"
                    "  save it as mine.yaml and run: interlock study mine.yaml"
                )
            elif set(known.values()) == {False} and not _is_nearer(selections, group, setting):
                owners = _owners(setting, registry)
                yield f"{setting.text}: none of {selection.text} has this option{owners}"


def _is_nearer(selections: Sequence[Setting], group: str, setting: Setting) -> bool:
    """Whether a group within this one is swept too, which decides what options there are."""
    within = (s.key.replace("/", ".") for s in selections if s.key.startswith(f"{group}/"))
    return any(setting.key.startswith(f"{dotted}.") for dotted in within)


def _owners(setting: Setting, registry: Registry) -> str:
    """Whose option it is, in words to follow a refusal."""
    having = [
        f"{seam}={name}"
        for (seam, name), component in sorted(registry.components.items())
        for option in defaults_of(component.config)
        if setting.key == f"{seam.replace('/', '.')}.{option}"
    ]
    return f"; it is an option of {', '.join(having)}" if having else ""


def _study(group: str, choices: Sequence[str], having: Sequence[str], setting: Setting) -> str:
    """A study file of these choices, a level for each value that a choice is swept over."""
    key = setting.key
    swept = setting.sweep if setting.sweep is not None else (setting.value,)
    lines = ["  factors:", f"    {group.replace('/', '_')}:"]
    for choice in choices:
        if choice not in having:
            lines.append(f"      {choice}: [{group}={choice}]")
        for value in swept if choice in having else ():
            name = f"{choice}_{value}" if len(swept) > 1 else choice
            lines.append(f"      {name}: [{group}={choice}, {key}={value}]")
    return "\n".join(lines)
