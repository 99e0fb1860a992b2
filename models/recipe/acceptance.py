"""How many tokens a target pass emits when an EAGLE head drafts a chain for it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from interlock.models.recipe.decode import continue_prompts
from interlock.models.recipe.eagle import EagleHead
from interlock.models.recipe.network import Decoder

PROMPTS, PROMPT_TOKENS, OUTPUT_TOKENS, DRAFTS = 64, 64, 64, 5


@dataclass(frozen=True)
class Acceptance:
    """Greedy acceptance of a chain of drafts over many requests.

    `emitted_per_pass` counts the target's own token; prefill passes are left out.
    `accepted_share` holds, for each place in the chain, accepted / reached.
    """

    emitted_per_pass: float
    accepted_share: tuple[float, ...]
    prompts: int
    output_tokens: int
    drafts: int

    def report(self) -> dict[str, object]:
        """The fields as plain values, rounded for a file."""
        values = asdict(self)
        values["emitted_per_pass"] = round(self.emitted_per_pass, 3)
        values["accepted_share"] = [round(share, 3) for share in self.accepted_share]
        return values


@torch.no_grad()
def measure_acceptance(
    target: Decoder,
    head: EagleHead,
    held_out_ids: Tensor,
    prompts: int = PROMPTS,
    prompt_tokens: int = PROMPT_TOKENS,
    output_tokens: int = OUTPUT_TOKENS,
    drafts: int = DRAFTS,
    temperature: float = 0.0,
) -> Acceptance:
    """Draft and verify the target's own continuations of evenly spaced held-out prompts, in fp32.

    A draft counts when it is the target's next token. Because everything before the first wrong
    draft equals the target's text, the chains of all starting points come from one unrolled pass.

    Raises:
        ValueError: the held-out text is shorter than one prompt.
    """
    if len(held_out_ids) < prompt_tokens:
        raise ValueError(
            f"{len(held_out_ids)} held-out tokens are fewer than a prompt of {prompt_tokens}"
        )
    starts = torch.linspace(0, len(held_out_ids) - prompt_tokens, prompts).long().tolist()
    windows = torch.stack([held_out_ids[s : s + prompt_tokens] for s in starts])
    ids = continue_prompts(target, windows, output_tokens, torch.full((prompts,), temperature))
    estimates = head.unroll(target.embed_tokens(ids[:, 1:]), target.features(ids[:, :-1]), drafts)
    matches = [target.logits(e).argmax(-1)[:, :-1] == ids[:, 2:] for e in estimates]
    spans = [(prompt_tokens, ids.shape[1] - 1)] * prompts
    # Row i of step k guesses the token at i + 2, as draft k + 1 after the anchor i + 1 - k.
    rows = torch.zeros(prompts, ids.shape[1], drafts, dtype=torch.bool)
    for k, step in enumerate(matches):
        rows[:, 1 : step.shape[1] + 1 - k, k] = step[:, k:]
    return chains_of(list(rows), spans, drafts)


def chains_of(
    matches: Sequence[Tensor], spans: Sequence[tuple[int, int]], drafts: int
) -> Acceptance:
    """Acceptance of chains that follow one another through each answer.

    Row n, place k of a request's `matches` says whether draft k + 1 after the anchor n is right.
    `spans` hold the first and last token of each answer: the prefill pass emits the first.
    """
    passes, emitted = 0, 0
    accepted, reached = [0] * drafts, [0] * drafts
    for rows, (anchor, last) in zip((m.tolist() for m in matches), spans, strict=True):
        while anchor < last:
            run = 0
            while run < min(drafts, last - anchor - 1):
                reached[run] += 1
                if not rows[anchor][run]:
                    break
                accepted[run] += 1
                run += 1
            passes, emitted, anchor = passes + 1, emitted + run + 1, anchor + run + 1
    share = tuple(a / max(1, r) for a, r in zip(accepted, reached, strict=True))
    tokens = max((last - first + 1 for first, last in spans), default=0)
    return Acceptance(emitted / max(1, passes), share, len(spans), tokens, drafts)
