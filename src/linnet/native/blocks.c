// Products with weights in blocks of few bits, read as they lie.
//
// Few rows: x becomes 16-bit numbers with a scale for each unit of 32, so that a unit is a sum of
// integers, or stays in f32 where that is not exact enough. Many rows: panels of w are widened and
// multiplied as dense weights are.
#include "linear.h"

#include "ops.h"

enum { Q4_0, Q4_1, Q8_0, Q6_K, FORMATS };

#define UNIT 32
#define MANY 12  // more rows of x than this are worth widened panels

typedef int16_t s16 __attribute__((vector_size(32)));
typedef int32_t s32 __attribute__((vector_size(32)));

// ---------------------------------------------------------------- a unit: 32 numbers of a row

// The numbers of a unit are q * scale + least, with least = 0 where a format has none.
typedef struct { s16 low, high; } Numbers;  // the first 16, the last 16

INLINE uint16_t half_at(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, 2);
    return h;
}

INLINE const uint8_t *unit_at(int format, const uint8_t *row, long u) {
    switch (format) {
        case Q4_0: return row + 18 * u;
        case Q4_1: return row + 20 * u;
        case Q8_0: return row + 34 * u;
        default: return row + 210 * (u / 8);
    }
}

INLINE Numbers nibbles_of(const uint8_t *p) {
    Numbers out;
#if defined(__AVX2__)
    __m256i q = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)p));
    out.low = (s16)_mm256_and_si256(q, _mm256_set1_epi16(15));
    out.high = (s16)_mm256_srli_epi16(q, 4);
#else
    for (int j = 0; j < 16; j++) {
        out.low[j] = p[j] & 15;
        out.high[j] = p[j] >> 4;
    }
#endif
    return out;
}

INLINE Numbers bytes_of(const uint8_t *p) {
    Numbers out;
#if defined(__AVX2__)
    out.low = (s16)_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p));
    out.high = (s16)_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(p + 16)));
#else
    for (int j = 0; j < 16; j++) {
        out.low[j] = (int8_t)p[j];
        out.high[j] = (int8_t)p[16 + j];
    }
#endif
    return out;
}

// Six bits of each number, times the 8-bit scale of each 16.
INLINE Numbers sixes_of(const uint8_t *p, long u) {
    int part = u & 3, half = (u & 7) >> 2;
    const uint8_t *four = p + 64 * half + 32 * (part & 1), *two = p + 128 + 32 * half;
    const int8_t *scale = (const int8_t *)p + 192 + 2 * (u & 7);
    Numbers out;
#if defined(__AVX2__)
    __m256i q = _mm256_loadu_si256((const __m256i *)four), low = _mm256_set1_epi8(15);
    __m256i h = _mm256_loadu_si256((const __m256i *)two), high = _mm256_set1_epi8(48);
    q = _mm256_and_si256(part < 2 ? q : _mm256_srli_epi16(q, 4), low);
    h = part == 0   ? _mm256_slli_epi16(h, 4)
        : part == 1 ? _mm256_slli_epi16(h, 2)
        : part == 2 ? h
                    : _mm256_srli_epi16(h, 2);
    q = _mm256_or_si256(q, _mm256_and_si256(h, high));
    q = _mm256_sub_epi8(q, _mm256_set1_epi8(32));
    out.low = (s16)_mm256_cvtepi8_epi16(_mm256_castsi256_si128(q));
    out.high = (s16)_mm256_cvtepi8_epi16(_mm256_extracti128_si256(q, 1));
#else
    int by = part < 2 ? 0 : 4;
    for (int j = 0; j < 16; j++) {
        out.low[j] = ((four[j] >> by & 15) | (two[j] >> 2 * part & 3) << 4) - 32;
        out.high[j] = ((four[16 + j] >> by & 15) | (two[16 + j] >> 2 * part & 3) << 4) - 32;
    }
#endif
    out.low *= scale[0];
    out.high *= scale[1];
    return out;
}

INLINE Numbers numbers_of(int format, const uint8_t *row, long u) {
    const uint8_t *p = unit_at(format, row, u);
    switch (format) {
        case Q4_0: return nibbles_of(p + 2);
        case Q4_1: return nibbles_of(p + 4);
        case Q8_0: return bytes_of(p + 2);
        default: return sixes_of(p, u);
    }
}

