"""What multi-head latent attention costs in its two forms, and the cheaper one for a row.

Counting 2 FLOPs a multiply-add, for H heads, latent rank C, head parts N (no rotary) and R
(rotary), value size V, n new tokens, S gathered entries and P visible (query, key) pairs:

    absorbed:  2 n H C (N + V)  +  2 P H (C + R)  +  2 P H C
               queries into latent space and results out of it; scores; sums of latents
    expanded:  2 S H C (N + V)  +  2 P H (N + R)  +  2 P H V
               latents to keys and values; scores; sums of values

Source: DeepSeek-V2 (arXiv 2405.04434), section 2.1 and appendix C: W_UK is absorbed into W_UQ and
W_UV into W_O, so that keys and values need not be computed at inference. Deviation: W_UV is applied
on its own, since a backend returns heads, not the output projection.

With P = n S the forms cost the same at n = S a / (a + S b) for a = C (N + V), b = 2 C - N - V:
close to a / b new tokens when the context is long, 171 at DeepSeek-V3's sizes (C 512, N and V 128).
A prompt without context (n = S) is never dearer expanded if b >= 0.
"""

from typing import Literal

from interlock.core.model import AttentionSpec

MlaForm = Literal["absorbed", "expanded"]


def visible_pairs(new: int, start: int, window: int | None) -> int:
    """(query, key) pairs of a chain: new token j sees min(start + j + 1, window) entries."""
    if window is None:
        return new * start + new * (new + 1) // 2
    growing = min(new, max(0, window - start))
    return growing * start + growing * (growing + 1) // 2 + (new - growing) * window


def absorbed_flops(spec: AttentionSpec, new: int, pairs: int) -> int:
    """FLOPs of a row whose queries are taken into latent space."""
    heads, rank = spec.num_heads, spec.latent_rank
    projections = 2 * new * heads * rank * (spec.nope_dim + spec.v_head_dim)
    return projections + 2 * pairs * heads * (2 * rank + spec.rope_dim)


def expanded_flops(spec: AttentionSpec, entries: int, pairs: int) -> int:
    """FLOPs of a row whose gathered latents are expanded to keys and values a head."""
    heads, rank = spec.num_heads, spec.latent_rank
    expansion = 2 * entries * heads * rank * (spec.nope_dim + spec.v_head_dim)
    return expansion + 2 * pairs * heads * (spec.nope_dim + spec.rope_dim + spec.v_head_dim)


def cheaper_form(spec: AttentionSpec, new: int, start: int, entries: int) -> MlaForm:
    """The form with fewer FLOPs for `new` tokens after `start`; expanded when they tie."""
    pairs = visible_pairs(new, start, spec.window)
    absorbed = absorbed_flops(spec, new, pairs)
    return "absorbed" if absorbed < expanded_flops(spec, entries, pairs) else "expanded"
