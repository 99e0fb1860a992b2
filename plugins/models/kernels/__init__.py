"""Triton kernels of the decoder's layers; imported only when a decoder is built with them."""

import triton

INTERPRETED: bool = bool(triton.knobs.runtime.interpret)
"""True if TRITON_INTERPRET was set when the kernels were defined: they run as numpy on a CPU."""
