"""The token ledger of a run: what the executor ran, by kind."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class StepLedger:
    """Accounts for every token that the executor ran.

    Per step the engine calls `add_row` for each planned row, `add_pass` for each decode or verify
    row that came back, and `end_step` once. Counts are tokens unless named otherwise.
    """

    prompt_computed: int = 0
    recomputed: int = 0
    decode: int = 0
    drafted: int = 0
    padding: int = 0
    ran: int = 0
    context_read: int = 0
    accepted: int = 0
    rejected: int = 0
    discarded: int = 0
    draft_rounds: int = 0
    accepted_by_depth: list[int] = field(default_factory=list)
    passes: int = 0
    pass_emitted: int = 0
    steps: int = 0
    rows: int = 0
    peak_running: int = 0
    peak_waiting: int = 0
    busy_s: float = 0.0
    last_end_s: float = 0.0
    kv_peak: float = 0.0
    kv_time_s: float = 0.0
    kv_last: float = 0.0

    def add_row(
        self,
        prompt: int = 0,
        recomputed: int = 0,
        decode: int = 0,
        drafted: int = 0,
        context: int = 0,
    ) -> None:
        """One row of a step that runs.

        `prompt` tokens are computed for the first time, `recomputed` ones were computed before a
        preemption, `decode` is 1 for the anchor of a decode or verify row and `drafted` its
        candidates. `context` is the number of committed tokens before the row (cache reads).
        """
        self.rows += 1
        self.prompt_computed += prompt
        self.recomputed += recomputed
        self.decode += decode
        self.drafted += drafted
        self.context_read += context

    def add_pass(self, drafted: int, accepted: int, emitted: int) -> None:
        """What a decode or verify row gave: accepted candidates, and all tokens emitted."""
        self.passes += 1
        self.pass_emitted += emitted
        if drafted:
            self.draft_rounds += 1
            self.accepted += accepted
            self.rejected += drafted - accepted
            missing = accepted - len(self.accepted_by_depth)
            self.accepted_by_depth += [0] * max(0, missing)
            for depth in range(accepted):
                self.accepted_by_depth[depth] += 1

    def discard(self, drafted: int) -> None:
        """Candidates of a row whose result was thrown away (abort, failure) get no verdict."""
        self.discarded += drafted

    def end_step(
        self,
        ran: int,
        now_s: float,
        end_s: float,
        running: int = 0,
        waiting: int = 0,
        held_pages: int = 0,
        total_pages: int = 0,
        padding: int = 0,
    ) -> None:
        """Close a step that ran `ran` tokens (padding included) from `now_s` to `end_s`."""
        self.steps += 1
        self.ran += ran
        self.padding += padding
        self.peak_running = max(self.peak_running, running)
        self.peak_waiting = max(self.peak_waiting, waiting)
        self.busy_s += end_s - now_s
        self.last_end_s = max(self.last_end_s, end_s)
        if total_pages:
            self.kv_last = held_pages / total_pages
            self.kv_peak = max(self.kv_peak, self.kv_last)
            self.kv_time_s += self.kv_last * (end_s - now_s)

    def check(self) -> None:
        """Assert that the tokens by kind are what the executor ran, and that drafts balance."""
        kinds = self.prompt_computed + self.recomputed + self.decode + self.drafted + self.padding
        assert kinds == self.ran, f"tokens by kind {kinds} != tokens run {self.ran}"
        verdicts = self.accepted + self.rejected + self.discarded
        assert verdicts == self.drafted, f"verdicts on {verdicts} of {self.drafted} drafted tokens"

    def tokens(self) -> dict[str, int]:
        """The account, by kind; the first five add up to `ran`."""
        names = ("prompt_computed", "recomputed", "decode", "drafted", "padding", "ran")
        return {n: getattr(self, n) for n in (*names, "accepted", "rejected", "discarded")}

    def bytes_moved(self, weight_bytes: int, cache_bytes_per_token: int) -> int:
        """Bytes that a dense model had to read: all weights a step, and the committed context."""
        return self.steps * weight_bytes + self.context_read * cache_bytes_per_token
