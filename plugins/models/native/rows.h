// What a decoder does to one row of entries: norms, gates, rotary embedding. Arithmetic is in fp32.

#pragma once

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
inline void norm_row(const T *from, const float *weight, T *to, int64_t size, float eps) {
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t e = 0; e < size; ++e) squares += wide(from[e]) * wide(from[e]);
    float factor = 1.0f / std::sqrt(squares / float(size) + eps);
#pragma omp simd
    for (int64_t e = 0; e < size; ++e) put(to[e], wide(from[e]) * factor * weight[e]);
}

template <class T> inline void swiglu_row(const T *gate, const T *up, T *to, int64_t size) {
#pragma omp simd
    for (int64_t e = 0; e < size; ++e) {
        float g = wide(gate[e]);
        put(to[e], g / (1.0f + exponential(-g)) * wide(up[e]));
    }
}

// The first `turned` entries of a head; `to` may be `from`. c and s are the cosines and signed sines.
template <class T>
inline void rotate_head(const T *from, const float *c, const float *s, T *to, int64_t turned) {
    const int64_t half = turned / 2;
#pragma omp simd
    for (int64_t i = 0; i < half; ++i) {
        float a = wide(from[i]), b = wide(from[half + i]);
        put(to[i], a * c[i] + b * s[i]);
        put(to[half + i], b * c[half + i] + a * s[half + i]);
    }
}

}  // namespace
