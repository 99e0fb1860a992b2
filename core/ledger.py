"""The token ledger of a run: what the executor ran, by kind."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import zip_longest

from interlock.core.batch import Draft


@dataclass(slots=True)
class StepLedger:
    """Accounts for every token that the executor ran.

    Per step the engine calls `offered` for each draft that could be verified, `ran` for each row,
    `verified` for each row with a draft whose verdict counts, and `end_step` once. Counts are
    tokens unless named otherwise. Lists go by depth, 1 for what follows the anchor: candidates that
    were offered and verified, those accepted and given out, and the tokens that rounds gave out
    (the target's own included). What comes after a stop is in neither of the last two.
    """

    prompt_computed: int = 0
    recomputed: int = 0
    decode: int = 0
    drafted: int = 0
    padding: int = 0
    tokens_run: int = 0
    context_read: int = 0
    accepted: int = 0
    rejected: int = 0
    draft_rounds: int = 0
    offered_by_depth: list[int] = field(default_factory=list)
    verified_by_depth: list[int] = field(default_factory=list)
    accepted_by_depth: list[int] = field(default_factory=list)
    emitted_by_depth: list[int] = field(default_factory=list)
    cut: int = 0
    """Candidates that were offered, and not verified for want of room or by the length policy."""
    shortened: int = 0
    """Times that the length policy asked for, or let pass, less than there could be."""
    steps: int = 0
    rows: int = 0
    peak_running: int = 0
    peak_waiting: int = 0
    busy_s: float = 0.0
    last_end_s: float = 0.0
    kv_usage_sum: float = 0.0
    kv_usage_peak: float = 0.0

    def ran(
        self,
        prompt: int = 0,
        recomputed: int = 0,
        decode: int = 0,
        drafted: int = 0,
        context: int = 0,
    ) -> None:
        """One row of a step.

        `prompt` tokens are computed for the first time, `recomputed` ones were computed before a
        preemption, `decode` is 1 for the anchor of a decode or verify row and `drafted` its
        candidates. `context` is the number of committed tokens before the row (cache reads).
        """
        self.prompt_computed += prompt
        self.recomputed += recomputed
        self.decode += decode
        self.drafted += drafted
        self.context_read += context

    def offered(self, draft: Draft, kept: int) -> None:
        """One draft of the step being planned, of which `kept` candidates will be verified."""
        self.cut += len(draft.tokens) - kept
        _tally(self.offered_by_depth, draft.depths())

    def verified(self, draft: Draft, accepted: int, emitted: int) -> None:
        """One draft round: it gave `emitted` tokens out, `accepted` of them candidates."""
        self.draft_rounds += 1
        self.accepted += accepted
        self.rejected += len(draft.tokens) - accepted
        _tally(self.verified_by_depth, draft.depths())
        _tally(self.accepted_by_depth, range(1, accepted + 1))
        _tally(self.emitted_by_depth, range(1, emitted + 1))

    def end_step(
        self, tokens_run: int, rows: int, running: int = 0, waiting: int = 0, held_pages: int = 0,
        total_pages: int = 0, padding: int = 0, start_s: float = 0.0, end_s: float = 0.0,
    ) -> None:  # fmt: skip
        """Close a step that ran `tokens_run` tokens, `padding` included, between two times."""
        self.steps += 1
        self.rows += rows
        self.tokens_run += tokens_run
        self.padding += padding
        self.peak_running = max(self.peak_running, running)
        self.peak_waiting = max(self.peak_waiting, waiting)
        usage = held_pages / total_pages if total_pages else 0.0
        self.kv_usage_sum += usage
        self.kv_usage_peak = max(self.kv_usage_peak, usage)
        # Steps in flight together share their time.
        self.busy_s += max(0.0, end_s - max(start_s, self.last_end_s))
        self.last_end_s = max(self.last_end_s, end_s)

    @property
    def discarded(self) -> int:
        """Candidates without a verdict: their request was aborted or failed in flight."""
        return self.drafted - self.accepted - self.rejected

    def check(self) -> None:
        """Assert that tokens by kind are what the executor ran, and that verdicts were drafted."""
        kinds = self.prompt_computed + self.recomputed + self.decode + self.drafted + self.padding
        assert kinds == self.tokens_run, f"tokens by kind {kinds} != tokens run {self.tokens_run}"
        assert self.accepted >= 0, f"{self.accepted} accepted tokens"
        assert self.rejected >= 0, f"{self.rejected} rejected tokens"
        assert self.discarded >= 0, f"{-self.discarded} more verdicts than drafted tokens"
        assert sum(self.verified_by_depth) == self.accepted + self.rejected
        assert sum(self.accepted_by_depth) == self.accepted
        emitted = sum(self.emitted_by_depth)
        assert self.accepted <= emitted <= self.accepted + self.draft_rounds, f"{emitted} emitted"
        offered = sum(self.offered_by_depth)
        assert self.drafted + self.cut <= offered, f"{self.drafted} drafted of {offered} offered"
        verdicts = self.accepted_by_depth, self.verified_by_depth, self.offered_by_depth
        for kept, seen, most in zip_longest(*verdicts, fillvalue=0):
            assert kept <= seen <= most, f"{kept} accepted, {seen} verified, {most} offered"

    def tokens(self) -> dict[str, int]:
        """The account: the first five add up to `tokens_run`, the last three to `drafted`."""
        kinds = ("prompt_computed", "recomputed", "decode", "drafted", "padding", "tokens_run")
        return {n: getattr(self, n) for n in (*kinds, "accepted", "rejected", "discarded")}


def _tally(counts: list[int], depths: Iterable[int]) -> None:
    for depth in depths:
        counts += [0] * (depth - len(counts))
        counts[depth - 1] += 1
