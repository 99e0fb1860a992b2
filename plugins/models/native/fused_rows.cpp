// What a decoder does to rows between its matrix products, each in one pass over memory: norms, the
// gate of an MLP, rotary embedding. Arithmetic is in fp32. Compiled for the machine it runs on; the
// caller is rows.py.
//
// Legend: T rows, E entries of a row, H heads, D head size, R rotated size.

#include <cmath>
#include <cstdint>
#include <cstring>

namespace {

struct BFloat16 { uint16_t bits; };

inline float wide(float x) { return x; }
inline float wide(BFloat16 x) {
    uint32_t bits = uint32_t(x.bits) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

inline void put(float &to, float x) { to = x; }
inline void put(BFloat16 &to, float x) {  // to nearest, ties to even; a NaN stays one
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    to.bits = uint16_t(x != x ? 0x7fc0u : rounded);
}

// exp within 2 units in the last place: exp(x) = 2^n exp(r), |r| <= ln(2) / 2, and r's Taylor series.
inline float exponential(float x) {
    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    float n = std::nearbyint(x * 1.44269504088896341f);
    float r = x - n * 0.693359375f + n * 2.12194440e-4f;
    float y = 1.0f / 5040;
    y = y * r + 1.0f / 720;
    y = y * r + 1.0f / 120;
    y = y * r + 1.0f / 24;
    y = y * r + 1.0f / 6;
    y = y * r + 0.5f;
    y = y * r + 1.0f;
    y = y * r + 1.0f;
    int32_t bits = (int32_t(n) + 127) << 23;
    float power;
    std::memcpy(&power, &bits, 4);
    return y * power;
}

template <class T>
void norm(const T *x, int64_t stride, const float *weight, T *out, int64_t rows, int64_t size,
          float eps, int64_t threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t t = 0; t < rows; ++t) {
        const T *from = x + t * stride;
        T *to = out + t * size;
        float squares = 0;
#pragma omp simd reduction(+ : squares)
        for (int64_t e = 0; e < size; ++e) squares += wide(from[e]) * wide(from[e]);
        float factor = 1.0f / std::sqrt(squares / float(size) + eps);
#pragma omp simd
        for (int64_t e = 0; e < size; ++e) put(to[e], wide(from[e]) * factor * weight[e]);
    }
}

template <class T>
void swiglu(const T *gate_up, int64_t stride, T *out, int64_t rows, int64_t size, int64_t threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t t = 0; t < rows; ++t) {
        const T *gate = gate_up + t * stride, *up = gate + size;
        T *to = out + t * size;
#pragma omp simd
        for (int64_t e = 0; e < size; ++e) {
            float g = wide(gate[e]);
            put(to[e], g / (1.0f + exponential(-g)) * wide(up[e]));
        }
    }
}

template <class T>
void rotate(const T *x, int64_t token, int64_t head, const float *cosines, const float *sines,
            T *out, int64_t rows, int64_t heads, int64_t size, int64_t turned, int64_t threads) {
    const int64_t half = turned / 2;
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t t = 0; t < rows; ++t) {
        const float *c = cosines + t * turned, *s = sines + t * turned;
        for (int64_t h = 0; h < heads; ++h) {
            const T *from = x + t * token + h * head;
            T *to = out + (t * heads + h) * size;
#pragma omp simd
            for (int64_t i = 0; i < half; ++i) {
                float a = wide(from[i]), b = wide(from[half + i]);
                put(to[i], a * c[i] + b * s[i]);
                put(to[half + i], b * c[half + i] + a * s[half + i]);
            }
            for (int64_t i = turned; i < size; ++i) to[i] = from[i];
        }
    }
}

}  // namespace

#define OF(NAME, T)                                                                               \
    extern "C" void interlock_norm_##NAME(const void *x, int64_t stride, const void *weight,      \
                                          void *out, int64_t rows, int64_t size, double eps,      \
                                          int64_t threads) {                                      \
        norm((const T *)x, stride, (const float *)weight, (T *)out, rows, size, float(eps),       \
             threads);                                                                            \
    }                                                                                             \
    extern "C" void interlock_swiglu_##NAME(const void *gate_up, int64_t stride, void *out,       \
                                            int64_t rows, int64_t size, int64_t threads) {        \
        swiglu((const T *)gate_up, stride, (T *)out, rows, size, threads);                        \
    }                                                                                             \
    extern "C" void interlock_rotate_##NAME(const void *x, int64_t token, int64_t head,           \
                                            const void *cosines, const void *sines, void *out,    \
                                            int64_t rows, int64_t heads, int64_t size,            \
                                            int64_t turned, int64_t threads) {                    \
        rotate((const T *)x, token, head, (const float *)cosines, (const float *)sines, (T *)out, \
               rows, heads, size, turned, threads);                                               \
    }

OF(bfloat16, BFloat16)
OF(float32, float)
