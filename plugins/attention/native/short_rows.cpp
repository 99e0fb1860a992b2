// Attention of short rows over pages, in place: no entry is copied and none is read that no query
// of the row may see. Compiled for the machine it runs on; the caller is rows.py.
//
// A row's entries are cut at absolute multiples of `chunk_entries`. A unit is one chunk of one row:
// it gives, for every query and head, the largest score, the sum of exp(score - largest) and the
// values weighted by that. A second pass adds a row's units in order (flash decoding; the softmax
// is that of FlashAttention, arXiv 2205.14135, section 3.1), so the threads change no bit.
//
// Legend: H query heads, K key/value heads, G = H / K, D and V head sizes, M = Q * G for Q queries.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>
#include <omp.h>
#if defined(__AVX512BF16__) && defined(__AVX512F__)
#include <immintrin.h>
#define INTERLOCK_MULTIPLIES_BF16
#endif

namespace {

struct Step {
    // Inputs of the step's tokens, each [T, heads, size] with unit stride in the last axis.
    const void *q, *k_new, *v_new;
    int64_t q_token, q_head, k_token, k_head, v_token, v_head;  // strides in elements
    void *out;                                                  // [T, H, V], contiguous
    void *k_plane, *v_plane;     // [slots, K, size]; equal where a row is its own value
    int64_t k_slot, v_slot;      // elements from slot to slot
    const int64_t *write_slots;  // [T], where the new rows go
    int64_t tokens;
    // Short rows.
    int64_t units, rows;
    const int64_t *unit;        // [units, 3]: row, first entry, end entry
    const int64_t *row;         // [rows, 7]: first place in q and out, tokens, start, table row,
                                //            first flat token, first unit, units
    const int64_t *positions;   // [T]
    const int64_t *table;       // [table rows, table_width]: pages
    const uint8_t *const *tree; // [rows]: null for a chain, else [n, n] query by key
    void *partial;              // [sum over units of queries * H, V + 2]
    const int64_t *partial_at;  // [units]: the unit's first row of `partial`
    int64_t table_width, page_size;
    int64_t heads, kv_heads, head_size, value_size;
    int64_t window;       // 0: none
    double scale, softcap;  // softcap 0: none
    const void *sinks;    // [H] in the accumulator's type, or null
    int64_t threads;
};

struct BFloat16 { uint16_t bits; };

constexpr int64_t ROW = 7;
constexpr int64_t AHEAD = 32;  // entries that are on their way from memory

template <class T> struct Wide { using type = float; };
template <> struct Wide<double> { using type = double; };

template <class A> constexpr int LANES = 64 / sizeof(A);
template <class A> struct Vector;
template <> struct Vector<float> { typedef float type __attribute__((vector_size(64))); };
template <> struct Vector<double> { typedef double type __attribute__((vector_size(64))); };
template <class A> using Vec = typename Vector<A>::type;

template <class A> inline Vec<A> load(const A *from) {
    Vec<A> v;
    std::memcpy(&v, from, 64);
    return v;
}

inline Vec<float> load(const BFloat16 *from) {
    typedef uint16_t Half __attribute__((vector_size(32)));
    typedef uint32_t Full __attribute__((vector_size(64)));
    Half half;
    std::memcpy(&half, from, 32);
    return (Vec<float>)(__builtin_convertvector(half, Full) << 16);
}

template <class A, class T> inline Vec<A> load_some(const T *from, int64_t count) {
    if (count >= LANES<A>) return load(from);
    T padded[LANES<A>] = {};
    std::memcpy(padded, from, count * sizeof(T));
    return load(padded);
}

template <class A> inline void store(A *to, Vec<A> v) { std::memcpy(to, &v, 64); }

inline float sum(Vec<float> v) {
    const auto a = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
                   __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
    const auto b = __builtin_shufflevector(a, a, 0, 1, 2, 3) + __builtin_shufflevector(a, a, 4, 5, 6, 7);
    const auto c = b + __builtin_shufflevector(b, b, 2, 3, 0, 1);
    return c[0] + c[1];
}
inline double sum(Vec<double> v) {
    const auto a = __builtin_shufflevector(v, v, 0, 1, 2, 3) + __builtin_shufflevector(v, v, 4, 5, 6, 7);
    const auto b = __builtin_shufflevector(a, a, 0, 1) + __builtin_shufflevector(a, a, 2, 3);
    return b[0] + b[1];
}

#ifdef INTERLOCK_MULTIPLIES_BF16
// The sums of four vectors: 15 instructions in place of the 32 of four times `sum`.
inline __m128 sums_of(const __m512 *v) {
    const __m512 ab = _mm512_unpacklo_ps(v[0], v[1]) + _mm512_unpackhi_ps(v[0], v[1]);
    const __m512 cd = _mm512_unpacklo_ps(v[2], v[3]) + _mm512_unpackhi_ps(v[2], v[3]);
    const __m512d low = _mm512_unpacklo_pd((__m512d)ab, (__m512d)cd);
    const __m512d high = _mm512_unpackhi_pd((__m512d)ab, (__m512d)cd);
    const Vec<float> all = (Vec<float>)low + (Vec<float>)high;  // a, b, c, d in each quarter
    const auto half = __builtin_shufflevector(all, all, 0, 1, 2, 3, 4, 5, 6, 7) +
                      __builtin_shufflevector(all, all, 8, 9, 10, 11, 12, 13, 14, 15);
    return (__m128)(__builtin_shufflevector(half, half, 0, 1, 2, 3) +
                    __builtin_shufflevector(half, half, 4, 5, 6, 7));
}
#endif

inline float round_to(float x, float *) { return x; }
inline double round_to(double x, double *) { return x; }
inline BFloat16 round_to(float x, BFloat16 *) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    if (std::isnan(x)) return {uint16_t((bits >> 16) | 0x40)};
    return {uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};  // to nearest, ties to even
}

