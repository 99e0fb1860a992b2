"""A head that knows only some of the target's tokens: its entries, and which tokens they are for.

Legend: D entries of the head, V vocabulary of the target, R rows.
"""

import torch
from torch import Tensor

from interlock.core.errors import CheckpointError


class DraftVocabulary:
    """The tokens of a head's entries, from the offsets `d2t` that checkpoints store: entry i is for
    token i + d2t[i]. `t2d`, if it is stored too, marks those tokens.

    CheckpointError, naming `source`, where they are not different tokens, or not those of `t2d`.
    """

    def __init__(
        self, d2t_D: Tensor, vocab_size: int, source: str, t2d_V: Tensor | None = None
    ) -> None:
        ids_D = d2t_D + torch.arange(len(d2t_D), device=d2t_D.device)
        inside = bool(((ids_D >= 0) & (ids_D < vocab_size)).all())
        if not inside or len(set(ids_D.tolist())) < len(ids_D):
            raise CheckpointError(
                f"{source}: i + d2t[i] are not different tokens below vocab_size={vocab_size}"
            )
        if t2d_V is not None and (int(t2d_V.sum()) != len(ids_D) or not bool(t2d_V[ids_D].all())):
            raise CheckpointError(f"{source}: t2d and d2t do not name the same tokens")
        self.ids_D = ids_D
        self._places_V = torch.full((vocab_size,), 0, device=ids_D.device)
        self._places_V[ids_D] = torch.arange(len(ids_D), device=ids_D.device)

    def targets(self, places: Tensor) -> Tensor:
        """Tokens of entries."""
        return self.ids_D[places]

    def places(self, tokens: Tensor) -> Tensor:
        """Entries of tokens; 0 for a token that the head does not know."""
        return self._places_V[tokens]

    def spread(self, logits_RD: Tensor) -> Tensor:
        """[R, V]: -inf for tokens that the head does not know."""
        full_RV = logits_RD.new_full((len(logits_RD), len(self._places_V)), -torch.inf)
        return full_RV.index_copy_(1, self.ids_D, logits_RD)
