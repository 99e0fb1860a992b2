"""The token ledger of a run: what the executor ran, by kind."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class StepLedger:
    """Accounts for every token that the executor ran.

    Per step the engine calls `ran` for each row, `verified` for each row with a draft whose verdict
    counts, and `end_step` once. Counts are tokens unless named otherwise.
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
    accepted_by_depth: list[int] = field(default_factory=list)
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

    def verified(self, drafted: int, accepted: int) -> None:
        """One draft round: `accepted` of `drafted` candidates were kept."""
        self.draft_rounds += 1
        self.accepted += accepted
        self.rejected += drafted - accepted
        self.accepted_by_depth += [0] * (accepted - len(self.accepted_by_depth))
        for depth in range(accepted):
            self.accepted_by_depth[depth] += 1

    def end_step(
        self,
        tokens_run: int,
        rows: int,
        running: int = 0,
        waiting: int = 0,
        held_pages: int = 0,
        total_pages: int = 0,
        padding: int = 0,
        start_s: float = 0.0,
        end_s: float = 0.0,
    ) -> None:
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

    def tokens(self) -> dict[str, int]:
        """The account: the first five add up to `tokens_run`, the last three to `drafted`."""
        kinds = ("prompt_computed", "recomputed", "decode", "drafted", "padding", "tokens_run")
        return {n: getattr(self, n) for n in (*kinds, "accepted", "rejected", "discarded")}
