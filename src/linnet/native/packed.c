// Products with weights as `std.quant` stores them: bytes of E4M3, and halves of bytes with scales
// beside them. A row is widened where the first cache holds it, and met by all rows of x there.
#include "linear.h"
#include "ops.h"

enum { FP8, INT4_GROUPS, MXFP4 };

typedef uint32_t u8x32 __attribute__((vector_size(32)));

INLINE u8x32 bytes_at(const uint8_t *p) {
#if defined(__AVX2__)
    return (u8x32)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
#else
    u8x32 out;
    for (int j = 0; j < 8; j++) out[j] = p[j];
    return out;
#endif
}

// Eight halves of four bytes, the low half of each first.
INLINE u8x32 halves_at(const uint8_t *p) {
    uint32_t four;
    memcpy(&four, p, 4);
    u8x32 all = {four, four, four, four, four, four, four, four};
    return all >> (u8x32){0, 4, 8, 12, 16, 20, 24, 28} & 15;
}

// Floats whose exponent, in the bits of `size` above `mantissa` bits, counts from `lowest`, which is
// that of the subnormal numbers too: these are the normal ones without their leading 1.
INLINE v8 small_floats(u8x32 size, int mantissa, int lowest, u8x32 sign) {
    v8 value = (v8)((size << (23 - mantissa)) + ((uint32_t)(lowest + 126) << 23));
    v8 one = (v8)((size & 0) + ((uint32_t)(lowest + 126) << 23));
    u8x32 under = (u8x32)(size >> mantissa == 0);
    v8 less = (value - one) * 2;
    value = (v8)(((u8x32)less & under) | ((u8x32)value & ~under));
    return (v8)((u8x32)value | sign);
}

INLINE void keep_8(v8 value, float *out) { memcpy(out, &value, 32); }

// Numbers in few bits, rounded to what the language says that they are.
INLINE void round_all(int kind, float *x, long count) {
    if (kind == F32) return;
    for (long i = 0; i < count; i++) x[i] = rounded(kind, x[i]);
}

static void unpack_fp8(const Weight *w, long n, long k0, long k1, float *out) {
    const uint8_t *row = (const uint8_t *)w->w + n * w->ldw;
    float scale = get(w->scale_kind, w->scale + n * w->scale_step, 0);
    for (long k = k0; k < k1; k += 8) {
        uint8_t rest[8] = {0};
        float eight[8];
        if (k + 8 > k1) memcpy(rest, row + k, k1 - k);
        u8x32 b = bytes_at(k + 8 > k1 ? rest : row + k);
        v8 value = small_floats(b & 127, 3, -6, (b & 128) << 24) * scale;
        if (k + 8 <= k1) keep_8(value, out + k - k0);
        else keep_8(value, eight), memcpy(out + k - k0, eight, 4 * (k1 - k));
    }
}

static void unpack_int4_groups(const Weight *w, long n, long k0, long k1, float *out) {
    const uint8_t *row = (const uint8_t *)w->w + n * w->ldw;
    const uint8_t *zeros = (const uint8_t *)w->zero + n * w->zero_step;
    const char *scales = w->scale + n * w->scale_step;
    for (long k = k0; k < k1;) {
        long g = k / w->group, end = (g + 1) * w->group < k1 ? (g + 1) * w->group : k1;
        float scale = get(w->scale_kind, scales, g), zero = zeros[g];
        for (; k + 8 <= end && k % 2 == 0; k += 8) {
            v8 level = __builtin_convertvector((s8x32)halves_at(row + k / 2), v8) - zero;
            keep_8(level * scale, out + k - k0);
        }
        for (; k < end; k++) out[k - k0] = ((row[k / 2] >> (k % 2 * 4) & 15) - zero) * scale;
    }
    round_all(w->rounded, out, k1 - k0);
}

// Whole blocks of 32.
static void unpack_mxfp4(const Weight *w, long n, long k0, long k1, float *out) {
    const uint8_t *row = (const uint8_t *)w->w + n * w->ldw;
    const uint8_t *scales = (const uint8_t *)w->scale + n * w->scale_step;
    for (long k = k0; k < k1; k += 8) {
        int power = scales[k / 32];
        float scale = bits_f32((uint32_t)(power < 66 ? 66 : power > 190 ? 190 : power) << 23);
        u8x32 code = halves_at(row + k / 2);
        keep_8(small_floats(code & 7, 1, 0, (code & 8) << 28) * scale, out + k - k0);
    }
    round_all(w->rounded, out, k1 - k0);
}

static Unpack *const UNPACK[] = {unpack_fp8, unpack_int4_groups, unpack_mxfp4};
static __thread void *kept;
static __thread size_t held;

// x, its kind, row stride in bytes, m; w, its format, row stride in bytes, n, k; scales, their row
// stride in bytes, their kind; zero points, their row stride; numbers of a group; what the weight's
// numbers are rounded to; out, row stride in elements (its kind is x's).
void op_packed(const int64_t *a, int t, int threads) {
    const char *x = (const char *)a[0];
    int kind = a[1];
    long ldx = a[2], m = a[3], n = a[7], k = a[8], ldo = a[17], from, to, ld;
    Weight w = {
        .w = (const char *)a[4], .ldw = a[6], .scale = (const char *)a[9], .scale_step = a[10],
        .scale_kind = a[11], .zero = (const char *)a[12], .zero_step = a[13], .group = a[14],
        .rounded = a[15],
    };
    void *out = (void *)a[16];
    share(n, PANEL, t, threads, &from, &to);
    if (from >= to) return;
    if (m > FEW_ROWS && k > 0) {
        (m <= SOME_ROWS ? some_rows : many_rows)(kind, x, ldx, m, UNPACK[a[5]], &w, k, from, to, kind,
                                                 out, ldo);
        return;
    }
    const float *wide = wide_rows(kind, x, ldx, m, k, &ld);
    float *row = scratch(&kept, &held, 4 * k + 64), sums[FEW_ROWS];
    for (long i = from; i < to; i++) {
        UNPACK[a[5]](&w, i, 0, k, row);
        dot_rows(wide, ld, m, row, k, sums);
        for (long r = 0; r < m; r++) put(kind, out, r * ldo + i, sums[r]);
    }
}
