// Vectors of f32 as wide as the machine's, and rows of weights and activations as such vectors.
#pragma once
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__F16C__) || defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define VW 16
#elif defined(__AVX__)
#define VW 8
#else
#define VW 4
#endif

#define INLINE static inline __attribute__((always_inline, unused))

typedef float vf __attribute__((vector_size(4 * VW)));
typedef int32_t vi __attribute__((vector_size(4 * VW)));
typedef uint32_t vu __attribute__((vector_size(4 * VW)));
typedef float vf_at __attribute__((vector_size(4 * VW), aligned(4), may_alias));
typedef uint16_t vh __attribute__((vector_size(2 * VW)));
typedef uint16_t vh_at __attribute__((vector_size(2 * VW), aligned(2), may_alias));

// How elements are stored; the numbers are those of native/__init__.py.
enum { F32 = 0, BF16 = 1, F16 = 2 };

INLINE vf splat(float x) { return x - (vf){0}; }

typedef float v4 __attribute__((vector_size(16)));
typedef float v8 __attribute__((vector_size(32)));
typedef int32_t s8x32 __attribute__((vector_size(32)));

INLINE float sum_of(vf v) {
#if VW == 16
    v8 half = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
              __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
#elif VW == 8
    v8 half = v;
#endif
#if VW >= 8
    v4 four = __builtin_shufflevector(half, half, 0, 1, 2, 3) +
              __builtin_shufflevector(half, half, 4, 5, 6, 7);
#else
    v4 four = v;
#endif
    v4 two = four + __builtin_shufflevector(four, four, 2, 3, 0, 1);
    return two[0] + two[1];
}

INLINE long size_of(int kind) { return kind == F32 ? 4 : 2; }

INLINE float bits_f32(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

INLINE uint32_t f32_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

INLINE float half_to_f32(uint16_t h) {
#if defined(__F16C__)
    return _cvtsh_ss(h);
#else
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, body = h & 0x7fff;
    if (body >= 0x7c00) return bits_f32(sign | 0x7f800000 | (body & 0x3ff) << 13);
    // The exponent is moved by a product, which is right for subnormal numbers too.
    return bits_f32(sign | f32_bits(bits_f32(body << 13) * 0x1p112f));
#endif
}

INLINE uint16_t f32_to_half(float x) {
#if defined(__F16C__)
    return _cvtss_sh(x, 0);
#else
    uint32_t bits = f32_bits(x), sign = bits >> 16 & 0x8000, body = bits & 0x7fffffff;
    if (body > 0x7f800000) return sign | 0x7e00;
    if (body >= 0x47800000) return sign | 0x7c00;
    if (body < 0x38800000) {  // below the normal numbers: adding 0.5 leaves the last bits
        float shifted = bits_f32(body) + 0.5f;
        return sign | (f32_bits(shifted) - 0x3f000000);
    }
    body += 0xfff + (body >> 13 & 1);
    return sign | ((body - 0x38000000) >> 13);
#endif
}

INLINE uint16_t f32_to_bf16(float x) {
    uint32_t bits = f32_bits(x);
    if ((bits & 0x7fffffff) > 0x7f800000) return bits >> 16 | 0x40;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

INLINE float get(int kind, const void *p, long i) {
    switch (kind) {
        case F32: return ((const float *)p)[i];
        case BF16: return bits_f32((uint32_t)((const uint16_t *)p)[i] << 16);
        default: return half_to_f32(((const uint16_t *)p)[i]);
    }
}

INLINE void put(int kind, void *p, long i, float x) {
    switch (kind) {
        case F32: ((float *)p)[i] = x; break;
        case BF16: ((uint16_t *)p)[i] = f32_to_bf16(x); break;
        default: ((uint16_t *)p)[i] = f32_to_half(x);
    }
}

// What storing x and reading it again gives.
INLINE float rounded(int kind, float x) {
    switch (kind) {
        case F32: return x;
        case BF16: return bits_f32((uint32_t)f32_to_bf16(x) << 16);
        default: return half_to_f32(f32_to_half(x));
    }
}

INLINE vf load(int kind, const void *p, long i) {
    switch (kind) {
        case F32: return *(const vf_at *)((const float *)p + i);
        case BF16: {
            const uint16_t *h = (const uint16_t *)p + i;
#if defined(__AVX512F__)
            vu wide = (vu)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)h));
#elif defined(__AVX2__)
            vu wide = (vu)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)h));