// exp of numbers <= 0, and of NaN: 2^n p(r), relative error below 2^-22. Vectorises.
inline float exponential(float x) {
    const float n = std::nearbyint(std::max(x, -87.0f) * 1.44269504f);
    const float r = (std::max(x, -87.0f) - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    const int32_t bits = (int32_t(n) + 127) << 23;
    float power;
    std::memcpy(&power, &bits, 4);
    const float result = x < -87.0f ? 0.0f : p * power;
    return x == x ? result : x;
}
inline double exponential(double x) { return std::exp(x); }

template <class A> inline A capped(A score, A cap) {
    const A e = exponential(-2 * std::abs(score / cap));  // tanh |x| = (1 - e) / (1 + e)
    return std::copysign((1 - e) / (1 + e) * cap, score);
}

template <class T> struct Unit {
    using A = typename Wide<T>::type;
    const Step &step;
    int64_t row, first, end, place, queries, start, token;
    const uint8_t *tree;
    int64_t group, width;  // G; D padded to whole vectors
    A *q;                  // [K, Q, G, width]
    A *scores;             // [M, end - first] of one key head
    const int64_t *slots;  // [end - first]
    const int64_t *then;   // [end - first]: slots that this thread reads next
    int64_t ready;         // so many of this unit's first entries were asked for before

    int64_t entries() const { return end - first; }

    void take_queries() const {
        std::memset(q, 0, sizeof(A) * step.heads * queries * width);
        const T *from = static_cast<const T *>(step.q);
        for (int64_t i = 0; i < queries; i++)
            for (int64_t h = 0; h < step.heads; h++) {
                const T *head = from + (place + i) * step.q_token + h * step.q_head;
                A *to = q + (((h / group) * queries + i) * group + h % group) * width;
                for (int64_t d = 0; d < step.head_size; d += LANES<A>)
                    store(to + d, load_some<A>(head + d, step.head_size - d));
            }
    }

    // Pages lie anywhere, and a pass over one key head skips the others: the processor's own
    // prefetching finds no pattern. Each pass asks for the same part of the entries that the thread
    // reads next, so that memory works all the time. The first pass asks for what nobody did.
    void prefetch(int64_t e) const {
        const char *k = static_cast<const char *>(step.k_plane);
        if (e + AHEAD >= ready && e + AHEAD < entries())
            for (int64_t b = 0; b < step.k_slot * int64_t(sizeof(T)); b += 64)
                __builtin_prefetch(k + slots[e + AHEAD] * step.k_slot * sizeof(T) + b, 0, 2);
        if (step.v_plane == step.k_plane || e < ready) return;
        const char *v = static_cast<const char *>(step.v_plane);
        for (int64_t b = 0; b < step.v_slot * int64_t(sizeof(T)); b += 64)
            __builtin_prefetch(v + slots[e] * step.v_slot * sizeof(T) + b, 0, 2);
    }

    static void prefetch_part(const T *from, int64_t size) {
        const char *bytes = reinterpret_cast<const char *>(from);
        for (int64_t b = 0; b < size * int64_t(sizeof(T)); b += 64) __builtin_prefetch(bytes + b, 0, 2);
    }

#ifdef INTERLOCK_MULTIPLIES_BF16
    // Scores of N rows of q against whole groups of four entries; how many entries that were.
    // The queries' wide copies hold bf16 numbers, so that rounding gives them back.
    template <int N> int64_t score_fours(int64_t kv, int64_t m) const {
        constexpr int64_t MOST = 8;  // registers of a query
        if (step.head_size % 32 != 0 || step.head_size > MOST * 32) return 0;
        const T *plane = static_cast<const T *>(step.k_plane) + kv * step.head_size;
        const A *queries_at = q + (kv * queries * group + m) * width;
        const int64_t parts = step.head_size / 32, whole = entries() / 4 * 4;
        __m512bh pairs[N][MOST];
        for (int n = 0; n < N; n++)
            for (int64_t d = 0; d < parts; d++) {
                const A *from = queries_at + n * width + d * 32;
                pairs[n][d] = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(from + 16), _mm512_loadu_ps(from));
            }
        for (int64_t e = 0; e < whole; e += 4) {
            __m512 totals[N][4] = {};
            for (int i = 0; i < 4; i++) {
                if (kv == 0 && m == 0) prefetch(e + i);
                if (m == 0) prefetch_part(plane + then[e + i] * step.k_slot, step.head_size);
                const T *key = plane + slots[e + i] * step.k_slot;
                for (int64_t d = 0; d < parts; d++) {
                    const __m512bh k = (__m512bh)_mm512_loadu_si512(key + d * 32);
                    for (int n = 0; n < N; n++)
                        totals[n][i] = _mm512_dpbf16_ps(totals[n][i], pairs[n][d], k);
                }
            }
            for (int n = 0; n < N; n++)
                _mm_storeu_ps(scores + (m + n) * entries() + e, sums_of(totals[n]));
        }
        return whole;
    }
#endif

    // Scores of N rows of q against every entry.
    template <int N, bool WHOLE> void score(int64_t kv, int64_t m) const {
        const bool first_pass = kv == 0 && m == 0;
        const T *plane = static_cast<const T *>(step.k_plane) + kv * step.head_size;
        const A *queries_at = q + (kv * queries * group + m) * width;
        int64_t begin = 0;
#ifdef INTERLOCK_MULTIPLIES_BF16
        if constexpr (WHOLE && std::is_same_v<T, BFloat16>) begin = score_fours<N>(kv, m);
#endif
        for (int64_t e = begin; e < entries(); e++) {
            const T *key = plane + slots[e] * step.k_slot;
            if (first_pass) prefetch(e);
            if (m == 0) prefetch_part(plane + then[e] * step.k_slot, step.head_size);
            Vec<A> sums[N] = {};
            for (int64_t d = 0; d < width; d += LANES<A>) {
                const Vec<A> k = WHOLE ? load(key + d) : load_some<A>(key + d, step.head_size - d);
                for (int n = 0; n < N; n++) sums[n] += k * load(queries_at + n * width + d);
            }
            for (int n = 0; n < N; n++) scores[(m + n) * entries() + e] = sum(sums[n]);
        }
    }

    // Values of D .. D + S vectors, weighted by N rows of scores.
    template <int N, int S, bool WHOLE>
    void weigh(int64_t kv, int64_t m, int64_t at, A *const *results) const {
        const T *plane = static_cast<const T *>(step.v_plane) + kv * step.value_size + at;
        Vec<A> sums[N][S] = {};
        for (int64_t e = 0; e < entries(); e++) {
            const T *value = plane + slots[e] * step.v_slot;
            if (m == 0) prefetch_part(plane + then[e] * step.v_slot, S * LANES<A>);
            Vec<A> v[S];
            for (int s = 0; s < S; s++)
                v[s] = WHOLE ? load(value + s * LANES<A>)
                             : load_some<A>(value + s * LANES<A>, step.value_size - at - s * LANES<A>);
            for (int n = 0; n < N; n++) {
                const A weight = scores[(m + n) * entries() + e];
                for (int s = 0; s < S; s++) sums[n][s] += v[s] * weight;
            }
        }
        for (int n = 0; n < N; n++)
            for (int s = 0; s < S; s++) {
                const int64_t from = at + s * LANES<A>;
                const int64_t count = std::min<int64_t>(LANES<A>, step.value_size - from);
                std::memcpy(results[n] + from, &sums[n][s], count * sizeof(A));
            }
    }

    template <int N> void weigh_all(int64_t kv, int64_t m, A *const *results) const {
        int64_t at = 0;
        for (; at + 4 * LANES<A> <= step.value_size; at += 4 * LANES<A>)
            weigh<N, 4, true>(kv, m, at, results);
        for (; at + LANES<A> <= step.value_size; at += LANES<A>)
            weigh<N, 1, true>(kv, m, at, results);
        if (at < step.value_size) weigh<N, 1, false>(kv, m, at, results);
    }

    bool sees(int64_t query, int64_t entry) const {
        const int64_t position = step.positions[token + query];
        int64_t other = entry;
        if (entry >= start) {
            if (tree ? !tree[query * queries + entry - start] : entry - start > query) return false;
            other = step.positions[token + entry - start];
        }
        return step.window == 0 || other > position - step.window;
    }

    // Scale, cap, hide, and turn scores into weights; keeps the largest and the sum.
    void soften(int64_t m, A *largest, A *total) const {
        A *row_scores = scores + m * entries();
        const A scale = step.scale, cap = step.softcap;
        const int64_t count = entries();
#pragma omp simd
        for (int64_t e = 0; e < count; e++) row_scores[e] *= scale;
        if (cap != 0) {
#pragma omp simd
            for (int64_t e = 0; e < count; e++) row_scores[e] = capped<A>(row_scores[e], cap);
        }
        if (queries > 1 || step.window != 0)
            for (int64_t e = 0; e < count; e++)
                if (!sees(m / group, first + e)) row_scores[e] = -INFINITY;
        A most = -INFINITY;
#pragma omp simd reduction(max : most)
        for (int64_t e = 0; e < count; e++) most = row_scores[e] > most ? row_scores[e] : most;
        const A against = most == -INFINITY ? 0 : most;
        A sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t e = 0; e < count; e++) {
            row_scores[e] = exponential(row_scores[e] - against);
            sum += row_scores[e];
        }
        *largest = most;
        *total = sum;
    }

    // Row (query, head) of the unit's part of `partial`: V sums, the largest score, the total.
    A *partial(int64_t number, int64_t kv, int64_t m) const {
        const int64_t query = m / group, head = kv * group + m % group;
        const int64_t at = step.partial_at[number] + query * step.heads + head;
        return static_cast<A *>(step.partial) + at * (step.value_size + 2);
    }

    template <int N> void score_all(int64_t kv, int64_t m) const {
        if (width == step.head_size) score<N, true>(kv, m);
        else score<N, false>(kv, m);
    }

    void run(int64_t number) const {
        take_queries();
        const int64_t rows = queries * group;
        for (int64_t kv = 0; kv < step.kv_heads; kv++) {
            int64_t m = 0;
            for (; m + 4 <= rows; m += 4) score_all<4>(kv, m);
            if (rows - m == 3) score_all<3>(kv, m);
            if (rows - m == 2) score_all<2>(kv, m);
            if (rows - m == 1) score_all<1>(kv, m);
            for (m = 0; m < rows; m++) {
                A *to = partial(number, kv, m) + step.value_size;
                soften(m, to, to + 1);
            }
            for (m = 0; m < rows; m += 4) {
                const int64_t some = std::min<int64_t>(4, rows - m);
                A *to[4];
                for (int64_t n = 0; n < some; n++) to[n] = partial(number, kv, m + n);
                if (some == 4) weigh_all<4>(kv, m, to);
                if (some == 3) weigh_all<3>(kv, m, to);
                if (some == 2) weigh_all<2>(kv, m, to);
                if (some == 1) weigh_all<1>(kv, m, to);
            }
        }
    }
};

