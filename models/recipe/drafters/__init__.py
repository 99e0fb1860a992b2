"""Drafter heads that `train_drafter` trains: one file a kind, each with a class `Head`.

A head is a `torch.nn.Module` over a frozen target. It never runs the target: everything that it
learns from was written to a store once (`store.py`), and comes as a `Window` (`facts.py`). To add a
kind, write `drafters/<kind>.py` with a `Head` (see `facts.Drafter`) and add its name to KINDS.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from interlock.models.recipe.drafters.facts import Drafter


KINDS = ("eagle", "eagle3", "medusa", "hydra", "mtp", "dflash", "dspark", "draft_model")
"""In the order in which the command's help shows them."""


def head_class(kind: str) -> "type[Drafter]":
    """The `Head` of this kind.

    Raises:
        ValueError: no such kind.
    """
    if kind not in KINDS:
        raise ValueError(f"no drafter kind {kind!r}; known: {', '.join(KINDS)}")
    head: type[Drafter] = importlib.import_module(f"interlock.models.recipe.drafters.{kind}").Head
    return head
