"""Times of attention and expert products on one GPU, as shares of its copy and matrix rates.

Peers are what is installed: torch's scaled_dot_product_attention on contiguous tensors always, and
FlashInfer and FlashAttention over pages. A peer that fails is a line with its error.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.gpu.checks import Place, backend_of
from benchmarks.gpu.report import Budget, Line, seconds_on
from benchmarks.gpu.scene import Row, Scene
from interlock.core.model import AttentionSpec
from interlock.plugins.attention.mla_cost import (
    absorbed_flops,
    cheaper_form,
    expanded_flops,
    visible_pairs,
)

LLAMA_8B = AttentionSpec("heads", 32, 8, 128, 128, 128**-0.5)
DEEPSEEK = AttentionSpec("latent", 128, 1, 192, 128, 192**-0.5, None, 512, 128, 64)
PAGE = 64


@dataclass(frozen=True)
class Step:
    """Equal rows, as a benchmark has them."""

    name: str
    batch: int
    context: int
    new: int

    @property
    def rows(self) -> list[Row]:
        """Requests of the step."""
        return [Row(self.context, self.new)] * self.batch


STEPS = (
    Step("decode, batch 1 after 8,192", 1, 8192, 1),
    Step("decode, batch 32 after 2,048", 32, 2048, 1),
    Step("decode, batch 128 after 1,024", 128, 1024, 1),
    Step("prefill of 4,096", 1, 0, 4096),
    Step("chunk of 1,024 after 8,192", 1, 8192, 1024),
    Step("verify 5, batch 32 after 2,048", 32, 2048, 5),
)


@dataclass
class Rates:
    """What the GPU reaches in this run: bytes a second read and written, operations a second."""

    copy: float = 0.0
    matrix: float = 0.0


def rates(place: Place, found: Rates) -> Callable[[Budget], Iterator[Line]]:
    """The section that measures them first, into `found`."""

    def section(budget: Budget) -> Iterator[Line]:
        source = torch.empty(1 << 30, dtype=torch.uint8, device=place.device)
        target = torch.empty_like(source)
        found.copy = 2 * source.nbytes / seconds_on(place.device, lambda: target.copy_(source))
        yield Line("rates", "copy of 1 GiB", f"{found.copy / 1e9:,.0f} GB/s read and written")
        size = 8192
        a, b = (torch.randn(size, size, device=place.device).bfloat16() for _ in range(2))
        found.matrix = 2 * size**3 / seconds_on(place.device, lambda: a @ b)
        yield Line("rates", "product of 8,192 in bf16", f"{found.matrix / 1e12:,.0f} TFLOP/s")

    return section


def work(spec: AttentionSpec, step: Step, item_bytes: int) -> tuple[float, float]:
    """(bytes that must be read: cached rows, and what expands a latent; operations of the form)."""
    entries = step.context + step.new
    if spec.form == "heads":
        row, shared = spec.num_kv_heads * (spec.head_dim + spec.v_head_dim), 0
        pairs = visible_pairs(step.new, step.context, None)
        operations = 2 * pairs * spec.num_heads * (spec.head_dim + spec.v_head_dim)
    else:
        row = spec.latent_rank + spec.rope_dim
        shared = spec.num_heads * spec.latent_rank * (spec.nope_dim + spec.v_head_dim)
        operations = latent_operations(spec, step.new, step.context)
    num_bytes = (step.batch * entries * row + shared) * item_bytes
    return float(num_bytes), float(step.batch * operations)


def latent_operations(spec: AttentionSpec, new: int, context: int) -> int:
    """Operations of one row in the form that the Triton kernels run it in, projections included."""
    from interlock.plugins.attention.kernels.ragged import SHORT_TOKENS  # imports triton

    entries = context + new
    pairs = visible_pairs(new, context, None)
    if new <= SHORT_TOKENS or cheaper_form(spec, new, context, entries) == "absorbed":
        return absorbed_flops(spec, new, pairs)
    return expanded_flops(spec, entries, pairs)


def attention(place: Place, form: str, found: Rates) -> Callable[[Budget], Iterator[Line]]:
    """The section of gqa or mla, bf16, and with fp8 planes."""
    spec = LLAMA_8B if form == "gqa" else DEEPSEEK

    def section(budget: Budget) -> Iterator[Line]:
        for step in STEPS:
            if budget.over:
                yield Line(f"{form} times", step.name, "the section's time is over", ok=None)
                continue
            yield _timed(place, form, spec, step, found)
            torch.cuda.empty_cache()

    return section


def _timed(place: Place, form: str, spec: AttentionSpec, step: Step, found: Rates) -> Line:
    taken: dict[str, float] = {}
    failed: dict[str, str] = {}

    def measure(name: str, make: Callable[[], Callable[[], Any]]) -> None:
        try:
            taken[name] = seconds_on(place.device, make())
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}".splitlines()[0][:120]

    for name, kernel, cache in (
        ("triton", "triton", "auto"), ("triton, fp8 cache", "triton", "fp8"),
        ("torch kernel", "torch", "auto"),
    ):  # fmt: skip
        measure(name, lambda kernel=kernel, cache=cache: _ours(place, spec, step, kernel, cache))
    for name, make in PEERS.items():
        if form == "gqa" or name == "SDPA":
            measure(name, lambda make=make: make(place, spec, step))
    num_bytes, operations = work(spec, step, 2)
    ours = taken.get("triton")
    shares = ""
    if ours:
        shares = (
            f"{num_bytes / ours / found.copy:.0%} of the copy rate, "
            f"{operations / ours / found.matrix:.0%} of the matrix rate; "
        )
    times = ", ".join(f"{name} {1e6 * s:,.0f} us" for name, s in taken.items())
    ratios = {name: s / ours for name, s in taken.items()} if ours else {}
    says = "".join(f"; {name} failed: {why}" for name, why in failed.items())
    numbers = {"seconds": taken, "times_as_fast_as": ratios, "failed": failed}
    own = {"triton", "triton, fp8 cache", "torch kernel"} & set(failed)
    return Line(f"{form} times", step.name, shares + times + says, not own, numbers)


def _ours(
    place: Place, spec: AttentionSpec, step: Step, kernel: str, cache: str
) -> Callable[[], Any]:
    backend = backend_of(place, spec, torch.bfloat16, cache, kernel, PAGE)
    scene = Scene(backend, spec, step.rows, PAGE, torch.bfloat16, place.device)
    for name, plane in scene.planes.items():  # as if computed; values do not change the time
        plane.copy_(torch.ones_like(plane, dtype=torch.float32) if "scale" in name else
                    torch.randn(plane.shape, device=place.device))  # fmt: skip
    inputs, plan = scene.inputs(step.batch * step.new), scene.plan(scene.rows)
    return lambda: scene.attend(inputs, plan)


def _dense(
    place: Place, spec: AttentionSpec, step: Step, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """q [R, H, n, D], k [R, K, S, D] and v, contiguous; a latent is expanded to its heads."""
    kind: dict[str, Any] = {"device": place.device, "dtype": dtype}
    kv_heads = spec.num_kv_heads if spec.form == "heads" else spec.num_heads
    entries = step.context + step.new
    return (
        torch.randn(step.batch, spec.num_heads, step.new, spec.head_dim, **kind),
        torch.randn(step.batch, kv_heads, entries, spec.head_dim, **kind),
        torch.randn(step.batch, kv_heads, entries, spec.v_head_dim, **kind),
    )


def sdpa_of(
    place: Place, spec: AttentionSpec, step: Step, dtype: torch.dtype = torch.bfloat16
) -> Callable[[], Any]:
    """torch's scaled_dot_product_attention on contiguous tensors; it writes no row."""
    q, k, v = _dense(place, spec, step, dtype)
    mask = None
    if step.context and step.new > 1:
        seen = torch.ones(step.new, step.context + step.new, dtype=torch.bool, device=place.device)
        mask = seen.tril(step.context)
    causal = step.context == 0
    return lambda: scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=causal, scale=spec.scale,
        enable_gqa=k.shape[1] != q.shape[1],
    )  # fmt: skip