template <class T> void write_rows(const Step &step) {
    const T *k = static_cast<const T *>(step.k_new), *v = static_cast<const T *>(step.v_new);
    T *keys = static_cast<T *>(step.k_plane), *values = static_cast<T *>(step.v_plane);
#pragma omp parallel for num_threads(step.threads) if (step.tokens > 64)
    for (int64_t t = 0; t < step.tokens; t++) {
        const int64_t slot = step.write_slots[t];
        for (int64_t h = 0; h < step.kv_heads; h++) {
            std::memcpy(keys + slot * step.k_slot + h * step.head_size,
                        k + t * step.k_token + h * step.k_head, step.head_size * sizeof(T));
            if (v)
                std::memcpy(values + slot * step.v_slot + h * step.value_size,
                            v + t * step.v_token + h * step.v_head, step.value_size * sizeof(T));
        }
    }
}

// One query and head: its units' sums, in order, and the sink.
template <class T> void join(const Step &step, int64_t row, int64_t query, int64_t head) {
    using A = typename Wide<T>::type;
    const int64_t *facts = step.row + row * ROW;
    const int64_t size = step.value_size, first = facts[5], end = first + facts[6];
    const auto partial = [&](int64_t unit) {
        const int64_t at = step.partial_at[unit] + query * step.heads + head;
        return static_cast<A *>(step.partial) + at * (size + 2);
    };
    const A sink = step.sinks ? static_cast<const A *>(step.sinks)[head] : -INFINITY;
    A most = sink;
    for (int64_t unit = first; unit < end; unit++) most = std::max(most, partial(unit)[size]);
    A total = step.sinks ? exponential(sink - most) : 0;
    A *sums = partial(first);
    for (int64_t unit = first; unit < end; unit++) {
        const A *from = partial(unit);
        const A share = from[size] == -INFINITY && from[size + 1] == 0
                            ? 0 : exponential(from[size] - most);
        total += from[size + 1] * share;
        if (unit == first) {
#pragma omp simd
            for (int64_t i = 0; i < size; i++) sums[i] = sums[i] * share;
        } else {
#pragma omp simd
            for (int64_t i = 0; i < size; i++) sums[i] += from[i] * share;
        }
    }
    T *out = static_cast<T *>(step.out) + ((facts[0] + query) * step.heads + head) * size;
    for (int64_t i = 0; i < size; i++) out[i] = round_to(sums[i] / total, static_cast<T *>(nullptr));
}

