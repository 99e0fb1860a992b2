"""Lookahead decoding: Jacobi iteration in a window ahead, and the n-grams that it leaves behind.

Fu, Bailis, Stoica, Zhang: "Break the sequential dependency of LLM inference using lookahead
decoding" (arXiv 2402.02057, section 3). The window holds `window` guessed positions at
`ngram - 1` levels, level by level what the target said in later steps: column j of it is a piece
of one trajectory. Both the window and the n-grams that start like the text goes on are branches of
one draft tree, so a step runs and verifies both in one pass, and a guess of the window that comes
true is accepted like any other.
"""

from collections.abc import Sequence

from interlock.core.batch import Draft, Ints
from interlock.core.component import BuildContext
from interlock.core.drafter import TokenDrafter
from interlock.core.request import RequestId
from interlock.plugins.speculative.host.options import LookaheadConfig

Ngram = tuple[int, ...]


class _Trajectories:
    """The window of one request, and the n-grams it has seen, by first token."""

    def __init__(self, start: list[int]) -> None:
        self.levels = [start]
        self.ngrams: dict[int, list[Ngram]] = {}
        self.first_node = 0
        """Where the window begins in the newest draft."""

    def keep(self, ngram: Ngram, most: int) -> None:
        """Note an n-gram as the newest of its first token; the oldest of too many is dropped."""
        known = self.ngrams.setdefault(ngram[0], [])
        if ngram[1:] in known:
            known.remove(ngram[1:])
        known.insert(0, ngram[1:])
        del known[most:]


class LookaheadDrafter(TokenDrafter):
    """Drafts n-grams, and runs the window along to find new ones.

    A window is only moved on where all of it was verified, so a small token budget slows it down.
    """

    wants_draws = True
    whole = True  # the window makes guesses only if all of it is verified

    def __init__(self, config: LookaheadConfig) -> None:
        self.num_drafts = config.num_drafts
        self.depth = config.window + config.ngram - 2
        self._config = config
        self._of: dict[RequestId, _Trajectories] = {}

    def propose(self, request: RequestId, tokens: Ints, limit: int) -> Draft:
        """The known n-grams after the last token, newest first, then the window. O(num_drafts)."""
        state = self._of.get(request)
        if state is None:
            recent = tokens[-self._config.window :].tolist()
            state = _Trajectories((recent * self._config.window)[: self._config.window])
            self._of[request] = state
        nodes: list[int] = []
        parents: list[int] = []
        for ngram in state.ngrams.get(int(tokens[-1]), ()):
            _graft(ngram, nodes, parents)
        state.first_node = len(nodes)
        before = [-1] * self._config.window
        for level, guessed in enumerate(state.levels):
            first = len(nodes)
            nodes += guessed
            chain = [-1, *range(first, first + len(guessed) - 1)]
            parents += before if level else chain
            before = [*range(first, first + len(guessed))]
        return Draft(tuple(nodes), tuple(parents)).first(min(limit, self.num_drafts))

    def verified(self, request: RequestId, draft: Draft, draws: Sequence[int]) -> None:
        """Move the window on by what the target drew after its newest level."""
        state, window = self._of.get(request), self._config.window
        if state is None or len(draft.tokens) < state.first_node + window * len(state.levels):
            return
        newest = state.first_node + window * (len(state.levels) - 1)
        drawn = list(draws[newest + 1 : newest + 1 + window])
        if len(state.levels) == self._config.ngram - 1:
            for column in zip(*state.levels, drawn, strict=True):
                state.keep(column, self._config.guesses)
            del state.levels[0]
        state.levels.append(drawn)

    def ended(self, request: RequestId, tokens: Ints, prompt_tokens: int) -> None:
        """Forget the request."""
        self._of.pop(request, None)


def _graft(ngram: Ngram, nodes: list[int], parents: list[int]) -> None:
    """Add a chain below the anchor, sharing what is there already."""
    parent = -1
    for token in ngram:
        same = (n for n, p in enumerate(parents) if p == parent and nodes[n] == token)
        node = next(same, None)
        if node is None:
            node = len(nodes)
            nodes.append(token)
            parents.append(parent)
        parent = node


def build(config: LookaheadConfig, _context: BuildContext) -> LookaheadDrafter:
    """See Component."""
    return LookaheadDrafter(config)
