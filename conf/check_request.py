"""What the fields of a request may be, whatever the engine."""

from interlock.conf.check_retention import retention_problems
from interlock.conf.check_sampling import sampling_problems
from interlock.core.errors import shown
from interlock.core.intake import due_s, is_int
from interlock.core.request import HashedPrompt, Request

HASHED = "blocks for all its tokens, with ids from 0 to 2**63 / block_tokens"


def request_problems(request: Request, vocab_size: int) -> list[str]:
    """Everything that is malformed, each field with its value and what is allowed."""
    hashed, text = request.hashed_prompt, request.prompt_text
    checks = [
        ("arrival_s", "a finite number of seconds", due_s(request) == request.arrival_s),
        ("priority", "an integer of 64 bits", is_int(request.priority)),
        ("adapter", "a name, or null", isinstance(request.adapter, str | None)),
        ("tenant", "a text", isinstance(request.tenant, str)),
        ("prompt_text", "a text, or null", isinstance(text, str | None)),
        ("conversation", "an integer, or null", is_int(request.conversation or 0)),
        ("turn", "an integer, or null", is_int(request.turn or 0)),
        ("hashed_prompt", HASHED, hashed is None or _whole(hashed)),
    ]
    found = [
        f"{name}={shown(getattr(request, name))} is not {what}"
        for name, what, ok in checks
        if not ok
    ]
    if request.retention is not None:
        found += retention_problems(request.retention)
    if hashed is not None and request.sampling.echo is True:
        found.append("echo=True: a prompt of block ids has no tokens to give back")
    return found + sampling_problems(request.sampling, vocab_size)


def _whole(prompt: HashedPrompt) -> bool:
    """Whether every token has a block, and every block's tokens fit in a word of a page's key."""
    size, ids = prompt.block_tokens, prompt.block_ids
    if not is_int(size) or size < 1 or len(ids) * size < prompt.num_tokens:
        return False
    return all(is_int(one) and 0 <= one < 2**63 // size for one in ids)
