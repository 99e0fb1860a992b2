"""What a model requires of a composition, whatever the components are called."""

from interlock.core.capabilities import (
    BatchInvariant,
    Capability,
    Composition,
    Requirement,
    RunsModel,
    ServesAttention,
    ServesSinks,
    ServesSoftCaps,
    ServesWindows,
    SplitsSums,
    StoresFp8,
)
from interlock.core.model import AttentionSpec, ModelDescription


def model_requirements(model: ModelDescription) -> list[Requirement]:
    """Each attention form of the model is computed; windows, caps and sinks if it has any."""
    wanted: list[tuple[Capability, str]] = [
        (ServesAttention(form), f"{count} of {model.num_layers} layers have {form!r} attention")
        for form in sorted(model.forms)
        if (count := sum(spec.form == form for spec in model.attention))
    ]
    windows = {spec.window for spec in model.attention if spec.window}
    if windows:
        listed = ", ".join(map(str, sorted(windows)))
        wanted.append((ServesWindows(), f"it has sliding-window layers (window {listed})"))
    caps = {spec.softcap for spec in model.attention if spec.softcap is not None}
    if caps:
        count = sum(spec.softcap is not None for spec in model.attention)
        listed = ", ".join(f"{cap:g}" for cap in sorted(caps))
        what = f"{count} of {model.num_layers} layers cap attention scores (at {listed})"
        wanted.append((ServesSoftCaps(), what))
    if count := sum(spec.sinks for spec in model.attention):
        what = f"{count} of {model.num_layers} layers have attention sinks (one a query head)"
        wanted.append((ServesSinks(), what))
    return [_served(model, capability, what) for capability, what in wanted]


def layer_needs(spec: AttentionSpec) -> set[Capability]:
    """What a backend must provide to compute a layer."""
    kinds = (ServesWindows(), spec.window), (ServesSoftCaps(), spec.softcap)
    asked = (*kinds, (ServesSinks(), spec.sinks), (ServesAttention(spec.form), True))
    return {capability for capability, wanted in asked if wanted}


def numerics_requirement(composition: Composition) -> str | None:
    """Batch-invariant numerics need an attention backend that has them, in one process."""
    if composition.settings.get("numerics") != "batch_invariant":
        return None
    if not composition.has(RunsModel()):
        chosen = composition.chosen["executor"][0]
        return f"executor={chosen} computes no numbers that numerics=batch_invariant could fix"
    if not composition.has(BatchInvariant()):
        chosen = composition.chosen["attention"][0]
        return f"attention={chosen} has none: a row's bits depend on its batch"
    if composition.has(SplitsSums()):
        chosen = composition.chosen["parallel"][0]
        return (
            f"parallel={chosen} adds up what the ranks computed in an order that depends on how "
            "many tokens a step has, and with it the bits of a row"
        )
    return None


def cache_dtype_requirement(composition: Composition) -> str | None:
    """Rows in fp8 need an attention backend that quantises them; in a simulation there are none."""
    chosen, fp8 = composition.chosen, composition.settings.get("cache.dtype") == "fp8"
    if fp8 and not composition.has(RunsModel()):
        return f"executor={chosen['executor'][0]} stores no rows that could be in fp8"
    if fp8 and not composition.has(StoresFp8()):
        return f"attention={chosen['attention'][0]} stores no rows in fp8"
    return None


def weights_requirement(composition: Composition) -> str | None:
    """Only where a model runs are there weights that could be quantised."""
    if composition.settings.get("weights", "auto") == "auto" or composition.has(RunsModel()):
        return None
    return f"executor={composition.chosen['executor'][0]} reads no weights that could be quantised"


SETTINGS = {
    "numerics": numerics_requirement,
    "cache.dtype": cache_dtype_requirement,
    "weights": weights_requirement,
}
"""Setting -> what one of its values requires."""


def _served(model: ModelDescription, capability: Capability, what: str) -> Requirement:
    def requirement(composition: Composition) -> str | None:
        if composition.has(capability):
            return None
        chosen = composition.chosen["attention"][0]
        return f"model={model.name}: {what}, which attention={chosen} does not compute"

    return requirement
