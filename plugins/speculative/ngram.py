"""Prompt lookup: what followed the newest tokens when they occurred before is proposed again.

Saxena, "Prompt Lookup Decoding" (2023, github.com/apoorvumang/prompt-lookup-decoding). Deviations:
`match=latest` copies from the nearest occurrence rather than the first, and a copy that runs into
the newest token goes on with its own first tokens (as in LZ77), so a text that repeats itself with
a short period is continued to full length.
"""

import numpy as np

from interlock.core.batch import NO_DRAFT, Draft, Ints
from interlock.core.component import BuildContext
from interlock.core.drafter import TokenDrafter
from interlock.core.request import RequestId
from interlock.plugins.speculative import NgramConfig


class NgramDrafter(TokenDrafter):
    """Copies after the longest n-gram, ngram_max down to ngram_min tokens, that occurred before.

    Keeps no state. O(len(tokens)): one comparison with the whole text, then only with the places
    where the newest token occurs; about 20 us for 2,000 tokens.
    """

    def __init__(self, config: NgramConfig) -> None:
        self.num_drafts = config.num_drafts
        self._ngram_max = config.ngram_max
        self._ngram_min = config.ngram_min
        self._place = -1 if config.match == "latest" else 0

    def propose(self, request: RequestId, tokens: Ints, limit: int) -> Draft:
        """A chain of exactly min(limit, num_drafts) candidates, or none without an occurrence."""
        wanted = min(limit, self.num_drafts)
        ends = self._occurrences(tokens) if wanted > 0 else ()
        if len(ends) == 0:
            return NO_DRAFT
        start = ends[self._place] + 1
        copied = tokens[start : start + wanted].tolist()
        return Draft(tuple((copied * wanted)[:wanted]))

    def _occurrences(self, text: Ints) -> Ints:
        """Ends of earlier occurrences of the longest n-gram that ends the text, rising.

        Empty if none has ngram_min tokens.
        """
        newest = len(text) - 1
        longest = np.flatnonzero(text[:newest] == text[newest:])
        for back in range(1, min(self._ngram_max, len(text))):
            longer = longest[longest >= back]
            longer = longer[text[longer - back] == text[newest - back]]
            if len(longer) == 0:
                return longest if back >= self._ngram_min else longer
            longest = longer
        return longest


def build(config: NgramConfig, _context: BuildContext) -> NgramDrafter:
    """The drafter with these options."""
    return NgramDrafter(config)