// The slots of a unit's first `count` entries; beyond its end its last one again.
void find_slots(const Step &step, int64_t number, int64_t count, int64_t *slots) {
    const int64_t *unit = step.unit + number * 3;
    const int64_t *pages = step.table + step.row[unit[0] * ROW + 3] * step.table_width;
    for (int64_t i = 0; i < count; i++) {
        const int64_t entry = std::min(unit[1] + i, unit[2] - 1);
        slots[i] = pages[entry / step.page_size] * step.page_size + entry % step.page_size;
    }
}

// Where each thread's units begin: neighbours of about the same number of queries times entries.
std::vector<int64_t> shares(const Step &step) {
    std::vector<int64_t> ends(step.units), cuts(step.threads + 1, step.units);
    int64_t total = 0;
    for (int64_t u = 0; u < step.units; u++) {
        const int64_t *unit = step.unit + u * 3;
        ends[u] = total += (unit[2] - unit[1]) * step.row[unit[0] * ROW + 1];
    }
    cuts[0] = 0;
    for (int64_t share = 1; share < step.threads; share++) {
        const auto middle = [&](int64_t u) { return (ends[u] + (u ? ends[u - 1] : 0)) / 2; };
        int64_t u = cuts[share - 1];
        while (u < step.units && middle(u) * step.threads < total * share) u++;
        cuts[share] = u;
    }
    return cuts;
}