INLINE float scale_of(int format, const uint8_t *row, long u) {
    return half_to_f32(half_at(unit_at(format, row, u) + (format == Q6_K ? 208 : 0)));
}

INLINE float least_of(int format, const uint8_t *row, long u) {
    if (format == Q4_1) return half_to_f32(half_at(unit_at(format, row, u) + 2));
    return format == Q4_0 ? -8 * scale_of(format, row, u) : 0;
}

// ---------------------------------------------------------------- in f32

typedef v8 v8_at __attribute__((aligned(4), may_alias));
typedef int16_t s8x16 __attribute__((vector_size(16)));

INLINE void widen_16(s16 q, float scale, float least, float *out) {
    s8x16 parts[2];
    memcpy(parts, &q, 32);
    for (int i = 0; i < 2; i++) {
        v8 wide = __builtin_convertvector(__builtin_convertvector(parts[i], s8x32), v8);
        wide = wide * scale + least;
        memcpy(out + 8 * i, &wide, 32);
    }
}

// Columns k0 to k1, whole units, as f32. Every product is exact in f32, and a sum rounds once.
INLINE void unpack(int format, const void *row, long k0, long k1, float *out) {
    for (long u = k0 / UNIT; u < k1 / UNIT; u++, out += UNIT) {
        Numbers q = numbers_of(format, row, u);
        float scale = scale_of(format, row, u), least = least_of(format, row, u);
        widen_16(q.low, scale, least, out);
        widen_16(q.high, scale, least, out + 16);
    }
}

static void unpack_q4_0(const Weight *w, long n, long k0, long k1, float *out) {
    unpack(Q4_0, w->w + n * w->ldw, k0, k1, out);
}
static void unpack_q4_1(const Weight *w, long n, long k0, long k1, float *out) {
    unpack(Q4_1, w->w + n * w->ldw, k0, k1, out);
}
static void unpack_q8_0(const Weight *w, long n, long k0, long k1, float *out) {
    unpack(Q8_0, w->w + n * w->ldw, k0, k1, out);
}
static void unpack_q6_k(const Weight *w, long n, long k0, long k1, float *out) {
    unpack(Q6_K, w->w + n * w->ldw, k0, k1, out);
}
static Unpack *const UNPACK[] = {unpack_q4_0, unpack_q4_1, unpack_q8_0, unpack_q6_k};

// ---------------------------------------------------------------- few rows

INLINE float sum_of_8(v8 v) {
    v4 four = __builtin_shufflevector(v, v, 0, 1, 2, 3) + __builtin_shufflevector(v, v, 4, 5, 6, 7);
    v4 two = four + __builtin_shufflevector(four, four, 2, 3, 0, 1);
    return two[0] + two[1];
}

// What meets a unit's scale and least: 1 and the sum of x.
static void sum_units(int format, const float *x, long k, float *pairs) {
    for (long u = 0; u < k / UNIT; u++, x += UNIT) {
        v8 total = {0};
        for (int j = 0; j < UNIT; j += 8) total += *(const v8_at *)(x + j);
        pairs[2 * u] = 1;
        pairs[2 * u + 1] = (format == Q4_0 ? -8 : 1) * sum_of_8(total);
    }
}

// A row of x as 16-bit numbers, with what meets a unit's scale and least.
static void shrink(int format, const float *x, long k, int16_t *q, float *pairs) {
    for (long u = 0; u < k / UNIT; u++, x += UNIT, q += UNIT) {
        v8 largest = {0}, none = {0};
        for (int j = 0; j < UNIT; j += 8) {
            v8 own = *(const v8_at *)(x + j), size = (v8)((s8x32)own & 0x7fffffff);
            s8x32 more = size > largest;
            largest = (v8)(((s8x32)size & more) | ((s8x32)largest & ~more));
            none += own * 0;  // what is no number makes the scale none
        }
        float top = 0;
        for (int j = 0; j < 8; j++) top = largest[j] > top ? largest[j] : top;
        float scale = top / 32767, back = top > 0 ? 32767 / top : 0;
        s8x32 total = {0};
        for (int j = 0; j < UNIT; j += 8) {
            v8 level = *(const v8_at *)(x + j) * back;
            v8 half = (v8)(((s8x32)level & (int32_t)0x80000000) | 0x3f000000);
            s8x32 whole = __builtin_convertvector(level + half, s8x32);
            s8x16 narrow = __builtin_convertvector(whole, s8x16);
            memcpy(q + j, &narrow, 16);
            total += whole;
        }
        scale += sum_of_8(none);
        pairs[2 * u] = scale;
        pairs[2 * u + 1] =
            (format == Q4_0 ? -8 : 1) * scale * sum_of_8(__builtin_convertvector(total, v8));
    }
}

