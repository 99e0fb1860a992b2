"""What speculation costs and should gain: step times by kind, and the model of its speed-up.

    speed-up = tokens a pass / (v + c * draft passes + catch-up)

in units of the target's step without candidates for the same number of requests (Leviathan et al.,
arXiv 2211.17192): v is what verifying makes of that step, c one draft pass. A chain or tree of
depth n takes n draft passes, a drafter with one pass takes one. Steps that prompts share are left
out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from interlock.core.batch import StepPlan, StepResult


@dataclass
class Kind:
    """Steps of one kind, and where their time went."""

    steps: int = 0
    target_s: float = 0.0
    catch_up_s: float = 0.0
    draft_s: float = 0.0
    draft_passes: int = 0


@dataclass
class StepTimesAccount:
    """An observer of steps: times of decode and verify steps, by the number of requests."""

    one_pass: bool = False
    """All candidates of a step come out of one forward pass of the drafter."""
    plain: dict[int, Kind] = field(default_factory=dict)
    """Steps without candidates."""
    verify: dict[int, Kind] = field(default_factory=dict)
    shared: Kind = field(default_factory=Kind)
    """Steps with tokens of prompts."""

    def __call__(self, plan: StepPlan, result: StepResult) -> None:
        """See StepObserver."""
        batch, times = plan.batch, result.times
        if int(batch.logit_counts.sum()) != batch.num_tokens:
            kind = self.shared
        else:
            kinds = self.verify if batch.drafts else self.plain
            kind = kinds.setdefault(batch.num_rows, Kind())
        longest = max((max(d.depths()) for d in result.drafts.values() if d.tokens), default=0)
        kind.steps += 1
        kind.target_s += times.target_s
        kind.catch_up_s += times.catch_up_s
        kind.draft_s += times.draft_s
        kind.draft_passes += min(longest, 1) if self.one_pass else longest

    def plain_step_s(self) -> dict[int, float]:
        """Seconds of the target's step without candidates, by the number of requests."""
        return {n: k.target_s / k.steps for n, k in sorted(self.plain.items()) if k.target_s > 0}

    def summary(
        self, emitted_per_pass: float | None, plain_step_s: Mapping[int, float] | None = None
    ) -> dict[str, Any]:
        """Plain values; None for what is not known.

        `plain_step_s` is another run's, without drafts; else this run's own plain steps count.
        """
        kinds = [self.shared, *self.plain.values(), *self.verify.values()]
        base = self.plain_step_s() if plain_step_s is None else plain_step_s
        units, over = self._over(base)
        passes = over.draft_passes / over.steps if over.steps else 0.0
        found: dict[str, Any] = {
            "target_s": sum(kind.target_s for kind in kinds),
            "catch_up_s": sum(kind.catch_up_s for kind in kinds),
            "draft_s": sum(kind.draft_s for kind in kinds),
            "plain_step_ms": {str(n): seconds * 1e3 for n, seconds in base.items()},
            "draft_passes_per_step": passes if over.steps else None,
            "verify_inflation": None,
            "draft_step_share": None,
            "catch_up_share": None,
            "modelled_speedup": None,
        }
        if units > 0:
            inflation, catch_up = over.target_s / units, over.catch_up_s / units
            drafting = over.draft_s / units
            found |= {
                "verify_inflation": inflation,
                "draft_step_share": drafting / passes if passes else None,
                "catch_up_share": catch_up,
            }
            if emitted_per_pass is not None:
                found["modelled_speedup"] = emitted_per_pass / (inflation + drafting + catch_up)
        return found

    def _over(self, base: Mapping[int, float]) -> tuple[float, Kind]:
        """Of the steps whose plain time is known: that time, and what they took with drafts.

        Where a run verified at all, plain steps among them count as what they were.
        """
        total, units = Kind(), 0.0
        if not self.verify:
            return units, total
        for kinds in (self.plain, self.verify):
            for requests, kind in kinds.items():
                if requests in base:
                    units += kind.steps * base[requests]
                    for name, value in vars(kind).items():
                        setattr(total, name, getattr(total, name) + value)
        return units, total
