"""Whether Triton kernels give what formulas give: attention, its writes, expert products."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from benchmarks.gpu.report import Budget, Line
from benchmarks.gpu.scene import Row, Scene
from interlock.core.attention import AttentionBackend
from interlock.core.component import BuildContext
from interlock.core.model import AttentionSpec, ModelDescription
from interlock.plugins.attention import GqaConfig, MlaConfig

SIZES = (1, 15, 16, 17, 255, 256, 257)
FEW_SIZES = (1, 16, 17)
TREE = (-1, -1, 0, 0, 1, 4)
"""Two branches; the second one's second level has a child."""
TOLERANCES = {torch.float32: 2e-4, torch.float16: 1e-2, torch.bfloat16: 6e-2}
"""Of outputs, beside the largest: operands and weights are rounded to the dtype, sums are not."""
WRITTEN_FP8 = 2**-4
"""e4m3 has three bits of mantissa; a row is scaled by its largest number."""

GQA = {
    "plain": AttentionSpec("heads", 8, 2, 128, 128, 128**-0.5),
    "window": AttentionSpec("heads", 4, 4, 64, 64, 0.125, window=100),
    "cap and sinks": AttentionSpec("heads", 6, 2, 64, 64, 0.125, softcap=20.0, sinks=True),
}
MLA = {
    "plain": AttentionSpec("latent", 16, 1, 192, 128, 192**-0.5, None, 512, 128, 64),
    "window": AttentionSpec("latent", 8, 1, 96, 64, 96**-0.5, 100, 128, 64, 32),
}
SMALL_GQA = AttentionSpec("heads", 2, 1, 16, 16, 0.25)
SMALL_MLA = AttentionSpec("latent", 2, 1, 48, 32, 48**-0.5, None, 64, 32, 16)


@dataclass(frozen=True)
class Place:
    """Where the suite runs: a GPU, or Triton's interpreter on the CPU at sizes it can bear."""

    device: torch.device
    interpreted: bool

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """The interpreter's bf16 is wrong."""
        wide = (torch.float32, torch.float16)
        return wide[:1] if self.interpreted else (torch.bfloat16, *reversed(wide))


def backend_of(
    place: Place, spec: AttentionSpec, dtype: torch.dtype, cache: str, kernel: str, page: int = 16
) -> AttentionBackend:
    """`attention=gqa` or `mla` with this kernel, as an engine builds it."""
    model = ModelDescription(
        "suite", "suite", 100, 64, 1, 1 << 17, (spec,), str(dtype).removeprefix("torch."), {}
    )
    context = BuildContext(
        model, device=place.device, dtype=dtype, page_size=page, cache_dtype=cache
    )
    if spec.form == "heads":
        from interlock.plugins.attention import gqa

        return gqa.build(GqaConfig(kernel=kernel), context)
    from interlock.plugins.attention import mla

    return mla.build(MlaConfig(kernel=kernel), context)


def steps(interpreted: bool) -> Iterator[tuple[str, list[Row]]]:
    """Prefill and chunks of every size after contexts of every size, decode, a tree, all mixed."""
    sizes = FEW_SIZES if interpreted else SIZES
    yield "prefill", [Row(0, size) for size in sizes]
    yield "decode", [Row(size, 1) for size in sizes]
    yield "chunk", [Row(size, other) for size, other in zip(sizes, reversed(sizes), strict=True)]
    yield "verify", [Row(size, len(TREE) + 1, TREE) for size in sizes]
    yield "mixed", [Row(17, 33), Row(16, 1), Row(0, 5), Row(9, len(TREE) + 1, TREE)]
    if not interpreted:
        yield "long context", [Row(4099, 1), Row(2049, 3), Row(1, 1)]


def attention(place: Place, form: str) -> "_AttentionChecks":
    """The section for gqa or mla."""
    return _AttentionChecks(place, form)