def _pages(place: Place, step: Step, page: int) -> tuple[Tensor, int]:
    """int32 [R, pages] of scattered pages, and how many there are."""
    each = -(-(step.context + step.new) // page)
    order = torch.randperm(step.batch * each, device=place.device).to(torch.int32)
    return order.view(step.batch, each), step.batch * each


def _flash_attention(place: Place, spec: AttentionSpec, step: Step) -> Callable[[], Any]:
    from flash_attn import flash_attn_with_kvcache

    page = 256
    table, pages = _pages(place, step, page)
    kind = {"device": place.device, "dtype": torch.bfloat16}
    k, v = (torch.randn(pages, page, spec.num_kv_heads, spec.head_dim, **kind) for _ in range(2))
    q = torch.randn(step.batch, step.new, spec.num_heads, spec.head_dim, **kind)
    ends = torch.full(
        (step.batch,), step.context + step.new, dtype=torch.int32, device=place.device
    )
    return lambda: flash_attn_with_kvcache(
        q, k, v, cache_seqlens=ends, block_table=table, softmax_scale=spec.scale, causal=True
    )


def _flashinfer(place: Place, spec: AttentionSpec, step: Step) -> Callable[[], Any]:
    import flashinfer

    table, pages = _pages(place, step, PAGE)
    each = table.shape[1]
    kind = {"device": place.device, "dtype": torch.bfloat16}
    cache = torch.randn(pages, 2, PAGE, spec.num_kv_heads, spec.head_dim, **kind)
    q = torch.randn(step.batch * step.new, spec.num_heads, spec.head_dim, **kind)
    scratch = torch.empty(128 << 20, dtype=torch.uint8, device=place.device)
    offsets = torch.arange(step.batch + 1, dtype=torch.int32, device=place.device)
    last = (step.context + step.new - 1) % PAGE + 1
    lasts = torch.full((step.batch,), last, dtype=torch.int32, device=place.device)
    heads = (spec.num_heads, spec.num_kv_heads, spec.head_dim, PAGE)
    if step.new == 1:
        decode = flashinfer.BatchDecodeWithPagedKVCacheWrapper(scratch, "NHD")
        decode.plan(offsets * each, table.flatten(), lasts, *heads,
                    q_data_type=q.dtype, kv_data_type=cache.dtype)  # fmt: skip
        return lambda: decode.run(q, cache)
    prefill = flashinfer.BatchPrefillWithPagedKVCacheWrapper(scratch, "NHD")
    prefill.plan(offsets * step.new, offsets * each, table.flatten(), lasts, *heads, causal=True,
                 q_data_type=q.dtype, kv_data_type=cache.dtype)  # fmt: skip
    return lambda: prefill.run(q, cache)


PEERS: dict[str, Callable[[Place, AttentionSpec, Step], Callable[[], Any]]] = {"SDPA": sdpa_of}
if find_spec("flash_attn") is not None:
    PEERS["FlashAttention"] = _flash_attention
if find_spec("flashinfer") is not None:
    PEERS["FlashInfer"] = _flashinfer


def grouped(place: Place, found: Rates) -> Callable[[Budget], Iterator[Line]]:
    """The section of expert products: 64 experts, 8 of them a token, as shares of either rate."""
    experts, chosen, width, height = 64, 8, 2048, 1408

    def section(budget: Budget) -> Iterator[Line]:
        from interlock.plugins.models.kernels.grouped import (
            contiguous_layout,
            grouped_product,
            masked_layout,
        )

        kind = {"device": place.device, "dtype": torch.bfloat16}
        weight_XFE = torch.randn(experts, height, width, **kind)
        for tokens, masked in ((1, True), (32, True), (32, False), (4096, False)):
            name = f"{tokens:,} tokens, {'masked' if masked else 'contiguous'}"
            if budget.over:
                yield Line("grouped times", name, "the section's time is over", ok=None)
                continue
            x_TE = torch.randn(tokens, width, **kind)
            draw = torch.rand(tokens, experts, device=place.device)
            chosen_TJ = draw.argsort(1)[:, :chosen].contiguous()
            layout = (masked_layout if masked else contiguous_layout)(
                chosen_TJ, experts, torch.bfloat16
            )
            ours_s = seconds_on(
                place.device,
                lambda x=x_TE, at=layout: grouped_product(x, weight_XFE, None, at, gathered=True),
            )
            loop_s = seconds_on(
                place.device, lambda x=x_TE, c=chosen_TJ: _expert_loop(x, weight_XFE, c)
            )
            read = len(chosen_TJ.unique()) * height * width * 2
            operations = 2 * tokens * chosen * height * width
            yield Line(
                "grouped times", name,
                f"{read / ours_s / found.copy:.0%} of the copy rate, "
                f"{operations / ours_s / found.matrix:.0%} of the matrix rate; "
                f"triton {1e6 * ours_s:,.0f} us, a product for each expert {1e6 * loop_s:,.0f} us",
                numbers={"triton_s": ours_s, "loop_s": loop_s},
            )  # fmt: skip

    return section


def _expert_loop(x_TE: Tensor, weight_XFE: Tensor, chosen_TJ: Tensor) -> list[Tensor]:
    rows = [(chosen_TJ == expert).any(1).nonzero()[:, 0] for expert in range(len(weight_XFE))]
    return [x_TE[at] @ weight_XFE[expert].T for expert, at in enumerate(rows) if len(at)]
