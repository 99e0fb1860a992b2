"""Which models can be split over how many ranks, said before a weight is read."""

from collections.abc import Iterable, Iterator

from interlock.core.capabilities import Composition, Requirement, RunsModel, RunsOnRanks
from interlock.core.model import ModelDescription


def requirements(size: int, model: ModelDescription | None) -> Iterable[Requirement]:
    """Of `parallel.size=size`: an executor that runs on ranks, and sizes that divide."""
    return (lambda composition: _executor(composition, size), lambda _: _sizes(size, model))


def _executor(composition: Composition, size: int) -> str | None:
    executor = composition.chosen["executor"][0]
    if not composition.has(RunsModel()):
        return (
            f"parallel=tensor splits a model over parallel.size={size} ranks, and "
            f"executor={executor} runs no model"
        )
    if not composition.has(RunsOnRanks()):
        return f"parallel=tensor runs each step on every rank, which executor={executor} cannot do"
    return None


def _sizes(size: int, model: ModelDescription | None) -> str | None:
    """One sentence with every size that does not divide."""
    problems = list(dict.fromkeys(_problems(size, model))) if model and size > 1 else []
    if not problems:
        return None
    assert model is not None
    found = [n for n in range(2, size + 8) if not list(_problems(n, model))]
    possible = f"; parallel.size can be {', '.join(map(str, [1, *found]))}" if found else ""
    return f"parallel.size={size} does not split {model.name}: {'; '.join(problems)}{possible}"


def _problems(size: int, model: ModelDescription) -> Iterator[str]:
    if model.splits is None:
        yield f"the family {model.family!r} builds whole models only"
        return
    for spec in model.attention:
        if spec.num_heads % size:
            yield f"{spec.num_heads} query heads are no multiple of {size}"
        if spec.form == "heads" and spec.num_kv_heads % size and size % spec.num_kv_heads:
            heads = f"{spec.num_kv_heads} key/value heads"
            yield f"{heads} are no multiple of {size}, nor is {size} a multiple of them"
    for name, total in model.splits.items():
        if total % size:
            yield f"{name}={total} is no multiple of {size}"
