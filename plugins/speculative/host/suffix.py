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

STRIDE = 16
"""Tokens that are compared at once."""
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
        """The guess with the best score; of equal ones the own text's, then the longer match's.

        O(occurrences (m + candidates)) for a match of m tokens, in array operations.
        """
        own = self._own.setdefault(request, Occurrences())
        own.append(tokens[len(own) :].copy())
        best = _Guess(0.0, NO_DRAFT)
        limit = min(limit, self.num_drafts)
        for source in (own, self._past) if limit > 0 else ():
            best = self._better(best, source, tokens, limit)
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

    def _better(self, best: _Guess, source: Occurrences, text: Ints, limit: int) -> _Guess:
        """The best guess of this source, if it is better than `best`; the longest match first.

        Matches that have the same occurrences lead to the same guess, up to its length. A guess of
        n candidates scores at most n.
        """
        config, kept = self._config, source.tokens
        ends = source.ends_of(int(text[-1]))
        ends = ends[ends + 1 < len(kept)]  # the newest token itself has no continuation
        matched_N = _matched(kept, ends, text[-config.max_depth :])
        for matched in sorted(set(matched_N.tolist()), reverse=True):
            most = min(limit, int(matched * config.factor + config.offset + 1e-6))
            if most <= best.score:
                break  # shorter matches allow no more
            following = ends[matched_N >= matched] + 1
            guess = (self._tree if config.tree else self._path)(kept, following, most)
            best = guess if guess.score > best.score else best
        return best

    def _path(self, kept: Ints, following: Ints, most: int) -> _Guess:
        """The likeliest token at each place, as long as the path is likely enough."""
        tokens: list[int] = []
        shares: list[float] = []
        score, prob = 0.0, 1.0
        while len(tokens) < most:
            agreed = _agreed(kept, following, most - len(tokens))
            if agreed:
                tokens += agreed
                shares += [1.0] * len(agreed)
                score += prob * len(agreed)
                following = following + len(agreed)
                continue
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


def _matched(kept: Ints, ends: Ints, text: Ints) -> Ints:
    """How many of the last tokens of `text` end at each of these entries, where its last stands."""
    matched_N = np.ones(len(ends), dtype=np.int64)
    open_N = np.arange(len(ends))
    for first in range(1, len(text), STRIDE):
        back_S = np.arange(first, min(first + STRIDE, len(text)))
        at_NS = ends[open_N, None] - back_S
        same_NS = (kept[np.maximum(at_NS, 0)] == text[len(text) - 1 - back_S]) & (at_NS >= 0)
        run_N = np.logical_and.accumulate(same_NS, axis=1).sum(axis=1)
        matched_N[open_N] += run_N
        open_N = open_N[run_N == len(back_S)]
        if not len(open_N):
            break
    return matched_N


def _agreed(kept: Ints, following: Ints, most: int) -> list[int]:
    """What stands from these entries on, as far as it is the same for all, `most` at most."""
    if not len(following):
        return []
    count = min(most, len(kept) - int(following[-1]))
    ahead_NC = kept[following[:, None] + np.arange(max(0, count))]
    same_C = (ahead_NC == ahead_NC[0]).all(axis=0) & (ahead_NC[0] != END)
    alike = count if same_C.all() else int(same_C.argmin())
    return [int(token) for token in ahead_NC[0, :alike]]


def _branches(kept: Ints, following: Ints) -> Iterator[_Branch]:
    """What stands at these entries, most frequent first, of equals the one that came last."""
    following = following[following < len(kept)]
    found = kept[following]
    following, found = following[found != END], found[found != END]
    if not len(found):
        return
    tokens, last, counts = np.unique(found[::-1], return_index=True, return_counts=True)
    for at in np.lexsort((last, -counts)).tolist():
        token = int(tokens[at])
        yield _Branch(token, float(counts[at] / len(found)), following[found == token] + 1)


def build(config: SuffixConfig, _context: BuildContext) -> SuffixDrafter:
    """See Component."""
    return SuffixDrafter(config)