// The sums of products of pairs of 16-bit numbers: eight of them.
INLINE s32 products(Numbers q, const int16_t *x) {
#if defined(__AVX2__)
    __m256i low = _mm256_loadu_si256((const __m256i *)x);
    __m256i high = _mm256_loadu_si256((const __m256i *)(x + 16));
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
    __m256i sums = _mm256_madd_epi16((__m256i)q.low, low);
    return (s32)_mm256_dpwssd_epi32(sums, (__m256i)q.high, high);
#else
    return (s32)_mm256_add_epi32(_mm256_madd_epi16((__m256i)q.low, low),
                                 _mm256_madd_epi16((__m256i)q.high, high));
#endif
#else
    s32 sums;
    for (int j = 0; j < 8; j++)
        sums[j] = q.low[2 * j] * x[2 * j] + q.low[2 * j + 1] * x[2 * j + 1] +
                  q.high[2 * j] * x[16 + 2 * j] + q.high[2 * j + 1] * x[17 + 2 * j];
    return sums;
#endif
}

// A unit's scale and least as the first two of four: least is what meets the sum of x.
INLINE v4 scales(int format, const uint8_t *row, long u) {
#if defined(__F16C__)
    const uint8_t *p = unit_at(format, row, u);
    if (format == Q4_1) {
        int both;
        memcpy(&both, p, 4);
        return (v4)_mm_cvtph_ps(_mm_cvtsi32_si128(both));
    }
    return (v4)_mm_cvtph_ps(_mm_set1_epi16((short)half_at(p + (format == Q6_K ? 208 : 0))));
#else
    float scale = scale_of(format, row, u);
    return (v4){scale, format == Q4_1 ? least_of(format, row, u) : scale};
#endif
}

INLINE v8 wide_products(Numbers q, const float *x) {
    s8x16 parts[4];
    memcpy(parts, &q, 64);
    v8 sums = {0};
    for (int i = 0; i < 4; i++)
        sums += __builtin_convertvector(__builtin_convertvector(parts[i], s8x32), v8) *
                *(const v8_at *)(x + 8 * i);
    return sums;
}

// One unit of w times that of `rows` rows of x, added to the sums.
INLINE void unit_dot(int format, int wide, int rows, const void *x, const float *pairs, long ldx,
                     long units, const uint8_t *w, long u, v8 *sums, v4 *least) {
    Numbers q = numbers_of(format, w, u);
    v4 own = scales(format, w, u);
    for (int r = 0; r < rows; r++) {
        long at = r * ldx + u * UNIT;
        v8 dot;
        if (wide) dot = wide_products(q, (const float *)x + at);
        else dot = __builtin_convertvector(products(q, (const int16_t *)x + at), v8);
        const float *pair = pairs + 2 * (r * units + u);
        v4 both = own * (v4){pair[0], pair[1]};
        sums[r] += dot * __builtin_shufflevector(both, both, 0, 0, 0, 0, 0, 0, 0, 0);
        if (format == Q4_0 || format == Q4_1) least[r] += both;
    }
}

// A row of w times `rows` rows of x: 16-bit numbers, or f32 where `wide`. Two units at a time, whose
// sums need not wait for each other.
INLINE void unit_dots(int format, int wide, int rows, const void *x, const float *pairs, long ldx,
                      long units, const uint8_t *w, float *out) {
    v8 sums[2][4] = {0};
    v4 least[2][4] = {0};
    long u = 0;
    for (; u + 2 <= units; u += 2) {
        // The rows are short: the processor would look for the next ones too late.
        __builtin_prefetch(unit_at(format, w, u) + 2048);
        unit_dot(format, wide, rows, x, pairs, ldx, units, w, u, sums[0], least[0]);
        unit_dot(format, wide, rows, x, pairs, ldx, units, w, u + 1, sums[1], least[1]);
    }
    if (u < units) unit_dot(format, wide, rows, x, pairs, ldx, units, w, u, sums[0], least[0]);
    for (int r = 0; r < rows; r++)
        out[r] = sum_of_8(sums[0][r] + sums[1][r]) + (least[0][r] + least[1][r])[1];
}

