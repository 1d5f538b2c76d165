// Norms, rotations, activations and lookups: a row at a time, in f32 and rounded once unless said.
#include "ops.h"

// x, out, weight, kind, rows, width, eps. The quotient is rounded before the weight multiplies it.
INLINE void norm_row(int kind, const void *x, void *out, const void *weight, long width, float eps) {
    vf squares = {0};
    float rest = 0;
    long i = 0;
    for (; i + VW <= width; i += VW) {
        vf v = load(kind, x, i);
        squares += v * v;
    }
    for (; i < width; i++) rest += get(kind, x, i) * get(kind, x, i);
    float scale = 1.0f / sqrtf((sum_of(squares) + rest) / width + eps);
    uint16_t held[VW];
    for (i = 0; i + VW <= width; i += VW) {
        vf v = load(kind, x, i) * scale;
        if (kind != F32) {
            store(kind, held, 0, v);
            v = load(kind, held, 0);
        }
        store(kind, out, i, v * load(kind, weight, i));
    }
    for (; i < width; i++)
        put(kind, out, i, rounded(kind, get(kind, x, i) * scale) * get(kind, weight, i));
}

void op_rms_norm(const int64_t *a, int t, int threads) {
    int kind = a[3];
    long width = a[5], bytes = width * size_of(kind), from, to;
    float eps = float_of(a[6]);
    share(a[4], 1, t, threads, &from, &to);
    for (long r = from; r < to; r++) {
        const char *x = (const char *)a[0] + r * bytes;
        char *out = (char *)a[1] + r * bytes;
        switch (kind) {
            case F32: norm_row(F32, x, out, (void *)a[2], width, eps); break;
            case BF16: norm_row(BF16, x, out, (void *)a[2], width, eps); break;
            default: norm_row(F16, x, out, (void *)a[2], width, eps);
        }
    }
}

INLINE void turn_row(int kind, const char *x, char *out, const char *cosines, const char *sines,
                     long width) {
    long half = width / 2, i = 0;
    for (; i + VW <= half; i += VW) {
        vf low = load(kind, x, i), high = load(kind, x, half + i);
        store(kind, out, i, low * load(kind, cosines, i) - high * load(kind, sines, i));
        store(kind, out, half + i,
              high * load(kind, cosines, half + i) + low * load(kind, sines, half + i));
    }
    for (; i < half; i++) {
        float low = get(kind, x, i), high = get(kind, x, half + i);
        put(kind, out, i, low * get(kind, cosines, i) - high * get(kind, sines, i));
        put(kind, out, half + i,
            high * get(kind, cosines, half + i) + low * get(kind, sines, half + i));
    }
}

// x with its strides in bytes for rows, heads and positions; out [rows, heads, positions, width];
// cosines, sines [positions, width]; kind, rows, heads, positions, width.
void op_rope(const int64_t *a, int t, int threads) {
    int kind = a[7];
    long heads = a[9], positions = a[10], width = a[11], bytes = width * size_of(kind), from, to;
    share(a[8] * heads * positions, 1, t, threads, &from, &to);
    for (long r = from; r < to; r++) {
        long s = r % positions, h = r / positions % heads, b = r / positions / heads;
        const char *x = (const char *)a[0] + b * a[1] + h * a[2] + s * a[3];
        char *out = (char *)a[4] + r * bytes;
        const char *cosines = (const char *)a[5] + s * bytes, *sines = (const char *)a[6] + s * bytes;
        switch (kind) {
            case F32: turn_row(F32, x, out, cosines, sines, width); break;
            case BF16: turn_row(BF16, x, out, cosines, sines, width); break;
            default: turn_row(F16, x, out, cosines, sines, width);
        }
    }
}

INLINE void gate_row(int kind, const char *gate, const char *up, char *out, long width) {
    long i = 0;
    for (; i + VW <= width; i += VW) {
        vf g = load(kind, gate, i);
        store(kind, out, i, g / (1.0f + vexp(-g)) * load(kind, up, i));
    }
    for (; i < width; i++) {
        float g = get(kind, gate, i);
        put(kind, out, i, g / (1.0f + expf(-g)) * get(kind, up, i));
    }
}

