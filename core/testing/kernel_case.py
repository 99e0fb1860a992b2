"""Triton kernels compiled ahead of time, for GPUs that need not be there, and what they then use.

    case = KernelCase("mine", my_kernel, {"X": "*bf16", "n": "i32"}, {"BLOCK": 128}, aligned=("X",))
    compiled(case, 90).spilled_bytes == 0

Needs a process without TRITON_INTERPRET: in one with it, kernels are no sources but interpreters.
"""

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ARCHITECTURES = {80: "A100", 90: "H100", 100: "B200"}
"""Compute capability times ten -> a GPU that has it."""
SHARED_LIMIT_BYTES = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}
"""Shared memory that one program may have (CUDA C++ programming guide, compute capabilities)."""


@dataclass(frozen=True)
class KernelCase:
    """One kernel with the types and constants that a model of some shape launches it with."""

    name: str
    """The kernel and what it is compiled for, unique: "gqa prefill, head size 128, bf16"."""
    kernel: Any
    """What `triton.jit` returned."""
    signature: Mapping[str, str]
    """Types of the arguments that are not constants: "*bf16", "i32"."""
    constants: Mapping[str, Any]
    aligned: tuple[str, ...] = ()
    """Arguments that are multiples of 16, as launches find by themselves."""
    options: Mapping[str, int] = field(default_factory=dict)
    """num_warps, num_stages."""
    architectures: tuple[int, ...] = tuple(ARCHITECTURES)


@dataclass(frozen=True)
class Compiled:
    """What one program of a compiled kernel uses."""

    registers: int
    """A thread."""
    spilled_bytes: int
    """Stack of a thread: registers that did not fit, and arrays, of which kernels have none."""
    shared_bytes: int


def compiled(case: KernelCase, architecture: int) -> Compiled:
    """The case compiled to machine code and measured with the tools that triton brings."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = case.kernel.arg_names
    missing = set(names) ^ (set(case.signature) | set(case.constants))
    assert not missing, f"{case.name}: {sorted(missing)} are either not given or unknown"
    signature = {name: case.signature.get(name, "constexpr") for name in names}
    source = ASTSource(
        fn=case.kernel,
        signature=signature,
        constexprs=dict(case.constants),
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in case.aligned},
    )
    target = GPUTarget("cuda", architecture, 32)
    kernel = triton.compile(source, target=target, options=dict(case.options))
    used = _resources(kernel.asm["cubin"])
    return Compiled(used["REG"], used["STACK"], kernel.metadata.shared)


def _resources(cubin: bytes) -> dict[str, int]:
    """`cuobjdump --dump-resource-usage` of the one kernel in a cubin."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        told = subprocess.run(
            [tool, "--dump-resource-usage", file], capture_output=True, text=True, check=True
        ).stdout
    return {key: int(value) for key, value in re.findall(r"(REG|STACK):(\d+)", told)}
