"""The recipe's count of tokens per target pass against drafting and verifying for real."""

from dataclasses import replace

import pytest
import torch

from interlock.models.recipe.acceptance import chains_of
from interlock.models.recipe.decode import continue_prompts
from interlock.models.recipe.drafters import dflash, draft_model, dspark, mtp
from interlock.models.recipe.network import Decoder, Shape
from tests.models.recipe_windows import facts, windows_of

DRAFTS, PROMPT, ANSWER = 3, 5, 16
SIZES = {"hidden": 16, "intermediate": 24, "layers": 6, "heads": 2, "kv_heads": 1, "head_dim": 8}


def make_target():
    torch.manual_seed(3)
    target = Decoder(Shape(attention="gqa", vocab_size=11, **SIZES))
    for weight in target.parameters():
        if weight.ndim == 2:
            torch.nn.init.normal_(weight, std=0.4)
    return target.requires_grad_(False)


def trained(kind, target, window):
    """A head that has learnt the windows a little, so that some drafts are right."""
    options = {
        draft_model: {"hidden": 16, "intermediate": 24},
        dflash: {"block_size": DRAFTS + 1, "intermediate": 24},
        dspark: {"block_size": DRAFTS, "intermediate": 24},
        mtp: {"unrolled": DRAFTS},
    }[kind]
    table = target.embed_tokens.weight
    known = replace(facts(), embed_VE=table, head_VE=table, norm_E=target.norm.weight)
    head = kind.Head(known, **options)
    optimizer = torch.optim.Adam(head.parameters(), lr=0.02)
    torch.manual_seed(4)
    for _ in range(40):
        optimizer.zero_grad()
        head.loss(window)[0].backward()
        optimizer.step()
    return head.requires_grad_(False)


def draft(head, target, ids_T):
    """Greedy drafts after the last of the committed tokens, each fed what was really drafted.

    `guess` reads of a window what lies before each draft only, so the drafts so far are put into a
    longer window, whose later tokens stand for nothing.
    """
    drafts = []
    anchor = len(ids_T) - 1
    for k in range(DRAFTS):
        filler = torch.zeros(DRAFTS - k + 1, dtype=torch.long)
        ids = torch.cat([ids_T, torch.tensor(drafts, dtype=torch.long), filler])[None]
        drafts.append(int(head.guess(blind(windows_of(target, ids), anchor))[0, anchor, k]))
    return drafts


def blind(window, anchor):
    """The window without what the target has not computed yet: rows from the anchor on."""
    wiped = {}
    for name in ("features_BTE", "hidden_BTE", "taps_BTXE"):
        rows = getattr(window, name).clone()
        rows[:, anchor:] = 99.0
        wiped[name] = rows
    return replace(window, **wiped)


@pytest.mark.parametrize("kind", [mtp, dflash, dspark, draft_model], ids=lambda k: k.Head.kind)
def test_counted_cycles_are_those_of_drafting_and_verifying_for_real(kind):
    target = make_target()
    generator = torch.Generator().manual_seed(1)
    prompts = torch.randint(11, (6, PROMPT), generator=generator)
    answers = continue_prompts(target, prompts, ANSWER, torch.zeros(6))
    window = windows_of(target, answers)
    head = trained(kind, target, window)

    passes = accepted = 0
    for answer in answers:
        anchor, last = PROMPT, PROMPT + ANSWER - 1
        while anchor < last:
            drafts = draft(head, target, answer[: anchor + 1])[: last - anchor - 1]
            rows = torch.cat([answer[: anchor + 1], torch.tensor(drafts, dtype=torch.long)])
            best = target.logits(target.features(rows[None]))[0, anchor:].argmax(-1).tolist()
            run = 0
            while run < len(drafts) and drafts[run] == best[run]:
                run += 1
            passes, accepted, anchor = passes + 1, accepted + run, anchor + run + 1

    guess = head.guess(window)[..., :DRAFTS]
    matches = torch.zeros_like(guess, dtype=torch.bool)
    for k in range(DRAFTS):
        wanted = answers[:, 1 + k :]
        matches[:, : wanted.shape[1], k] = guess[:, : wanted.shape[1], k] == wanted
    counted = chains_of(list(matches), [(PROMPT, PROMPT + ANSWER - 1)] * 6, DRAFTS)
    assert counted.emitted_per_pass == pytest.approx((passes + accepted) / passes)
    assert counted.emitted_per_pass > 1.3  # drafts were accepted, and others were not
    assert counted.accepted_share[0] < 1
