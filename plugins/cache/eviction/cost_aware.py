"""What is cheap to compute again and seldom used goes first."""

from collections.abc import Iterable, Mapping
from typing import Any

from interlock.core.component import BuildContext
from interlock.core.eviction import RankedEviction
from interlock.core.model import ModelDescription
from interlock.core.prefix_index import Run
from interlock.plugins.cache.eviction import CostAwareConfig

_BASE = "cost_base"


class CostAwareEviction(RankedEviction):
    """The run with the smallest H = L + uses * cost(last page) goes first.

    This is GreedyDual-Size-Frequency (Cherkasova, HP Labs HPL-98-69R1, 1998; GreedyDual-Size is
    Cao and Irani, USITS 1997): value per byte = likelihood of reuse * cost of a miss / size, with
    uses since it was indexed as the likelihood. Pages have one size, so it drops out. L is the H of
    the run evicted last, read when a run is used: what is not used is overtaken, in O(log n).

    The cost of a page whose first token is at position t is that of prefilling it: per token
    1 + t / attention_tokens, where `attention_tokens` is the context at which attention costs as
    much as all else (Kaplan et al., arXiv 2001.08361, section 2.1: 2N + 2 n_layer n_ctx d_attn).
    Pages go from a run's tail, so the last page is the one that is judged.
    """

    def __init__(self, page_size: int, attention_tokens: float) -> None:
        super().__init__()
        self._page_size = page_size
        self._attention_tokens = attention_tokens
        self._last = 0.0

    def entered(self, run: Run, count: int) -> None:
        """It counts from the value of the run evicted last."""
        run.state[_BASE] = self._last

    def used(self, run: Run) -> None:
        """See `entered`."""
        run.state[_BASE] = self._last

    def value(self, run: Run) -> float:
        """H, in pages computed without any context."""
        place = (run.depth_pages + len(run.pages) - 1) * self._page_size
        cost = 1.0 + place / self._attention_tokens
        return run.state.setdefault(_BASE, self._last) + run.uses * cost

    def rank(self, run: Run) -> tuple[float, float, int]:
        """Value, then last use, then depth, deepest first."""
        return self.value(run), run.last_used_s, -run.depth_pages

    def books(self) -> dict[str, Any]:
        """See Books."""
        return {"last": self._last}

    def open_books(self, books: Mapping[str, Any], runs: Iterable[Run], shift_s: float) -> None:
        """See Books."""
        self._last = books["last"]

    def choose(self) -> Run | None:
        """See EvictionPolicy."""
        run = super().choose()
        if run is not None:
            self._last = max(self._last, self.value(run))
        return run


def attention_tokens(model: ModelDescription) -> float:
    """The context at which attention costs as much as a decoder's projections and MLPs.

    A layer of hidden size E has about 12 E**2 weights, 24 E**2 operations a token; H heads attend
    to one token with 2 H (D + V) of them.
    """
    specs = model.attention
    attend = sum(2 * spec.num_heads * (spec.head_dim + spec.v_head_dim) for spec in specs)
    return 24.0 * model.hidden_size**2 * len(specs) / attend


def build(config: CostAwareConfig, context: BuildContext) -> CostAwareEviction:
    """The policy without candidates."""
    tokens = config.attention_tokens or attention_tokens(context.model)
    return CostAwareEviction(context.page_size, tokens)