class _AttentionChecks:
    def __init__(self, place: Place, form: str) -> None:
        self.place, self.form = place, form
        specs = GQA if form == "gqa" else MLA
        if place.interpreted:
            small = SMALL_MLA if form == "mla" else SMALL_GQA
            specs = {"plain": small, "window": replace(small, window=10)}
        self.specs = specs

    def __call__(self, budget: Budget) -> Iterator[Line]:
        combos = list(itertools.product(self.specs.items(), self.place.dtypes, ("auto", "fp8")))
        if self.place.interpreted:
            combos = [combos[0], combos[-1]]
        for (name, spec), dtype, cache in combos:
            kind = f"{name}, {str(dtype).removeprefix('torch.')}, cache {cache}"
            if budget.over:
                yield Line(f"{self.form} = formula", kind, "the section's time is over", ok=None)
                continue
            yield self._line(kind, spec, dtype, cache)

    def _line(self, kind: str, spec: AttentionSpec, dtype: torch.dtype, cache: str) -> Line:
        section = f"{self.form} = formula"
        pages: Sequence[int] = (16,) if self.place.interpreted else (16, 64)
        backend = backend_of(self.place, spec, dtype, cache, "triton")
        if type(backend) is type(backend_of(self.place, spec, dtype, cache, "torch")):
            return Line(section, kind, f"kernel=triton built {type(backend).__name__}", ok=False)
        worst, wrote, count, bad = 0.0, 0.0, 0, []
        for page, (step, rows) in itertools.product(pages, steps(self.place.interpreted)):
            scene = Scene(backend, spec, rows, page, dtype, self.place.device)
            attended, written = scene.errors()
            worst, wrote, count = max(worst, attended), max(wrote, written), count + len(rows)
            limit = WRITTEN_FP8 if cache == "fp8" else 0.0
            if attended > TOLERANCES[dtype] or written > limit:
                bad.append(f"{step} (page {page}): {attended:.1e}, written {written:.1e}")
        said = f"{count} rows, error {worst:.1e} of {TOLERANCES[dtype]:.0e}, written {wrote:.1e}"
        result = "; ".join(bad) if bad else said
        return Line(section, kind, result, not bad, {"error": worst, "written": wrote})


def grouped(place: Place) -> "_GroupedChecks":
    """The section of expert products."""
    return _GroupedChecks(place)


class _GroupedChecks:
    def __init__(self, place: Place) -> None:
        self.place = place

    def __call__(self, budget: Budget) -> Iterator[Line]:
        sizes = FEW_SIZES if self.place.interpreted else SIZES
        width, height = (32, 24) if self.place.interpreted else (512, 384)
        for dtype, masked in itertools.product(self.place.dtypes, (True, False)):
            name = f"{'masked' if masked else 'contiguous'}, {str(dtype).removeprefix('torch.')}"
            if budget.over:
                yield Line("grouped = formula", name, "the section's time is over", ok=None)
                continue
            worst = max(self._error(tokens, width, height, dtype, masked) for tokens in sizes)
            limit = TOLERANCES[dtype]
            result = f"{len(sizes)} sizes, error {worst:.1e} of {limit:.0e}"
            yield Line("grouped = formula", name, result, worst <= limit, {"error": worst})

    def _error(
        self, tokens: int, inputs: int, outputs: int, dtype: torch.dtype, masked: bool
    ) -> float:
        """Eight experts, two of which a token chooses; the last expert is chosen by nobody."""
        from interlock.plugins.models.kernels.grouped import (
            contiguous_layout,
            grouped_product,
            masked_layout,
        )

        experts, draw = 8, torch.Generator(self.place.device).manual_seed(tokens)
        kind = {"generator": draw, "device": self.place.device}
        x_TE = torch.randn(tokens, inputs, **kind).to(dtype)
        weight_XFE = (torch.randn(experts, outputs, inputs, **kind) * inputs**-0.5).to(dtype)
        chosen_TJ = torch.rand(tokens, experts - 1, **kind).argsort(1)[:, :2].contiguous()
        layout = (masked_layout if masked else contiguous_layout)(chosen_TJ, experts, dtype)
        found_NF = grouped_product(x_TE, weight_XFE, None, layout, gathered=True)
        want_TJF = torch.einsum("te,tjfe->tjf", x_TE.double(), weight_XFE.double()[chosen_TJ])
        error = (found_NF[layout.slots_TJ].double() - want_TJF).abs().max() / want_TJF.abs().max()
        return float(error)
