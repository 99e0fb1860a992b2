// A decoder's products of few rows, by weights in oneDNN's packed order, and what stands between two
// layers' attention in one parallel region. Compiled for the machine it runs on; the callers are
// few_rows.py and few_rows_layers.py.
//
// Such products are as fast as memory gives the weights: they are read once, in order, by all rows
// together, and asked for well before they are used. bf16 with AVX512_BF16 alone.
//
// The packed order (checked by few_rows.py) is [F / 64][E / 2][64][2]: for 64 outputs the pairs of
// inputs, one after the other. Legend: T rows, E inputs, F outputs.

#include <cstdint>

#if defined(__AVX512BF16__) && defined(__AVX512F__) && defined(__AVX512BW__)

#include <algorithm>
#include <immintrin.h>
#include <omp.h>

#include "rows.h"

namespace {

struct Product {
    const BFloat16 *weight, *bias;  // packed; [F] or null
    int64_t inputs, outputs;        // E, a multiple of 32; F, a multiple of 64
};

struct Layer {
    Product qkv, out, gate_up, down;
    const float *attention_norm, *mlp_norm;
    double attention_eps, mlp_eps;
};

struct Pass {
    BFloat16 *x, *normed;  // [T, hidden]: the residual stream, and scratch
    BFloat16 *qkv;         // [T, heads, head_size]
    BFloat16 *gate_up;     // [T, 2 * inner]
    BFloat16 *gated;       // [T, inner]
    int64_t rows, hidden, inner, heads, turned_heads, head_size, turned;
    int64_t threads;
};

constexpr int64_t BLOCK = 64, HALF = 32;   // outputs
constexpr int64_t MOST_ROWS = 256;         // of a call; their sums are on the stack
constexpr int TILE = 6;                    // rows whose sums fit into registers
constexpr int64_t CHUNK_PAIRS = 192;       // of inputs: 48 KiB of weights, near for all tiles
constexpr int64_t AHEAD_PAIRS = 128;       // that are on their way from memory, with one tile

// Sums of M rows and 16 V outputs over `pairs` pairs of inputs; asks for LINES cache lines a pair.
template <int M, int V, int LINES>
void add_tile(const BFloat16 *weight, const BFloat16 *x, int64_t x_row, float *sums, int64_t pairs,
              bool first, const char *ahead) {
    __m512 total[M][V];
    for (int m = 0; m < M; m++)
        for (int v = 0; v < V; v++)
            total[m][v] = first ? _mm512_setzero_ps() : _mm512_load_ps(sums + m * BLOCK + v * 16);
    for (int64_t k = 0; k < pairs; k++) {
        __m512bh w[V];
        for (int v = 0; v < V; v++)
            w[v] = (__m512bh)_mm512_loadu_si512(weight + k * 2 * BLOCK + v * 32);
        for (int line = 0; line < LINES; line++)
            _mm_prefetch(ahead + k * 4 * BLOCK + line * 64, _MM_HINT_T1);
        for (int m = 0; m < M; m++) {
            int32_t pair;
            std::memcpy(&pair, x + m * x_row + 2 * k, 4);
            const __m512bh both = (__m512bh)_mm512_set1_epi32(pair);
            for (int v = 0; v < V; v++) total[m][v] = _mm512_dpbf16_ps(total[m][v], both, w[v]);
        }
    }
    for (int m = 0; m < M; m++)
        for (int v = 0; v < V; v++) _mm512_store_ps(sums + m * BLOCK + v * 16, total[m][v]);
}

using AddTile = void (*)(const BFloat16 *, const BFloat16 *, int64_t, float *, int64_t, bool,
                         const char *);

template <int V, int LINES>
constexpr AddTile ADD[TILE] = {add_tile<1, V, LINES>, add_tile<2, V, LINES>, add_tile<3, V, LINES>,
                               add_tile<4, V, LINES>, add_tile<5, V, LINES>, add_tile<6, V, LINES>};

// The tiles of a chunk share its cache lines among them: each asks for `lines` of V a pair.
template <int V> AddTile tile_for(int64_t rows, int64_t lines) {
    if (lines == 0) return ADD<V, 0>[rows - 1];
    if (lines == 1) return ADD<V, 1>[rows - 1];
    if (lines == 2) return ADD<V, 2>[rows - 1];
    return ADD<V, V>[rows - 1];
}

// 16 V outputs from `at` on; adds what `out` holds already if `onto`.
template <int V>
void block(const Product &of, const BFloat16 *x, int64_t x_row, BFloat16 *out, int64_t rows,
           int64_t at, bool onto, float *sums) {
    const int64_t pairs = of.inputs / 2, tiles = (rows + TILE - 1) / TILE;
    const BFloat16 *weight = of.weight + at / BLOCK * BLOCK * of.inputs + at % BLOCK * 2;
    const int64_t chunk = tiles == 1 ? pairs : CHUNK_PAIRS, ahead = tiles == 1 ? AHEAD_PAIRS : chunk;
    const int64_t each = (V + tiles - 1) / tiles;  // lines
    for (int64_t k = 0; k < pairs; k += chunk) {
        const int64_t count = std::min(chunk, pairs - k);
        for (int64_t t = 0; t < tiles; t++) {
            const int64_t row = rows * t / tiles, end = rows * (t + 1) / tiles;
            const int64_t line = t * each;
            const char *next = reinterpret_cast<const char *>(weight + (k + ahead) * 2 * BLOCK);
            tile_for<V>(end - row, line < V ? each : 0)(
                weight + k * 2 * BLOCK, x + row * x_row + 2 * k, x_row, sums + row * BLOCK, count,
                k == 0, next + line * 64);
        }
    }
    for (int64_t t = 0; t < rows; t++)
        for (int v = 0; v < V; v++) {
            const int64_t f = at + v * 16;
            __m512 y = _mm512_load_ps(sums + t * BLOCK + v * 16);
            const auto add = [&](const BFloat16 *from) {
                const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(from));
                const __m512i both = _mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16);
                y = _mm512_add_ps(y, _mm512_castsi512_ps(both));
            };
            if (of.bias) add(of.bias + f);
            if (onto) add(out + t * of.outputs + f);
            const __m256i bits = (__m256i)_mm512_cvtneps_pbh(y);
            _mm256_storeu_si256(reinterpret_cast<__m256i *>(out + t * of.outputs + f), bits);
        }
}

