"""Built-in searches over the samples of a request."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from interlock.core.request import RequestId, SamplingParams
    from interlock.core.search import SampleSearch, SearchOf


def searches() -> "list[SearchOf]":
    """The searches that requests may ask for."""
    return [beams_of]


def beams_of(
    id: "RequestId", params: "SamplingParams", stop_ids: frozenset[int], most_tokens: int
) -> "SampleSearch | None":
    """See SearchOf: a beam search where a request has beams."""
    if params.beam_width == 1:
        return None
    from interlock.plugins.search.beam_search import BeamSearch
    from interlock.plugins.search.beams import BeamGroup

    return BeamGroup(id, params, search=BeamSearch(params, stop_ids, most_tokens))
