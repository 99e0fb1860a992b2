"""The samples of one request: what they share, who starts when, and which are given out.

The outputs of a search are such samples as well (core/search.py).

Sample 0 computes the prompt; the others wait for it, then fork its pages: references to the full
ones, a copy of the one that is partly filled, and their own computation of the prompt's last token.
A sample for which no sibling holds those pages starts like any other request.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import ClassVar

from interlock.core.kv_cache import NO_PAGES, Holding, KVCache, Match
from interlock.core.live import Live
from interlock.core.request import Request, RequestId, RequestOutput, RequestRecord, Status
from interlock.core.sampling_params import SamplingParams


@dataclass(slots=True, eq=False)
class SampleGroup:
    """All samples of one submitted request, in order."""

    searches: ClassVar[bool] = False
    """Whether their tokens are chosen together, from laws, rather than drawn for each."""
    id: RequestId
    sampling: SamplingParams
    """As submitted."""
    lives: list[Live] = field(default_factory=list)
    held: list[Live] = field(default_factory=list)
    """Those that wait for the first one's prompt, in no queue yet."""
    selects: bool = field(init=False)

    def __post_init__(self) -> None:
        self.selects = self.sampling.selects

    @property
    def ended(self) -> bool:
        """True when every sample has."""
        return all(live.ended for live in self.lives)

    def unfinished(self) -> list[RequestRecord]:
        """Records that were not given out: with best_of all of them, until the last has ended."""
        return [v.record for v in self.lives if self.selects or not v.ended]

    def released(self) -> list[Live]:
        """Those held, once: the first sample's prompt is computed, or will never be."""
        first = self.lives[0]
        if not self.held or not (first.ended or first.computed >= first.sequence.num_prompt):
            return []
        held, self.held = self.held, []
        return held

    def sources(self, live: Live) -> Iterator[tuple[Holding, int]]:
        """Whose pages a waiting sample may start from, and up to which entry, best first."""
        prompt = live.sequence.num_prompt
        if live.sequence.length == prompt:
            for other in self.lives:
                if other.holding is not None and other.computed >= prompt:
                    yield other.holding, live.sequence.shared_entries

    def end(self, live: Live, text: str, now_s: float) -> list[RequestOutput]:
        """The final outputs that a sample's end brings about: its own, or with best_of everyone's
        when it was the last."""
        if not self.selects:
            return [self._output(live.record, (), text, final=True)]
        live.record.dropped = True
        return self._selected(now_s) if self.ended else []

    def _selected(self, now_s: float) -> list[RequestOutput]:
        """The n best samples whole; after an abort none."""
        records = [live.record for live in self.lives]
        done = [record for record in records if record.status is Status.FINISHED]
        aborted = any(record.status is Status.ABORTED for record in records)
        best = [] if aborted else self.best(done)
        outputs = []
        for record in records:
            record.finished_s, record.dropped = now_s, record not in best
            record.chunk_times_s, record.chunk_sizes = [], []
            if self.sampling.logprobs is None:
                record.logprobs = []
            if not record.dropped:
                tokens = tuple(record.output_token_ids)
                outputs.append(self._output(record, tokens, record.text or ""))
                record.chunk_times_s, record.chunk_sizes = [now_s], [len(tokens)]
            outputs.append(self._output(record, (), "", final=True))
        return outputs

    def best(self, records: list[RequestRecord]) -> list[RequestRecord]:
        """The n likeliest."""
        return _likeliest(records)[: self.sampling.n]

    def _output(
        self, record: RequestRecord, tokens: tuple[int, ...], text: str, final: bool = False
    ) -> RequestOutput:
        echoed = () if record.chunk_sizes or record.dropped else record.prompt_token_ids
        finished = replace(record) if final else None
        return RequestOutput(self.id, record.index, tokens, finished, text, echoed, record.sample)


def _likeliest(records: Sequence[RequestRecord]) -> list[RequestRecord]:
    """By falling mean log-probability, then by index.

    Samples of the same tokens are equally likely, though in other batches their numbers may have
    other last bits: the first one's count for all of them.
    """
    mean: dict[tuple[int, ...], float] = {}
    for record in records:
        means = fmean(one.chosen for one in record.logprobs)
        mean.setdefault(tuple(record.output_token_ids), means)
    return sorted(records, key=lambda record: -mean[tuple(record.output_token_ids)])


def with_laws(request: Request, looked_at: int | None) -> Request:
    """The request with the log-probabilities that it is chosen by, and that an echo shows.

    `looked_at` is how many a beam search needs, None where there is no search.
    """
    asked = request.sampling
    of_output = 0 if asked.selects and asked.logprobs is None else asked.logprobs
    if looked_at is not None:
        of_output = max(looked_at, of_output or 0)
    of_prompt = asked.prompt_logprobs
    if asked.echo and of_prompt is None:
        of_prompt = asked.logprobs
    if (of_output, of_prompt) == (asked.logprobs, asked.prompt_logprobs):
        return request
    laws = replace(asked, logprobs=of_output, prompt_logprobs=of_prompt)
    return replace(request, sampling=laws)


def usable_prefix(live: Live, cache: KVCache) -> Match:
    """What a waiting request need not compute: a sibling's prompt, or pages of the prefix index.

    One whose prompt is scored computes every token of it once.
    """
    if live.scores_prompt:
        return Match(NO_PAGES, 0)
    for holding, entries in live.group.sources(live):
        forked = cache.fork(holding, entries)
        if forked is not None:
            if entries == live.sequence.length - 1:
                return forked
            return max(forked, cache.match(live.salt, live.sequence), key=lambda m: m.tokens)
    return cache.match(live.salt, live.sequence)


def kept_from(live: Live, cache: KVCache) -> int:
    """The entry from which a running request's windows are kept.

    Its newest committed one, or where siblings that have not started would fork: the first running
    sample keeps that for them.
    """
    lives = live.group.lives
    if len(lives) == 1 or live.group.searches or not cache.windows:
        return live.computed
    keeper = next(other for other in lives if other.holding is not None)
    if live is keeper and any(other.view.admission is None and not other.ended for other in lives):
        return min(live.computed, live.sequence.shared_entries)
    return live.computed
