"""Options of a sweep that only some of the swept choices have, and the form that allows them."""

from collections.abc import Iterator, Sequence

from interlock.conf.overrides import Setting
from interlock.core.options import defaults_of
from interlock.core.registry import Registry
from interlock.core.seams import SEAMS


def conditional_problems(
    selections: Sequence[Setting], values: Sequence[Setting], registry: Registry
) -> Iterator[str]:
    """A problem for each such option, with a study file that says the same, ready to paste.

    `selections` are swept choices of groups; `values` all options, swept or not.
    """
    for selection in selections:
        seam = SEAMS.get(selection.key)
        if seam is None or not selection.sweep:
            continue
        choices = [str(choice) for choice in selection.sweep]
        known = {
            choice: defaults_of(registry.components[seam.key, choice].config).keys()
            for choice in choices
            if (seam.key, choice) in registry.components
        }
        own = [v for v in values if v.key.startswith(f"{seam.dotted}.")]
        for setting in own:
            option = setting.key.removeprefix(f"{seam.dotted}.").split(".")[0]
            having = [choice for choice in known if option in known[choice]]
            lacking = [choice for choice in known if option not in known[choice]]
            if having and lacking:
                yield (
                    f"{setting.text}: of {selection.text} only {', '.join(having)} has the option "
                    f"{option}; a study file gives each choice its own options:\n"
                    f"{_study(seam.key, choices, having, setting)}\n"
                    "  save it as mine.yaml and run: interlock study mine.yaml"
                )


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
