"""No grammars."""

from collections.abc import Collection

from interlock.core.component import BuildContext
from interlock.core.sampling_params import GrammarKind
from interlock.core.structured import Matcher, StructuredOutput
from interlock.plugins.structured import NoneConfig


class NoGrammars(StructuredOutput):
    """Follows none."""

    def matcher(self, kind: GrammarKind, text: str, end_ids: Collection[int]) -> Matcher:
        """Always ValueError."""
        raise ValueError("structured=none follows no grammar; choose structured=xgrammar")


def build(_config: NoneConfig, _context: BuildContext) -> NoGrammars:
    """See Component."""
    return NoGrammars()
