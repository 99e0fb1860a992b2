"""Where the compiled attention of short rows runs."""

from interlock.core.component import BuildContext
from interlock.plugins.attention.native.library import NativeError, library
from interlock.plugins.attention.native.rows import DTYPES


def reason_against_native(context: BuildContext) -> str | None:
    """Why the compiled kernel cannot run for this composition; None: it can."""
    if context.device is None or context.device.type != "cpu":
        return f"it runs on a CPU, not on {context.device}"
    if context.dtype not in DTYPES:
        return f"it computes {', '.join(DTYPES.values())}, not {context.dtype}"
    if context.cache_dtype != "auto":
        return f"it reads planes in the model's dtype, not cache.dtype={context.cache_dtype}"
    if context.batch_invariant:
        return "numerics=batch_invariant has an attention of its own"
    try:
        library()
    except NativeError as error:
        return str(error)
    return None
