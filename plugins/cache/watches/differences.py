"""In which settings an engine is not the one that saved a snapshot, in words."""

from collections.abc import Mapping
from typing import Any

WORDS = {
    "model": (
        "the snapshot's pages were computed by another model or draft head: the contents of its "
        "files differ; load it with the model that saved it, or begin without"
    ),
    "layout": "the snapshot's pages have other layers, planes or windows than this model's",
}


def differences(name: str, theirs: Any, mine: Any) -> list[str]:
    """What to say of a fact that differs: the setting, its value then and its value now."""
    if name in WORDS:
        return [WORDS[name]]
    if name == "adapters":
        return [
            f"the snapshot has {len(theirs or ())} adapters and this engine has {len(mine)}, or "
            "their files differ; give the same adapters=[...]"
        ]
    if name == "spec":
        return _of_drafter(theirs, mine)
    if name == "dtype" and None in (theirs, mine):
        then, now = (_pages(one) for one in (theirs, mine))
        return [f"the snapshot has {then}, and this engine {now}; use the executor that saved it"]
    if name == "contract":
        return [f"the snapshot is of version {theirs} of the plugin contract, and this is {mine}"]
    return [f"the snapshot is of {name}={theirs}, and this engine has {name}={mine}"]


def _pages(dtype: str | None) -> str:
    return "keys of pages without rows" if dtype is None else f"pages of rows in dtype={dtype}"


def _of_drafter(theirs: Any, mine: Any) -> list[str]:
    (then, before), (now, after) = (one or (None, {}) for one in (theirs, mine))
    if then != now:
        kept, keeps = (
            "no rows of a drafter" if one is None else f"rows of spec={one}" for one in (then, now)
        )
        return [f"the snapshot has {kept}, and this engine keeps {keeps}; give the same spec="]
    return [
        f"the snapshot is of {_option(name, before)}, and this engine has {_option(name, after)}"
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name)
    ]


def _option(name: str, options: Mapping[str, Any]) -> str:
    return f"spec.{name}={options[name]}" if name in options else f"no option spec.{name}"
