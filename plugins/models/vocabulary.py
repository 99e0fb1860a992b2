"""The embedding and the output matrix, whole or spread over ranks.

Legend: T tokens, E hidden size, V this rank's rows.
"""

from torch import Tensor
from torch.nn import functional

from interlock.core.parallel import Ranks
from interlock.plugins.models.products import Product


class Vocabulary:
    """How the rows of embedding and output matrix are spread: each rank has some of both."""

    def __init__(self, size: int, ranks: Ranks) -> None:
        self.size = size
        self.ranks = ranks
        self.each = -(-size // ranks.size)
        self.first = self.each * ranks.rank


class Embedding:
    """A row for each token."""

    def __init__(self, rows_VE: Tensor, vocabulary: Vocabulary) -> None:
        self.rows_VE = rows_VE
        self.vocabulary = vocabulary

    def __call__(self, tokens_T: Tensor) -> Tensor:
        """The tokens' rows [T, E]."""
        if self.vocabulary.ranks.size == 1:
            return functional.embedding(tokens_T, self.rows_VE)
        local_T = tokens_T - self.vocabulary.first
        mine_T = (local_T >= 0) & (local_T < len(self.rows_VE))
        out_TE = self.rows_VE.new_zeros(len(tokens_T), self.rows_VE.shape[1])
        out_TE[mine_T] = self.rows_VE[local_T[mine_T]]
        return self.vocabulary.ranks.sum(out_TE)


class Head:
    """Products with the row of every token."""

    def __init__(self, product: Product, vocabulary: Vocabulary) -> None:
        self.product = product
        self.vocabulary = vocabulary

    def __call__(self, features_TE: Tensor) -> Tensor:
        """[T, vocabulary]."""
        of = self.vocabulary
        logits_TV = self.product(features_TE)
        if of.ranks.size == 1:
            return logits_TV
        padded_TV = functional.pad(logits_TV, (0, of.each - logits_TV.shape[1]))
        return of.ranks.concat(padded_TV)[:, : of.size]
