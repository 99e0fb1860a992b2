"""Drafters for tests that know the right continuation and corrupt it on purpose.

They make verification meet every outcome: full acceptance, rejection at each depth, dead branches.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from interlock.core.batch import Draft, Ints
from interlock.core.component import BuildContext, Component
from interlock.core.drafter import TokenDrafter
from interlock.core.options import option
from interlock.core.request import RequestId


@dataclass
class Continuations:
    """Full token sequences (prompt and output) that the drafters may propose from."""

    sequences: list[tuple[int, ...]] = field(default_factory=list)

    def after(self, tokens: Sequence[int], count: int) -> tuple[int, ...]:
        """What follows `tokens` in the first sequence that starts with them."""
        start = tuple(tokens)
        for sequence in self.sequences:
            if sequence[: len(start)] == start and len(sequence) > len(start):
                return sequence[len(start) : len(start) + count]
        return ()


@dataclass(frozen=True)
class ReplayConfig:
    """Propose known continuations."""

    name: str = "replay"
    num_drafts: int = option(4, "candidates per request and step")
    tree: bool = option(False, "propose a tree with wrong siblings before the right tokens")
    wrong_percent: int = option(30, "how often a token is replaced by a wrong one, in percent")


class ReplayDrafter(TokenDrafter):
    """Known continuations with deterministic mistakes."""

    def __init__(self, config: ReplayConfig, known: Continuations, vocab_size: int) -> None:
        self.num_drafts = config.num_drafts
        self._config = config
        self._known = known
        self._vocab_size = vocab_size

    def propose(self, request: RequestId, tokens: Ints, limit: int) -> Draft:
        """See TokenDrafter."""
        limit = min(limit, self.num_drafts)
        right = self._known.after(tokens.tolist(), limit)
        chain = [self._maybe_wrong(token, len(tokens) + i) for i, token in enumerate(right)]
        if not self._config.tree:
            return Draft(tuple(chain))
        nodes: list[int] = []
        parents: list[int] = []
        parent = -1
        for depth, token in enumerate(chain):
            if len(nodes) + 2 > limit:
                break
            nodes += [(token + 1 + depth) % self._vocab_size, token]
            parents += [parent, parent]
            parent = len(nodes) - 1
        return Draft(tuple(nodes), tuple(parents))

    def _maybe_wrong(self, token: int, position: int) -> int:
        digest = hashlib.blake2b(f"{token}/{position}".encode(), digest_size=2).digest()
        wrong = int.from_bytes(digest, "big") % 100 < self._config.wrong_percent
        return (token + 7) % self._vocab_size if wrong else token


def replay_component(name: str, known: Continuations, **options: object) -> Component:
    """A `spec` component that replays `known`; `options` are defaults of ReplayConfig."""

    def build(config: ReplayConfig, context: BuildContext) -> ReplayDrafter:
        chosen = ReplayConfig(**{**vars(config), **options})
        return ReplayDrafter(chosen, known, context.model.vocab_size)

    return Component("spec", name, ReplayConfig, build, "replays known continuations, for tests")