// This thread's outputs of x @ weight.T + bias, added to `out` if `onto`. Few rows at a time.
void multiply(const Product &of, const BFloat16 *x, int64_t x_row, BFloat16 *out, int64_t rows,
              bool onto = false) {
    alignas(64) float sums[MOST_ROWS * BLOCK];
    const int64_t halves = of.outputs / HALF;
    const int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
    const int64_t end = halves * (thread + 1) / threads;
    for (int64_t half = halves * thread / threads; half < end;)
        if (half % 2 == 0 && half + 2 <= end) {
            block<4>(of, x, x_row, out, rows, half * HALF, onto, sums);
            half += 2;
        } else {
            block<2>(of, x, x_row, out, rows, half * HALF, onto, sums);
            half += 1;
        }
}

void norm(const Pass &pass, const float *weight, double eps) {
#pragma omp for schedule(static)
    for (int64_t t = 0; t < pass.rows; t++)
        norm_row(pass.x + t * pass.hidden, weight, pass.normed + t * pass.hidden, pass.hidden,
                 float(eps));
}

void gate(const Pass &pass) {
    const int64_t parts = omp_get_num_threads(), size = pass.inner;
#pragma omp for schedule(static)
    for (int64_t part = 0; part < parts; part++)
        for (int64_t t = 0; t < pass.rows; t++) {
            const int64_t from = size * part / parts, end = size * (part + 1) / parts;
            const BFloat16 *row = pass.gate_up + t * 2 * size + from;
            swiglu_row(row, row + size, pass.gated + t * size + from, end - from);
        }
}

void rotate(const Pass &pass, const float *cosines, const float *sines) {
#pragma omp for schedule(static)
    for (int64_t t = 0; t < pass.rows; t++)
        for (int64_t h = 0; h < pass.turned_heads; h++) {
            BFloat16 *head = pass.qkv + (t * pass.heads + h) * pass.head_size;
            rotate_head(head, cosines + t * pass.turned, sines + t * pass.turned, head, pass.turned);
        }
}

}  // namespace

extern "C" {
int64_t interlock_most_few_rows() { return MOST_ROWS; }

// Whether `packed` is the weight [outputs, 2 * pairs] in the order above; a word is a pair of inputs.
int64_t interlock_is_packed(const uint32_t *packed, const uint32_t *weight, int64_t outputs,
                            int64_t pairs, int64_t threads) {
    constexpr int64_t LINE = 16;  // words
    uint32_t wrong = 0;
#pragma omp parallel for num_threads(threads) reduction(| : wrong)
    for (int64_t block = 0; block < outputs / BLOCK; block++)
        for (int64_t k = 0; k < pairs; k += LINE)
            for (int64_t f = 0; f < BLOCK; f++)
                for (int64_t i = k; i < k + LINE; i++)
                    wrong |= packed[(block * pairs + i) * BLOCK + f] ^
                             weight[(block * BLOCK + f) * pairs + i];
    return wrong == 0;
}

void interlock_multiply_few(const Product *of, const void *x, int64_t x_row, void *out, int64_t rows,
                            int64_t threads) {
#pragma omp parallel num_threads(threads)
    multiply(*of, static_cast<const BFloat16 *>(x), x_row, static_cast<BFloat16 *>(out), rows);
}

// From the attention of `done` (null before the first layer) to that of `next` (null after the
// last): what it gave is `attended`, [T, inputs of done->out].
void interlock_between(const Pass *given, const Layer *done, const void *attended, const Layer *next,
                       const float *cosines, const float *sines) {
    const Pass &pass = *given;
#pragma omp parallel num_threads(pass.threads)
    {
        if (done) {
            multiply(done->out, static_cast<const BFloat16 *>(attended), done->out.inputs, pass.x,
                     pass.rows, true);
#pragma omp barrier
            norm(pass, done->mlp_norm, done->mlp_eps);
            multiply(done->gate_up, pass.normed, pass.hidden, pass.gate_up, pass.rows);
#pragma omp barrier
            gate(pass);
            multiply(done->down, pass.gated, pass.inner, pass.x, pass.rows, true);
#pragma omp barrier
        }
        if (next) {
            norm(pass, next->attention_norm, next->attention_eps);
            multiply(next->qkv, pass.normed, pass.hidden, pass.qkv, pass.rows);
#pragma omp barrier
            rotate(pass, cosines, sines);
        }
    }
}
}

#else

extern "C" {
int64_t interlock_most_few_rows() { return 0; }
}

#endif
