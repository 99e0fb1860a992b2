"""Suffix decoding: follow what most often came after the newest tokens.

The pattern is the text's last m tokens, for growing m. Its occurrences in the request's own text,
and in past answers of all requests, vote for what comes next (Oliaro, Jia, Campos, Qiao:
"SuffixDecoding", arXiv 2411.04975, sections 3 and 4). Where the paper walks suffix tries, this
keeps the tokens and the places of each token, and narrows the list of occurrences token by token:
the same counts, in memory proportional to the tokens kept.
"""

import heapq
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from interlock.core.batch import NO_DRAFT, Draft, Ints
from interlock.core.component import BuildContext
from interlock.core.drafter import TokenDrafter
from interlock.core.request import RequestId
from interlock.plugins.speculative.host.occurrences import Occurrences
from interlock.plugins.speculative.host.options import SuffixConfig

END = -1
"""Stands behind every past answer: it is no token, so no match runs over it."""


class _Branch(NamedTuple):
    """What may come next: the token, its share of the occurrences, and those it leaves."""

    token: int
    share: float
    after: Ints


class _Node(NamedTuple):
    """A candidate of a tree under construction."""

    parent: int
    branch: _Branch
    prob: float


class _Guess(NamedTuple):
    """A draft with the number of its candidates that are expected to be accepted."""

    score: float
    draft: Draft


class SuffixDrafter(TokenDrafter):
    """Drafts from a request's own text and from the answers of those that ended before it."""

    def __init__(self, config: SuffixConfig) -> None:
        self.num_drafts = config.num_drafts
        self._config = config
        self._own: dict[RequestId, Occurrences] = {}
        self._past = Occurrences()
        self._past_lengths: deque[int] = deque()

    def propose(self, request: RequestId, tokens: Ints, limit: int) -> Draft:
        """The guess with the best score; of equal ones the longer match, then the own text's.

        O(m (occurrences + candidates)) for a match of m tokens.
        """
        own = self._own.setdefault(request, Occurrences())
        own.append(tokens[len(own) :].copy())
        best = _Guess(0.0, NO_DRAFT)
        limit = min(limit, self.num_drafts)
        for source in (own, self._past) if limit > 0 else ():
            for guess in self._guesses(source, tokens, limit):
                longer = source is own and guess.score == best.score
                if guess.score > best.score or longer:
                    best = guess
        return best.draft

    def ended(self, request: RequestId, tokens: Ints, prompt_tokens: int) -> None:
        """Remember the answer, and forget the oldest one where there are too many."""
        self._own.pop(request, None)
        answer = tokens[prompt_tokens:]
        if not self._config.cached_requests or not len(answer):
            return
        self._past.append(np.append(answer, END))
        self._past_lengths.append(len(answer) + 1)
        if len(self._past_lengths) > self._config.cached_requests:
            self._past.drop(self._past_lengths.popleft())

    def _guesses(self, source: Occurrences, text: Ints, limit: int) -> Iterator[_Guess]:
        """One guess for each length of match that has a continuation, shortest first."""
        config, kept = self._config, source.tokens
        ends = source.ends_of(int(text[-1]))
        ends = ends[ends + 1 < len(kept)]  # the newest token itself has no continuation
        for matched in range(1, min(len(text), config.max_depth) + 1):
            if matched > 1:
                ends = ends[ends >= matched - 1]
                ends = ends[kept[ends - matched + 1] == text[-matched]]
            if not len(ends):
                return
            most = min(limit, int(matched * config.factor + config.offset + 1e-6))
            if most > 0:
                yield (self._tree if config.tree else self._path)(kept, ends + 1, most)

    def _path(self, kept: Ints, following: Ints, most: int) -> _Guess:
        """The likeliest token at each place, as long as the path is likely enough."""
        tokens: list[int] = []
        shares: list[float] = []
        score, prob = 0.0, 1.0
        while len(tokens) < most:
            branch = next(_branches(kept, following), None)
            if branch is None or prob * branch.share < self._config.min_prob:
                break
            prob *= branch.share
            score += prob
            tokens.append(branch.token)
            shares.append(branch.share)
            following = branch.after
        return _Guess(score, Draft(tuple(tokens), confidence=tuple(shares)))

    def _tree(self, kept: Ints, following: Ints, most: int) -> _Guess:
        """The likeliest `most` nodes: a node is never likelier than its parent."""
        nodes: list[_Node] = []
        open_nodes: list[tuple[float, int, _Node]] = []
        added = 0

        def offer(parent: int, prob: float, following: Ints) -> None:
            nonlocal added
            for branch in _branches(kept, following):
                below = prob * branch.share
                if below < self._config.min_prob:
                    break
                heapq.heappush(open_nodes, (-below, added, _Node(parent, branch, below)))
                added += 1

        offer(-1, 1.0, following)
        while open_nodes and len(nodes) < most:
            node = heapq.heappop(open_nodes)[2]
            nodes.append(node)
            offer(len(nodes) - 1, node.prob, node.branch.after)
        draft = Draft(
            tuple(node.branch.token for node in nodes),
            tuple(node.parent for node in nodes),
            confidence=tuple(node.branch.share for node in nodes),
        )
        return _Guess(sum(node.prob for node in nodes), draft)


def _branches(kept: Ints, following: Ints) -> Iterator[_Branch]:
    """What stands at these entries, most frequent first, of equals the one that came last."""
    following = following[following < len(kept)]
    found = kept[following]
    following, found = following[found != END], found[found != END]
    if not len(found):
        return
    tokens, counts = np.unique(found, return_counts=True)
    newest = [int(following[found == token][-1]) for token in tokens]
    for at in sorted(range(len(tokens)), key=lambda at: (-counts[at], -newest[at])):
        token = int(tokens[at])
        yield _Branch(token, float(counts[at] / len(found)), following[found == token] + 1)


def build(config: SuffixConfig, _context: BuildContext) -> SuffixDrafter:
    """See Component."""
    return SuffixDrafter(config)
