"""One phrase for 'you mistyped a name'."""

import difflib
from collections.abc import Iterable


def unknown_name(kind: str, name: str, known: Iterable[str]) -> str:
    """ "no <kind> named 'x'; did you mean 'y'? known: a, b"."""
    options = sorted(known)
    close = difflib.get_close_matches(name, options, n=1, cutoff=0.5)
    hint = f"; did you mean {close[0]!r}?" if close else ";"
    return f"no {kind} named {name!r}{hint} known: {', '.join(options) or '(none)'}"
