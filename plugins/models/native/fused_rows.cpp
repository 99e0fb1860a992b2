// What a decoder does to rows between its matrix products, each in one pass over memory: norms, the
// gate of an MLP, rotary embedding. Arithmetic is in fp32. Compiled for the machine it runs on; the
// caller is rows.py.
//
// Legend: T rows, E entries of a row, H heads, D head size, R rotated size.

#include "rows.h"

namespace {

template <class T>
void norm(const T *x, int64_t stride, const float *weight, T *out, int64_t rows, int64_t size,
          float eps, int64_t threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t t = 0; t < rows; ++t)
        norm_row(x + t * stride, weight, out + t * size, size, eps);
}

template <class T>
void swiglu(const T *gate_up, int64_t stride, T *out, int64_t rows, int64_t size, int64_t threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t t = 0; t < rows; ++t) {
        const T *gate = gate_up + t * stride;
        swiglu_row(gate, gate + size, out + t * size, size);
    }
}

template <class T>
void rotate(const T *x, int64_t token, int64_t head, const float *cosines, const float *sines,
            T *out, int64_t rows, int64_t heads, int64_t size, int64_t turned, int64_t threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t t = 0; t < rows; ++t) {
        const float *c = cosines + t * turned, *s = sines + t * turned;
        for (int64_t h = 0; h < heads; ++h) {
            const T *from = x + t * token + h * head;
            T *to = out + (t * heads + h) * size;
            rotate_head(from, c, s, to, turned);
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
