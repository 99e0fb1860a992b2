"""Which kernels an attention backend runs: torch's own, compiled C++, or Triton's.

Nothing here imports torch or triton before a composition asks for kernels by name.
"""

from collections.abc import Callable, Iterable
from importlib.util import find_spec
from typing import Any

from interlock.core.capabilities import Composition, Requirement
from interlock.core.closest import unknown_name
from interlock.core.component import BuildContext
from interlock.core.errors import ConfigError
from interlock.core.model import ModelDescription
from interlock.core.options import option

KERNELS = ("auto", "torch", "native", "triton")
HELP = (
    "torch: torch's own; native: C++ compiled on this machine, on a CPU; "
    "triton: Triton's, on CUDA (on a CPU only in Triton's interpreter); auto: triton on CUDA where "
    "it is installed and serves the model, native on a CPU with a C++ compiler, else torch"
)

Limit = Callable[[ModelDescription], str | None]
"""Why a mechanism's kernels cannot compute a model; None: they can."""


def kernel_option() -> Any:
    """The field `kernel` of an attention component's config."""
    return option(KERNELS[0], HELP)


def require_known(kernel: str) -> None:
    """Raise ConfigError unless it is one of KERNELS."""
    if kernel not in KERNELS:
        raise ConfigError(unknown_name("kernel", kernel, KERNELS))


def reason_against_triton(
    device: str, numerics: str, model: ModelDescription | None, limit: Limit, dtype: str = "auto"
) -> str | None:
    """Why Triton kernels cannot run in this composition; None: they can.

    `device` as configured; `dtype` the name of torch's.
    """
    if numerics == "batch_invariant":
        return "numerics=batch_invariant needs sums in a fixed order, which they do not keep"
    if find_spec("triton") is None:
        return "the package triton cannot be imported here; install triton"
    if not device.startswith("cuda"):
        from interlock.plugins.attention.kernels import INTERPRETED

        if not INTERPRETED:
            return (
                f"device={device} runs them in Triton's interpreter only, which is for tests; set "
                "TRITON_INTERPRET=1 in the environment"
            )
    elif dtype == "float64":
        return "dtype=float64 is computed in Triton's interpreter only; on a GPU it does not fit"
    return None if model is None else limit(model)


def kernel_requirement(
    limit: Limit,
) -> Callable[[Any, ModelDescription | None], Iterable[Requirement]]:
    """`requires` of a component with a kernel option: what was asked for by name can run."""

    def requires(config: Any, model: ModelDescription | None) -> Iterable[Requirement]:
        def requirement(composition: Composition) -> str | None:
            settings = {"numerics": "fast", **composition.settings}
            reason = None
            if config.kernel == "triton":
                reason = reason_against_triton(
                    composition.device, settings["numerics"], model, limit, composition.dtype
                )
            if config.kernel == "native":
                from interlock.plugins.attention.native.choice import reason_against_native

                reason = reason_against_native(composition.device, settings)
            return (
                reason
                and f"attention.kernel={config.kernel}: {reason}, or set attention.kernel=torch"
            )

        return (requirement,)

    return requires


def runs_triton(
    kernel: str, device: str, numerics: str, model: ModelDescription, limit: Limit,
    dtype: str = "auto",
) -> bool:  # fmt: skip
    """What the option comes to. Triton asked for by name was checked before anything was built."""
    if kernel != "auto":
        return kernel == "triton"
    if not device.startswith("cuda"):
        return False
    return reason_against_triton(device, numerics, model, limit, dtype) is None


def builds_triton(kernel: str, context: BuildContext, limit: Limit) -> bool:
    """The same for what is being built."""
    device, dtype = str(context.device), str(context.dtype).removeprefix("torch.")
    return runs_triton(kernel, device, context.numerics, context.model, limit, dtype)