#else
            vu wide = __builtin_convertvector(*(const vh_at *)h, vu);
#endif
            return (vf)(wide << 16);
        }
        default: {
            const uint16_t *h = (const uint16_t *)p + i;
#if defined(__AVX512F__)
            return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)h));
#elif defined(__F16C__)
            return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)h));
#else
            vf out;
            for (int j = 0; j < VW; j++) out[j] = half_to_f32(h[j]);
            return out;
#endif
        }
    }
}

INLINE void store(int kind, void *p, long i, vf x) {
    switch (kind) {
        case F32: *(vf_at *)((float *)p + i) = x; break;
        case BF16: {
            vu bits = (vu)x;
            vu up = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
            vu nan = (vu)((bits & 0x7fffffff) > 0x7f800000);
            up = (nan & (bits >> 16 | 0x40)) | (~nan & up);
            *(vh_at *)((uint16_t *)p + i) = __builtin_convertvector(up, vh);
            break;
        }
        default: {
            uint16_t *h = (uint16_t *)p + i;
#if defined(__AVX512F__)
            _mm256_storeu_si256((__m256i *)h, _mm512_cvtps_ph((__m512)x, 0));
#elif defined(__F16C__)
            _mm_storeu_si128((__m128i *)h, _mm256_cvtps_ph((__m256)x, 0));
#else
            for (int j = 0; j < VW; j++) h[j] = f32_to_half(x[j]);
#endif
        }
    }
}

// The larger one, b where either is NaN.
INLINE vf vmax(vf a, vf b) {
    vi more = a > b;
    return (vf)(((vi)a & more) | ((vi)b & ~more));
}

// exp by powers of two and a polynomial (Cephes, Moshier): within 2 ulp; below -87.3 it is 0, and of
// NaN it is NaN.
INLINE vf vexp(vf x) {
    vi under = x < splat(-87.3f);
    vf low = splat(-87.3f), high = splat(88.7f);
    x = vmax(low, x);  // in this order, which keeps NaN
    vi over = x > high;
    x = (vf)(((vi)high & over) | ((vi)x & ~over));
    vf turns = x * 1.44269504088896341f;
    const vf magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
    vf whole = (turns + magic) - magic;
    vf r = x - whole * 0.693359375f - whole * -2.12194440e-4f;
    vf p = splat(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    vf y = p * (r * r) + r + 1.0f;
    vi power = (__builtin_convertvector(whole, vi) + 127) << 23;
    y = y * (vf)power;
    return (vf)((vi)y & ~under);
}

// Memory for `scratch`: what *kept was is gone, what it is now is freed when the thread ends.
void grow(void **kept, size_t *held, size_t bytes);

// Memory of a thread's own, kept for the next call.
INLINE void *scratch(void **kept, size_t *held, size_t bytes) {
    if (bytes > *held) grow(kept, held, bytes);
    return *kept;
}

// The part [*from, *to) of n things that thread t of `threads` does, in multiples of `step`.
INLINE void share(long n, long step, int t, int threads, long *from, long *to) {
    long parts = (n + step - 1) / step;
    *from = parts * t / threads * step;
    *to = parts * (t + 1) / threads * step;
    if (*to > n) *to = n;
    if (*from > n) *from = n;
}

// Every op is called by all threads of a team, each with its own t; `a` are its arguments.
typedef void Op(const int64_t *a, int t, int threads);

INLINE float float_of(int64_t bits) { return bits_f32((uint32_t)bits); }
