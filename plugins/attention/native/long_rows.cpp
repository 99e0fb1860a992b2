// Attention of long rows (prompts and chunks of them) over pages, in bf16 on processors that
// multiply pairs of it (AVX512_BF16); elsewhere nothing is compiled. The caller is long_rows.py.
//
// FlashAttention (arXiv 2205.14135, algorithm 1): a unit is a block of queries of one key head,
// with all G query heads that share it. Keys and values are packed a block at a time, so that both
// products are [rows, pairs] x [pairs, lanes]; scores and sums are fp32, and weights are rounded
// to bf16 for the second product. Blocks of keys lie at absolute multiples of BLOCK and those of
// queries count from the row's first: neither the rest of the batch nor threads change a bit.
//
// Legend: H query heads, K key/value heads, G = H / K, D and V head sizes, M = queries * G.

#if defined(__AVX512BF16__) && defined(__AVX512BW__) && defined(__AVX512VL__)

#if defined(__GNUC__) && !defined(__clang__)
// gcc's own headers begin some results with `x = x` and are then warned of.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <immintrin.h>
#include <memory>
#include <omp.h>

namespace {

struct Step {
    const uint16_t *q;               // [N, H, D] with unit stride in the last axis
    int64_t q_token, q_head;         // strides in elements
    uint16_t *out;                   // [N, H, V], contiguous
    const uint16_t *k_plane, *v_plane;  // [slots, K, size]
    int64_t k_slot, v_slot;          // elements from slot to slot
    int64_t units;
    const int64_t *unit;             // [units, 3]: row, key head, first query
    const int64_t *row;              // [rows, 5]: first place in q and out, tokens, start,
                                     //            table row, oldest entry that some query sees
    const int64_t *table;            // [table rows, table_width]: pages
    int64_t table_width, page_size, unit_queries;
    int64_t heads, kv_heads, head_size, value_size;
    int64_t window;                  // 0: none
    double scale, softcap;           // softcap 0: none
    const float *sinks;              // [H] or null
    int64_t threads;
};

constexpr int64_t ROW = 5;
constexpr int64_t BLOCK = 256;  // keys that are packed at once: a multiple of PANEL
constexpr int64_t PANEL = 64;   // lanes of a product: 4 vectors
constexpr int TILE = 6;         // rows of a product: 6 x 4 sums, 4 operands and 1 pair in registers
constexpr float LOWEST = -1e30f, LOG2E = 1.44269504f;

int64_t up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

__mmask16 first_lanes(int64_t count) {
    return count >= 16 ? 0xffff : count <= 0 ? 0 : (1u << count) - 1;
}
__mmask32 first_words(int64_t count) {
    return count >= 32 ? 0xffffffffu : count <= 0 ? 0 : (1u << count) - 1;
}

// 2^x of x <= 0 (0 below -126), and of NaN: relative error below 2^-22.
inline __m512 power_of_2(__m512 x) {
    const __mmask16 some = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
    const __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m512 r = _mm512_sub_ps(x, n);
    __m512 p = _mm512_set1_ps(1.5403530e-4f);
    for (const float c : {1.3333558e-3f, 9.6181291e-3f, 5.5504109e-2f, 2.4022651e-1f, 6.9314718e-1f, 1.0f})
        p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(c));
    return _mm512_maskz_scalef_ps(some, p, n);
}

// cap * tanh(x): tanh |x| = (1 - e) / (1 + e), e = exp(-2 |x|).
inline __m512 capped(__m512 x, float cap) {
    const __m512 one = _mm512_set1_ps(1.0f);
    const __m512 e = power_of_2(_mm512_mul_ps(_mm512_abs_ps(x), _mm512_set1_ps(-2 * LOG2E)));
    const __m512 tanh = _mm512_div_ps(_mm512_sub_ps(one, e), _mm512_add_ps(one, e));
    const __m512 sign = _mm512_and_ps(x, _mm512_set1_ps(-0.0f));
    return _mm512_mul_ps(_mm512_or_ps(tanh, sign), _mm512_set1_ps(cap));
}

