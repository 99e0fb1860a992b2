"""How good a head's drafts are on held-out answers, from what the store knows of them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from interlock.models.recipe.acceptance import Acceptance, chains_of
from interlock.models.recipe.drafters.facts import Drafter
from interlock.models.recipe.drafters.store import Store

DRAFTS = 7
BATCH_TOKENS = 2048


@dataclass(frozen=True)
class Quality:
    """`agreement[k]`: share of all places where draft k + 1 is right if those before it were.

    `acceptance` is that of chains of at most DRAFTS drafts, each begun where the last one ended.
    """

    acceptance: Acceptance
    agreement: tuple[float, ...]

    def report(self) -> dict[str, object]:
        """The fields as plain values, rounded for a file."""
        shares = [round(share, 3) for share in self.agreement]
        return {"acceptance": self.acceptance.report(), "agreement": shares}


@torch.no_grad()
def measure(head: Drafter, store: Store) -> Quality:
    """Greedy drafts for the target's greedy answers, in fp32."""
    head.eval()
    matches: list[Tensor] = []
    spans: list[tuple[int, int]] = []
    right, places = torch.zeros(head.depth), torch.zeros(head.depth)
    for window in store.held_out(BATCH_TOKENS, head.taps):
        guesses_BTK = head.guess(window)
        same = torch.zeros_like(guesses_BTK, dtype=torch.bool)
        for k in range(head.depth):
            wanted, counted = window.ids_BT[:, 1 + k :], window.mask_BT[:, k:-1].clone()
            same[:, : wanted.shape[1], k] = guesses_BTK[:, : wanted.shape[1], k] == wanted
            # The anchor is part of the answer as well: its own law's row is the one before it.
            counted[:, 1:] &= window.mask_BT[:, : wanted.shape[1] - 1]
            counted[:, 0] = False
            right[k] += (same[:, : wanted.shape[1], k] & counted).sum()
            places[k] += counted.sum()
        matches += list(same)
        for mask in window.mask_BT:
            answered = mask.nonzero().flatten() + 1
            spans.append((int(answered[0]), int(answered[-1])))
    acceptance = chains_of(matches, spans, min(DRAFTS, head.depth))
    return Quality(acceptance, tuple((right / places.clamp(min=1)).tolist()))
