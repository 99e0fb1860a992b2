"""Where the compiled attention runs."""

from collections.abc import Mapping
from typing import Any

from interlock.core.component import BuildContext
from interlock.plugins.attention.native.rows import DTYPES, SOURCE
from interlock.plugins.native.library import NativeError, native_library


def reason_against_native(device: str, settings: Mapping[str, Any]) -> str | None:
    """Why the compiled kernel cannot run in a composition; None: it can.

    `settings` by name: numerics, dtype and cache.dtype; those that are missing have no objection.
    """
    dtype, cache_dtype = settings.get("dtype", "auto"), settings.get("cache.dtype", "auto")
    if device != "cpu":
        return f"device={device} is no CPU; set device=cpu"
    if dtype not in ("auto", *DTYPES.values()):
        return f"dtype={dtype} is not one of {', '.join(DTYPES.values())}; set one of them"
    if cache_dtype != "auto":
        return f"cache.dtype={cache_dtype} needs planes that it does not read; set cache.dtype=auto"
    if settings.get("numerics") == "batch_invariant":
        return "numerics=batch_invariant needs sums in a fixed order, which it does not keep"
    try:
        native_library(SOURCE)
    except NativeError as error:
        return f"{error}; install a C++ compiler"
    return None


def runs_native(kernel: str, context: BuildContext) -> bool:
    """What the option `kernel` comes to. What was asked for by name was checked before."""
    if kernel not in ("auto", "native"):
        return False
    settings = {
        "numerics": context.numerics,
        "dtype": str(context.dtype).removeprefix("torch."),
        "cache.dtype": context.cache_dtype,
    }
    device = "none" if context.device is None else context.device.type
    reason = reason_against_native(device, settings)
    assert reason is None or kernel == "auto", f"attention.kernel=native: {reason}"
    return reason is None