// gate, its row stride in bytes, up, its row stride in bytes, out [rows, width], kind, rows, width.
void op_silu_gated(const int64_t *a, int t, int threads) {
    int kind = a[5];
    long rows = a[6], width = a[7], size = size_of(kind), from, to;
    // One row is cut, several are dealt out.
    if (rows == 1) {
        share(width, VW, t, threads, &from, &to);
    } else {
        share(rows, 1, t, threads, &from, &to);
    }
    long first = rows == 1 ? 0 : from, last = rows == 1 ? 1 : to;
    long left = rows == 1 ? from : 0, count = rows == 1 ? to - from : width;
    for (long r = first; r < last; r++) {
        const char *gate = (const char *)a[0] + r * a[1] + left * size;
        const char *up = (const char *)a[2] + r * a[3] + left * size;
        char *out = (char *)a[4] + (r * width + left) * size;
        switch (kind) {
            case F32: gate_row(F32, gate, up, out, count); break;
            case BF16: gate_row(BF16, gate, up, out, count); break;
            default: gate_row(F16, gate, up, out, count);
        }
    }
}

INLINE void add_part(int kind, const void *x, const void *y, void *out, long from, long to) {
    long i = from;
    for (; i + VW <= to; i += VW) store(kind, out, i, load(kind, x, i) + load(kind, y, i));
    for (; i < to; i++) put(kind, out, i, get(kind, x, i) + get(kind, y, i));
}

// x, y, out, kind, how many.
void op_add(const int64_t *a, int t, int threads) {
    long from, to;
    share(a[4], VW, t, threads, &from, &to);
    const void *x = (void *)a[0], *y = (void *)a[1];
    void *out = (void *)a[2];
    switch (a[3]) {
        case F32: add_part(F32, x, y, out, from, to); break;
        case BF16: add_part(BF16, x, y, out, from, to); break;
        default: add_part(F16, x, y, out, from, to);
    }
}

// cache with its strides in bytes for rows and heads, how many positions it has, bytes of a
// position; value with its strides in bytes for rows, heads and positions; rows, heads, positions;
// where the first of them goes (i32). What lies outside is dropped.
void op_put_span(const int64_t *a, int t, int threads) {
    long size = a[3], bytes = a[4], heads = a[10], count = a[11], from, to;
    int32_t at = *(const int32_t *)a[12];
    share(a[9] * heads, 1, t, threads, &from, &to);
    for (long r = from; r < to; r++) {
        long h = r % heads, b = r / heads;
        char *cache = (char *)a[0] + b * a[1] + h * a[2];
        const char *value = (const char *)a[5] + b * a[6] + h * a[7];
        for (long s = 0; s < count; s++) {
            long place = at + s;
            if (place >= 0 && place < size) memcpy(cache + place * bytes, value + s * a[8], bytes);
        }
    }
}

// cache with its strides in bytes for rows, heads and positions, rows, positions, bytes of a position;
// value with its strides in bytes for tokens and heads; heads, tokens; each token's row (i32; none:
// its own number) and position (i32). What lies outside is dropped, and the last of a place stays.
void op_put_tokens(const int64_t *a, int t, int threads) {
    long rows = a[4], positions = a[5], bytes = a[6], from, to;
    const int32_t *row = (const int32_t *)a[12], *at = (const int32_t *)a[13];
    share(a[10], 1, t, threads, &from, &to);
    for (long h = from; h < to; h++)
        for (long p = 0; p < a[11]; p++) {
            long b = row ? row[p] : p;
            if (b < 0 || b >= rows || at[p] < 0 || at[p] >= positions) continue;
            memcpy((char *)a[0] + b * a[1] + h * a[2] + at[p] * a[3],
                   (const char *)a[7] + p * a[8] + h * a[9], bytes);
        }
}

// ids (i32), out, table, how many ids, rows of the table, bytes of a row. The nearest row where an
// id lies outside.
void op_rows(const int64_t *a, int t, int threads) {
    long rows = a[4], bytes = a[5], from, to;
    share(a[3], 1, t, threads, &from, &to);
    for (long i = from; i < to; i++) {
        long id = ((const int32_t *)a[0])[i];
        id = id < 0 ? 0 : id >= rows ? rows - 1 : id;
        memcpy((char *)a[1] + i * bytes, (const char *)a[2] + id * bytes, bytes);
    }
}