// TILE rows of `a` [TILE, pairs] by `b` [pairs, PANEL], S vectors of it; c = c * share + a b.
template <int S, bool ADD>
void multiply(const uint32_t *a, int64_t a_row, const uint32_t *b, int64_t pairs, float *c,
              int64_t c_row, const float *share) {
    __m512 sums[TILE][S];
#pragma GCC unroll 6
    for (int r = 0; r < TILE; r++)
#pragma GCC unroll 4
        for (int s = 0; s < S; s++)
            sums[r][s] = ADD ? _mm512_mul_ps(_mm512_load_ps(c + r * c_row + 16 * s), _mm512_set1_ps(share[r]))
                             : _mm512_setzero_ps();
    for (int64_t p = 0; p < pairs; p++) {
        __m512bh operand[S];
#pragma GCC unroll 4
        for (int s = 0; s < S; s++)
            operand[s] = (__m512bh)_mm512_load_si512(b + p * PANEL + 16 * s);
#pragma GCC unroll 6
        for (int r = 0; r < TILE; r++) {
            const __m512bh pair = (__m512bh)_mm512_set1_epi32(int32_t(a[r * a_row + p]));
#pragma GCC unroll 4
            for (int s = 0; s < S; s++) sums[r][s] = _mm512_dpbf16_ps(sums[r][s], pair, operand[s]);
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < TILE; r++)
#pragma GCC unroll 4
        for (int s = 0; s < S; s++) _mm512_store_ps(c + r * c_row + 16 * s, sums[r][s]);
}

template <bool ADD>
void multiply_lanes(int64_t lanes, const uint32_t *a, int64_t a_row, const uint32_t *b,
                    int64_t pairs, float *c, int64_t c_row, const float *share) {
    if (lanes > 48) multiply<4, ADD>(a, a_row, b, pairs, c, c_row, share);
    else if (lanes > 32) multiply<3, ADD>(a, a_row, b, pairs, c, c_row, share);
    else if (lanes > 16) multiply<2, ADD>(a, a_row, b, pairs, c, c_row, share);
    else multiply<1, ADD>(a, a_row, b, pairs, c, c_row, share);
}

// 16 rows of 16 pairs become 16 rows of the transpose.
void transpose(__m512i (&x)[16], uint32_t *to, int64_t to_row) {
    __m512i y[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
        y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        x[i] = _mm512_unpacklo_epi64(y[i], y[i + 2]);
        x[i + 1] = _mm512_unpackhi_epi64(y[i], y[i + 2]);
        x[i + 2] = _mm512_unpacklo_epi64(y[i + 1], y[i + 3]);
        x[i + 3] = _mm512_unpackhi_epi64(y[i + 1], y[i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        y[i] = _mm512_shuffle_i32x4(x[i], x[i + 4], 0x88);
        y[i + 4] = _mm512_shuffle_i32x4(x[i], x[i + 4], 0xdd);
        y[i + 8] = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0x88);
        y[i + 12] = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0xdd);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        _mm512_store_si512(to + i * to_row, _mm512_shuffle_i32x4(y[i], y[i + 8], 0x88));
        _mm512_store_si512(to + (i + 8) * to_row, _mm512_shuffle_i32x4(y[i], y[i + 8], 0xdd));
        _mm512_store_si512(to + (i + 4) * to_row, _mm512_shuffle_i32x4(y[i + 4], y[i + 12], 0x88));
        _mm512_store_si512(to + (i + 12) * to_row, _mm512_shuffle_i32x4(y[i + 4], y[i + 12], 0xdd));
    }
}

struct Sizes {
    int64_t group, rows, inner, values;  // G; M, D and V padded to TILE rows, 32 and PANEL

    explicit Sizes(const Step &step)
        : group(step.heads / step.kv_heads), rows(up(step.unit_queries * group, TILE)),
          inner(up(step.head_size, 32)), values(up(step.value_size, PANEL)) {}
};

struct Free {
    void operator()(void *p) const { std::free(p); }
};
template <class T> struct Buffer {
    std::unique_ptr<T, Free> kept;
    explicit Buffer(int64_t count)
        : kept(static_cast<T *>(std::aligned_alloc(64, up(count * int64_t(sizeof(T)), 64)))) {}
    T *operator+(int64_t at) const { return kept.get() + at; }
};

// What a thread needs: queries [M, D] and weights [TILE, BLOCK] in bf16, keys as panels
// [BLOCK / PANEL, D / 2, PANEL] of pairs, values as panels [V / PANEL, BLOCK / 2, PANEL] of pairs,
// scores [TILE, BLOCK], sums [M, V], and of each row the largest score and the total.
struct Room {
    Buffer<uint16_t> q, weights;
    Buffer<uint32_t> keys, values;
    Buffer<float> scores, sums, largest, total;
    Buffer<int64_t> slots;

    explicit Room(const Sizes &s)
        : q(s.rows * s.inner), weights(TILE * BLOCK), keys(BLOCK * s.inner / 2),
          values(BLOCK / 2 * s.values), scores(TILE * BLOCK), sums(s.rows * s.values),
          largest(s.rows), total(s.rows), slots(BLOCK) {}
};

struct Unit {
    const Step &step;
    const Sizes &size;
    const Room &room;
    int64_t kv, place, queries, begin, oldest;  // `begin`: the entry that the first query becomes
    const int64_t *pages;

    Unit(const Step &all, const Sizes &sizes, const Room &space, const int64_t *unit)
        : step(all), size(sizes), room(space), kv(unit[1]) {
        const int64_t *row = step.row + unit[0] * ROW;
        place = row[0] + unit[2];
        queries = std::min(step.unit_queries, row[1] - unit[2]);
        begin = row[2] + unit[2];
        pages = step.table + row[3] * step.table_width;
        oldest = step.window ? std::max(row[4], begin - step.window + 1) : row[4];
    }

    int64_t rows() const { return queries * size.group; }
    int64_t head(int64_t m) const { return kv * size.group + m % size.group; }

    // In which unit the largest score is kept: that of a product of query and key, or the capped.
    float to_log2() const { return LOG2E * (step.softcap != 0 ? 1.0f : float(step.scale)); }

    void start() const {
        std::memset(room.q + 0, 0, sizeof(uint16_t) * size.rows * size.inner);
        std::memset(room.sums + 0, 0, sizeof(float) * size.rows * size.values);
        for (int64_t m = 0; m < size.rows; m++) {
            const bool sink = step.sinks && m < rows();
            *(room.largest + m) = sink ? step.sinks[head(m)] * LOG2E / to_log2() : LOWEST;
            *(room.total + m) = sink;
        }
        for (int64_t m = 0; m < rows(); m++)
            std::memcpy(room.q + m * size.inner,
                        step.q + (place + m / size.group) * step.q_token + head(m) * step.q_head,
                        step.head_size * sizeof(uint16_t));
    }

    // Entries first .. end of the block at `base`; the others of the block become zeros.
    void pack(int64_t base, int64_t first, int64_t end) const {
        for (int64_t e = first; e < end; e++)
            *(room.slots + (e - base)) = pages[e / step.page_size] * step.page_size + e % step.page_size;
        const int64_t from = first - base, until = end - base, used = up(until, 16);
        const uint16_t *keys = step.k_plane + kv * step.head_size;
        const uint16_t *values = step.v_plane + kv * step.value_size;
        for (int64_t e = 0; e < used; e += 16)
            for (int64_t d = 0; d < size.inner; d += 32) {
                const __mmask32 real = first_words(step.head_size - d);
                __m512i x[16];
#pragma GCC unroll 16
                for (int i = 0; i < 16; i++) {
                    const bool own = e + i >= from && e + i < until;
                    x[i] = own ? _mm512_maskz_loadu_epi16(
                                     real, keys + *(room.slots + (e + i)) * step.k_slot + d)
                               : _mm512_setzero_si512();
                }
                const int64_t panel = e / PANEL * (size.inner / 2) * PANEL;
                transpose(x, room.keys + (panel + d / 2 * PANEL + e % PANEL), PANEL);
            }
        for (int64_t e = 0; e < used; e += 2)
            for (int64_t v = 0; v < size.values; v += 16) {
                const __mmask16 real = first_lanes(step.value_size - v);
                __m512i pair[2];
                for (int i = 0; i < 2; i++) {
                    const bool own = e + i >= from && e + i < until;
                    pair[i] = own ? _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(
                                        real, values + *(room.slots + (e + i)) * step.v_slot + v))
                                  : _mm512_setzero_si512();
                }
                const int64_t panel = v / PANEL * (BLOCK / 2) * PANEL;
                _mm512_store_si512(room.values + (panel + e / 2 * PANEL + v % PANEL),
                                   _mm512_or_si512(pair[0], _mm512_slli_epi32(pair[1], 16)));
            }
    }

    // Scores of row m against `lanes` entries from `base` on become weights; the share of what was
    // summed before that remains is returned.
    float soften(int64_t m, float *scores, uint16_t *weights, int64_t base, int64_t lanes, bool edge) const {
        if (step.softcap != 0) {
            const __m512 by = _mm512_set1_ps(float(step.scale / step.softcap));
            for (int64_t e = 0; e < lanes; e += 16)
                _mm512_store_ps(scores + e, capped(_mm512_mul_ps(_mm512_load_ps(scores + e), by),
                                                   float(step.softcap)));
        }
        if (edge) {
            const int64_t entry = begin + m / size.group;  // of the query
            const int64_t seen = entry + 1 - base;
            const int64_t hidden = (step.window ? std::max(oldest, entry - step.window + 1) : oldest) - base;
            for (int64_t e = 0; e < lanes; e += 16) {
                const __mmask16 show = first_lanes(seen - e) & ~first_lanes(hidden - e);
                _mm512_mask_store_ps(scores + e, ~show, _mm512_set1_ps(-INFINITY));
            }
        }
        __m512 most = _mm512_load_ps(scores);
        for (int64_t e = 16; e < lanes; e += 16) most = _mm512_max_ps(most, _mm512_load_ps(scores + e));
        const float before = *(room.largest + m), now = std::max(before, _mm512_reduce_max_ps(most));
        const __m512 unit = _mm512_set1_ps(to_log2()), against = _mm512_set1_ps(now * to_log2());
        __m512 sum = _mm512_setzero_ps();
        for (int64_t e = 0; e < lanes; e += 16) {
            const __m512 weight = power_of_2(_mm512_fmsub_ps(_mm512_load_ps(scores + e), unit, against));
            sum = _mm512_add_ps(sum, weight);
            _mm256_store_si256(reinterpret_cast<__m256i *>(weights + e), (__m256i)_mm512_cvtneps_pbh(weight));
        }
        const __m512 change = _mm512_set1_ps((before - now) * to_log2());
        const float share = _mm512_cvtss_f32(power_of_2(change));
        *(room.largest + m) = now;
        *(room.total + m) = *(room.total + m) * share + _mm512_reduce_add_ps(sum);
        return share;
    }

    // Rows m .. m + TILE against the block.
    void tile(int64_t m, int64_t base, int64_t first, int64_t end) const {
        const int64_t last = std::min(m + TILE, rows()) - 1;
        const int64_t low = begin + m / size.group, high = begin + last / size.group;
        end = std::min(end, high + 1);
        if (end <= first || (step.window && end + step.window <= low + 1)) return;
        const int64_t lanes = up(end - base, 16);
        const bool edge = base + lanes > low + 1 || base < oldest || (step.window && base <= high - step.window);
        const uint32_t *q = reinterpret_cast<const uint32_t *>(room.q + m * size.inner);
        float shares[TILE];
        for (int64_t e = 0; e < lanes; e += PANEL)
            multiply_lanes<false>(lanes - e, q, size.inner / 2, room.keys + e * size.inner / 2,
                                  (step.head_size + 1) / 2, room.scores + e, BLOCK, nullptr);
        for (int r = 0; r < TILE; r++)
            shares[r] = soften(m + r, room.scores + r * BLOCK, room.weights + r * BLOCK, base, lanes, edge);
        const uint32_t *weights = reinterpret_cast<const uint32_t *>(room.weights + 0);
        for (int64_t v = 0; v < step.value_size; v += PANEL)
            multiply_lanes<true>(step.value_size - v, weights, BLOCK / 2, room.values + v * BLOCK / 2,
                                 lanes / 2, room.sums + (m * size.values + v), size.values, shares);
    }

    void finish() const {
        for (int64_t m = 0; m < rows(); m++) {
            uint16_t *out = step.out + ((place + m / size.group) * step.heads + head(m)) * step.value_size;
            const __m512 total = _mm512_set1_ps(*(room.total + m));
            for (int64_t v = 0; v < step.value_size; v += 16) {
                const __m512 sums = _mm512_load_ps(room.sums + (m * size.values + v));
                const __m256i rounded = (__m256i)_mm512_cvtneps_pbh(_mm512_div_ps(sums, total));
                _mm256_mask_storeu_epi16(out + v, first_lanes(step.value_size - v), rounded);
            }
        }
    }

    void run() const {
        start();
        const int64_t end = begin + queries;
        for (int64_t base = oldest / BLOCK * BLOCK; base < end; base += BLOCK) {
            const int64_t first = std::max(base, oldest), until = std::min(base + BLOCK, end);
            pack(base, first, until);
            for (int64_t m = 0; m < rows(); m += TILE) tile(m, base, first, until);
        }
        finish();
    }
};

}  // namespace

extern "C" {
int64_t interlock_has_long_rows() { return 1; }
void interlock_attend_long(const Step *step) {
    const Sizes sizes(*step);
#pragma omp parallel num_threads(step->threads)
    {
        const Room room(sizes);
#pragma omp for schedule(dynamic, 1)
        for (int64_t u = 0; u < step->units; u++) Unit(*step, sizes, room, step->unit + u * 3).run();
    }
}
}

#else

#include <cstdint>
extern "C" int64_t interlock_has_long_rows() { return 0; }

#endif
