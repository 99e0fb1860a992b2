"""Whether two models mean the same by a token id. No torch.

A vocabulary size is often the tokenizer's rounded up, differently for each size of a model. So two
models agree when their tokenizers give every id that both have the same text; without tokenizers to
compare, when their sizes are equal.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from interlock.core.model import ModelDescription


def disagreement(draft: ModelDescription, target: ModelDescription) -> str | None:
    """Why candidates of `draft` mean nothing to `target`; None if they do."""
    theirs, ours = texts_by_id(draft), texts_by_id(target)
    if theirs is None or ours is None:
        if draft.vocab_size == target.vocab_size:
            return None
        lacking = [m.name for m, texts in ((draft, theirs), (target, ours)) if texts is None]
        return (
            f"its vocabulary of {draft.vocab_size} is not the target's {target.vocab_size} "
            f"({target.name}), and whether the ids mean the same cannot be told: "
            f"{' and '.join(lacking)} has no tokenizer.json; use a draft model that was trained "
            "with the target's tokenizer"
        )
    both = min(draft.vocab_size, target.vocab_size)
    other = [i for i in sorted(theirs.keys() & ours.keys()) if i < both and theirs[i] != ours[i]]
    if not other:
        return None
    first = other[0]
    return (
        f"{len(other)} token ids mean something else to the target ({target.name}): id {first} is "
        f"{theirs[first]!r} here and {ours[first]!r} there; use a draft model that was trained "
        "with the target's tokenizer"
    )


def texts_by_id(model: ModelDescription) -> dict[int, str] | None:
    """The tokens of the model's tokenizer.json; None without one."""
    tokenizer = model.files.json("tokenizer.json") if model.files else None
    if tokenizer is None:
        return None
    texts = dict(_entries((tokenizer.get("model") or {}).get("vocab")))
    for added in tokenizer.get("added_tokens") or ():
        texts[added["id"]] = added["content"]
    return texts


def _entries(vocab: Any) -> Iterable[tuple[int, str]]:
    """Ids and texts of a vocabulary {text: id} or [[text, score], ...]."""
    if isinstance(vocab, Mapping):
        return ((number, text) for text, number in vocab.items())
    return ((number, entry[0]) for number, entry in enumerate(vocab or ()))