INLINE void few_units(int format, int wide, const void *x, long ldx, const float *pairs, long m,
                      const char *w, long ldw, long units, long from, long to, int out_kind,
                      void *out, long ldo) {
    for (long n = from; n < to; n++)
        for (long r = 0; r < m; r += 4) {
            int rows = m - r < 4 ? m - r : 4;
            float sums[4];
            const uint8_t *at = (const uint8_t *)w + n * ldw;
            const void *own = (const char *)x + r * ldx * (wide ? 4 : 2);
            const float *pair = pairs + 2 * r * units;
#define DOTS(R) \
    case R: unit_dots(format, wide, R, own, pair, ldx, units, at, sums); break;
            switch (rows) { DOTS(1) DOTS(2) DOTS(3) DOTS(4) }
            for (int i = 0; i < rows; i++) put(out_kind, out, (r + i) * ldo + n, sums[i]);
        }
}

// ---------------------------------------------------------------- the ops

static __thread void *kept;
static __thread size_t held;

// x, its kind, row stride in bytes, m; w, its format, row stride in bytes, n, k; out, row stride in
// elements (its kind is x's); whether few rows of x stay in f32.
void op_blocks(const int64_t *a, int t, int threads) {
    const char *x = (const char *)a[0], *w = (const char *)a[4];
    int kind = a[1], format = a[5], wide = a[11];
    long ldx = a[2], m = a[3], ldw = a[6], n = a[7], k = a[8], ldo = a[10], from, to, ld;
    void *out = (void *)a[9];
    share(n, 16, t, threads, &from, &to);
    if (from >= to) return;
    if (m > MANY) {
        Weight weight = {.w = w, .ldw = ldw};
        (m <= SOME_ROWS ? some_rows : many_rows)(kind, x, ldx, m, UNPACK[format], &weight, k, from, to,
                                                 kind, out, ldo);
        return;
    }
    const float *rows = wide_rows(kind, x, ldx, m, k, &ld);
    const void *own = rows;
    long units = k / UNIT;
    float *pairs = scratch(&kept, &held, m * (8 * units + 2 * k) + 64);
    if (wide) {
        for (long r = 0; r < m; r++) sum_units(format, rows + r * ld, k, pairs + 2 * r * units);
    } else {
        int16_t *q = (int16_t *)(pairs + 2 * m * units);
        for (long r = 0; r < m; r++)
            shrink(format, rows + r * ld, k, q + r * k, pairs + 2 * r * units);
        own = q, ld = k;
    }
#define FEW(F, WIDE) few_units(F, WIDE, own, ld, pairs, m, w, ldw, units, from, to, kind, out, ldo)
    switch (format * 2 + wide) {
        case Q4_0 * 2: FEW(Q4_0, 0); break;
        case Q4_1 * 2: FEW(Q4_1, 0); break;
        case Q8_0 * 2: FEW(Q8_0, 0); break;
        case Q6_K * 2: FEW(Q6_K, 0); break;
        case Q4_0 * 2 + 1: FEW(Q4_0, 1); break;
        case Q4_1 * 2 + 1: FEW(Q4_1, 1); break;
        case Q8_0 * 2 + 1: FEW(Q8_0, 1); break;
        default: FEW(Q6_K, 1);
    }
}

// Rows of a table by their numbers: ids (i64, in range), how many; w, its format, row stride in
// bytes, k; out, its kind.
void op_block_rows(const int64_t *a, int t, int threads) {
    const int64_t *ids = (const int64_t *)a[0];
    Weight w = {.w = (const char *)a[2], .ldw = a[4]};
    long k = a[5], from, to;
    share(a[1], 1, t, threads, &from, &to);
    float *row = scratch(&kept, &held, 4 * k);
    for (long i = from; i < to; i++) {
        UNPACK[a[3]](&w, ids[i], 0, k, row);
        for (long j = 0; j < k; j += VW) store(a[7], (void *)a[6], i * k + j, load(F32, row, j));
    }
}