template <class T> void attend(const Step &step) {
    using A = typename Wide<T>::type;
    write_rows<T>(step);
    if (step.units == 0) return;
    int64_t most_entries = 0, most_queries = 0;
    for (int64_t u = 0; u < step.units; u++)
        most_entries = std::max(most_entries, step.unit[u * 3 + 2] - step.unit[u * 3 + 1]);
    for (int64_t r = 0; r < step.rows; r++)
        most_queries = std::max(most_queries, step.row[r * ROW + 1]);
    const int64_t group = step.heads / step.kv_heads;
    const int64_t width = (step.head_size + LANES<A> - 1) / LANES<A> * LANES<A>;
    const std::vector<int64_t> cuts = shares(step);
#pragma omp parallel num_threads(step.threads) if (step.units > 1)
    {
        std::vector<A> q(step.heads * most_queries * width);
        std::vector<A> scores(most_queries * group * most_entries);
        std::vector<int64_t> slots(most_entries), then(most_entries);
        int64_t ready = 0;
        // A team may be smaller than was asked for: then its members take several shares.
        for (int64_t share = omp_get_thread_num(); share < step.threads; share += omp_get_num_threads())
            for (int64_t u = cuts[share]; u < cuts[share + 1]; u++) {
                const int64_t *unit = step.unit + u * 3, *row = step.row + unit[0] * ROW;
                const int64_t entries = unit[2] - unit[1];
                find_slots(step, u, entries, slots.data());
                const bool more = u + 1 < cuts[share + 1];
                find_slots(step, more ? u + 1 : u, entries, then.data());
                Unit<T>{step, unit[0], unit[1], unit[2], row[0], row[1], row[2], row[4],
                        step.tree ? step.tree[unit[0]] : nullptr, group, width, q.data(),
                        scores.data(), slots.data(), then.data(), ready}
                    .run(u);
                ready = more ? entries : 0;
            }
#pragma omp barrier
#pragma omp for schedule(static)
        for (int64_t r = 0; r < step.rows; r++)
            for (int64_t i = 0; i < step.row[r * ROW + 1]; i++)
                for (int64_t h = 0; h < step.heads; h++) join<T>(step, r, i, h);
    }
}

}  // namespace

extern "C" {
int64_t interlock_step_bytes() { return sizeof(Step); }
void interlock_attend_bfloat16(const Step *step) { attend<BFloat16>(*step); }
void interlock_attend_float32(const Step *step) { attend<float>(*step); }
void interlock_attend_float64(const Step *step) { attend<double>(*step); }
}
