// out[m, n] = sum over k of x[m, k] * w[n, k], summed in f32 and rounded once.
#include "linear.h"

#include "ops.h"

#ifndef DEPTH
#define DEPTH 320
#endif
#ifndef ROWS
#define ROWS 48
#endif
#ifndef COLUMNS
#define COLUMNS 512
#endif

// ---------------------------------------------------------------- few rows: read w once

// One row of w after the other: memory gives less to who reads several at a time.

// A row of w times `rows` rows of x, each sum in `parts` that need not wait for each other.
INLINE void dots(int kind, int rows, int parts, const float *x, long ldx, const char *w, long k,
                 float *out) {
    vf sums[4][4] = {0};
    long i = 0;
    for (; i + parts * VW <= k; i += parts * VW)
        for (int p = 0; p < parts; p++) {
            vf own = load(kind, w, i + p * VW);
            for (int r = 0; r < rows; r++) sums[r][p] += load(F32, x + r * ldx, i + p * VW) * own;
        }
    for (int r = 0; r < rows; r++) {
        vf total = sums[r][0];
        for (int p = 1; p < parts; p++) total += sums[r][p];
        out[r] = sum_of(total);
        for (long j = i; j < k; j++) out[r] += x[r * ldx + j] * get(kind, w, j);
    }
}

typedef uint32_t vu_at __attribute__((vector_size(4 * VW), aligned(2), may_alias));

// `dots` for bf16: a vector of pairs is two vectors of f32, the even elements and the odd ones. So
// lies x too: of each 2 * VW elements the even ones first (`apart`).
INLINE void dots_bf16(int rows, const float *x, long ldx, const char *w, long k, float *out) {
    vf sums[4][2] = {0};
    long i = 0;
    for (; i + 2 * VW <= k; i += 2 * VW) {
        vu pairs = *(const vu_at *)(w + 2 * i);
        // A line, as far ahead as a row or so: the processor asks too late.
        if (i % 32 == 0) __builtin_prefetch(w + 2 * i + 1664);
        for (int r = 0; r < rows; r++) {
            sums[r][0] += load(F32, x + r * ldx, i) * (vf)(pairs << 16);
            sums[r][1] += load(F32, x + r * ldx, i + VW) * (vf)(pairs & 0xffff0000u);
        }
    }
    for (int r = 0; r < rows; r++) {
        out[r] = sum_of(sums[r][0] + sums[r][1]);
        for (long j = i; j < k; j++) out[r] += x[r * ldx + j] * get(BF16, w, j);
    }
}

INLINE void few_rows(int kind, const float *x, long ldx, long m, const char *w, long ldw, long k,
                     long from, long to, int out_kind, void *out, long ldo) {
    for (long n = from; n < to; n++)
        for (long r = 0; r < m; r += 4) {
            int rows = m - r < 4 ? m - r : 4;
            float sums[4];
#define DOTS(R) \
    case R: \
        if (kind == BF16) dots_bf16(R, x + r * ldx, ldx, w + n * ldw, k, sums); \
        else dots(kind, R, R > 2 ? 2 : 4, x + r * ldx, ldx, w + n * ldw, k, sums); \
        break;
            switch (rows) { DOTS(1) DOTS(2) DOTS(3) DOTS(4) }
            for (int i = 0; i < rows; i++) put(out_kind, out, (r + i) * ldo + n, sums[i]);
        }
}

void dot_rows(const float *x, long ldx, long m, const float *w, long k, float *out) {
    for (long r = 0; r < m; r += 4)
        switch (m - r) {
            case 1: dots(F32, 1, 4, x + r * ldx, ldx, (const char *)w, k, out + r); break;
            case 2: dots(F32, 2, 4, x + r * ldx, ldx, (const char *)w, k, out + r); break;
            case 3: dots(F32, 3, 2, x + r * ldx, ldx, (const char *)w, k, out + r); break;
            default: dots(F32, 4, 2, x + r * ldx, ldx, (const char *)w, k, out + r);
        }
}

// ---------------------------------------------------------------- many rows: panels of w in f32

typedef float v8_at __attribute__((vector_size(32), aligned(4), may_alias));

// Eight rows of `in` become eight columns of `out`, whose rows are `step` apart: where that is less
// than eight, the next row overwrites what is too much.
INLINE void turn(const float *in, long ld, float *out, long step) {
    v8 a[8], b[8];
    for (int i = 0; i < 8; i++) a[i] = *(const v8_at *)(in + i * ld);
    for (int i = 0; i < 8; i += 2) {
        b[i] = __builtin_shufflevector(a[i], a[i + 1], 0, 8, 2, 10, 4, 12, 6, 14);
        b[i + 1] = __builtin_shufflevector(a[i], a[i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; j++) {
            a[i + j] = __builtin_shufflevector(b[i + j], b[i + j + 2], 0, 1, 8, 9, 4, 5, 12, 13);
            a[i + j + 2] = __builtin_shufflevector(b[i + j], b[i + j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        }
    for (int i = 0; i < 4; i++) {
        b[i] = __builtin_shufflevector(a[i], a[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        b[i + 4] = __builtin_shufflevector(a[i], a[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
    for (int i = 0; i < 8; i++) *(v8_at *)(out + i * step) = b[i];
}

void pack_panel(const float *rows, long ld, long depth, float *panel) {
    long k = 0;
    for (; k + 8 <= depth; k += 8)
        for (int r = 0; r < PANEL; r += 8) turn(rows + r * ld + k, ld, panel + k * PANEL + r, PANEL);
    for (; k < depth; k++)
        for (int r = 0; r < PANEL; r++) panel[k * PANEL + r] = rows[r * ld + k];
}

// Strides of x that are powers of two would make its rows meet in the same lines of the first cache:
// hence a copy that is read in one run.
void pack_tiles(const float *x, long ldx, long rows, long depth, float *out) {
    for (long r = 0; r < rows; r += TILE, out += TILE * depth) {
        const float *own = x + r * ldx;
        long k = 0;
        if (r + 8 <= rows)
            for (; k + 8 <= depth; k += 8) turn(own + k, ldx, out + k * TILE, TILE);
        for (; k < depth; k++)
            for (int i = 0; i < TILE; i++) out[k * TILE + i] = r + i < rows ? own[i * ldx + k] : 0;
    }
}

// Rows n to n + PANEL of w (as many as there are), columns k0 to k1, turned: [k1 - k0, PANEL].
static void panel_of(Unpack *unpack, const Weight *w, long n, long last, long k0, long k1, float *rows,
                     float *panel) {
    for (int r = 0; r < PANEL; r++) {
        if (n + r < last) unpack(w, n + r, k0, k1, rows + r * (DEPTH + 8));
        else memset(rows + r * (DEPTH + 8), 0, (k1 - k0) * 4);
    }
    pack_panel(rows, DEPTH + 8, k1 - k0, panel);
}

// `rows` rows of a tile times one panel, stored in c or added to it.
INLINE void tile(int rows, const float *x, const float *panel, long depth, float *c, long ldc,
                 int first) {
    enum { PARTS = PANEL / VW };
    vf sums[TILE][PARTS];
    for (int r = 0; r < rows; r++)
        for (int p = 0; p < PARTS; p++)
            sums[r][p] = first ? splat(0) : load(F32, c + r * ldc, p * VW);
    // All but the products is what a busy core has too little of: one count for eight of them.
#pragma GCC unroll 8
    for (long k = 0; k < depth; k++) {
        vf part[PARTS];
        for (int p = 0; p < PARTS; p++) part[p] = *(const vf *)(panel + k * PANEL + p * VW);
        for (int r = 0; r < rows; r++)
            for (int p = 0; p < PARTS; p++) sums[r][p] += splat(x[k * TILE + r]) * part[p];
    }
    for (int r = 0; r < rows; r++)
        for (int p = 0; p < PARTS; p++) store(F32, c + r * ldc, p * VW, sums[r][p]);
}

void tiles(int rows, const float *x, const float *panel, long depth, float *c, long ldc, int first) {
    switch (rows) {
        case 1: tile(1, x, panel, depth, c, ldc, first); break;
        case 2: tile(2, x, panel, depth, c, ldc, first); break;
        case 3: tile(3, x, panel, depth, c, ldc, first); break;
        case 4: tile(4, x, panel, depth, c, ldc, first); break;
        case 5: tile(5, x, panel, depth, c, ldc, first); break;
        default: tile(6, x, panel, depth, c, ldc, first);
    }
}

INLINE void unpack_dense(int kind, const void *row, long k0, long k1, float *out) {
    long k = k0;
    for (; k + VW <= k1; k += VW) store(F32, out, k - k0, load(kind, row, k));
    for (; k < k1; k++) out[k - k0] = get(kind, row, k);
}

static void unpack_f32(const Weight *w, long n, long k0, long k1, float *out) {
    memcpy(out, (const float *)(w->w + n * w->ldw) + k0, 4 * (k1 - k0));
}
static void unpack_bf16(const Weight *w, long n, long k0, long k1, float *out) {
    unpack_dense(BF16, w->w + n * w->ldw, k0, k1, out);
}
static void unpack_f16(const Weight *w, long n, long k0, long k1, float *out) {
    unpack_dense(F16, w->w + n * w->ldw, k0, k1, out);
}
static Unpack *const UNPACK[] = {unpack_f32, unpack_bf16, unpack_f16};

static __thread void *kept;
static __thread size_t held;

void many_rows(int x_kind, const char *x, long ldx, long m, Unpack *unpack, const Weight *w, long k,
               long from, long to, int out_kind, void *out, long ldo) {
    Weight rows_of_x = {.w = x, .ldw = ldx};
    // Parts of equal depth: a short last one would cost as much as a long one.
    long parts = (k + DEPTH - 1) / DEPTH, deep = ((k + parts - 1) / parts + 31) / 32 * 32;
    long columns = to - from < COLUMNS ? (to - from + PANEL - 1) / PANEL * PANEL : COLUMNS;
    long height = m < ROWS ? m : ROWS;
    float *panels = scratch(&kept, &held,
                            4 * (columns * k + height * columns + PANEL * (DEPTH + 8) +
                                 (height + TILE) * DEPTH + ROWS * (DEPTH + 8) + 128));
    float *sums = panels + columns * k;
    float *rows = sums + height * columns, *packed = rows + PANEL * (DEPTH + 8);
    float *wide = packed + (height + TILE) * DEPTH + 16;
    for (long n0 = from; n0 < to; n0 += columns) {
        long n1 = n0 + columns < to ? n0 + columns : to;
        int straight = out_kind == F32 && (n1 - n0) % PANEL == 0;
        for (long k0 = 0; k0 < k; k0 += deep) {
            long k1 = k0 + deep < k ? k0 + deep : k;
            for (long n = n0; n < n1; n += PANEL)
                panel_of(unpack, w, n, n1, k0, k1, rows,
                         panels + k0 * columns + (n - n0) * (k1 - k0));
        }
        for (long m0 = 0; m0 < m; m0 += ROWS) {
            long m1 = m0 + ROWS < m ? m0 + ROWS : m;
            float *c = straight ? (float *)out + m0 * ldo + n0 : sums;
            long ldc = straight ? ldo : columns;
            for (long k0 = 0; k0 < k; k0 += deep) {
                long k1 = k0 + deep < k ? k0 + deep : k, depth = k1 - k0;
                const float *own = (const float *)(x + m0 * ldx) + k0;
                if (x_kind != F32)
                    for (long r = m0; r < m1; r++)
                        UNPACK[x_kind](&rows_of_x, r, k0, k1, wide + (r - m0) * (DEPTH + 8));
                pack_tiles(x_kind == F32 ? own : wide, x_kind == F32 ? ldx / 4 : DEPTH + 8, m1 - m0,
                           depth, packed);
                for (long n = n0; n < n1; n += PANEL)
                    for (long r = 0; r < m1 - m0; r += TILE)
                        tiles(m1 - m0 - r < TILE ? m1 - m0 - r : TILE, packed + r * depth,
                              panels + k0 * columns + (n - n0) * depth, depth,
                              c + r * ldc + (n - n0), ldc, k0 == 0);
            }
            if (straight) continue;
            for (long r = m0; r < m1; r++) {
                const float *line = sums + (r - m0) * columns;
                long n = n0;
                switch (out_kind) {
                    case F32: memcpy((float *)out + r * ldo + n0, line, 4 * (n1 - n0)); break;
                    case BF16:
                        for (; n + VW <= n1; n += VW)
                            store(BF16, out, r * ldo + n, load(F32, line, n - n0));
                        for (; n < n1; n++) put(BF16, out, r * ldo + n, line[n - n0]);
                        break;
                    default:
                        for (; n + VW <= n1; n += VW)
                            store(F16, out, r * ldo + n, load(F32, line, n - n0));
                        for (; n < n1; n++) put(F16, out, r * ldo + n, line[n - n0]);
                }
            }
        }
    }
}

// ---------------------------------------------------------------- some rows: panels of x instead

// A weight that few rows meet is not worth being laid in panels: x is, and rows of w are read as they
// lie, each number once for all of a panel.
#define STRIP 48     // rows of w whose sums are kept, whole tiles
#define STRETCH 768  // columns at a time

// `rows` rows of w, `ldw` apart, times a panel of x of which `parts` vectors are there: [rows, PANEL].
INLINE void strip(int rows, int parts, const float *w, long ldw, const float *panel, long depth, float *c,
                  long ldc, int first) {
    vf sums[TILE][2];
    for (int r = 0; r < rows; r++)
        for (int p = 0; p < parts; p++) sums[r][p] = first ? splat(0) : load(F32, c + r * ldc, p * VW);
    for (long k0 = 0; k0 < depth; k0 += 16) {
        // The rows are short: the processor would look for the next ones too late.
        for (int r = 0; r < rows; r++) __builtin_prefetch(w + (rows + r) * ldw + k0);
        long k1 = k0 + 16 < depth ? k0 + 16 : depth;
#pragma GCC unroll 4
        for (long k = k0; k < k1; k++) {
            vf part[2];
            for (int p = 0; p < parts; p++) part[p] = *(const vf *)(panel + k * PANEL + p * VW);
            for (int r = 0; r < rows; r++)
                for (int p = 0; p < parts; p++) sums[r][p] += splat(w[r * ldw + k]) * part[p];
        }
    }
    for (int r = 0; r < rows; r++)
        for (int p = 0; p < parts; p++) store(F32, c + r * ldc, p * VW, sums[r][p]);
}

static void strips(int rows, int parts, const float *w, long ldw, const float *panel, long depth, float *c,
                   long ldc, int first) {
#define STRIPS(R) \
    case R: \
        if (parts == 1) strip(R, 1, w, ldw, panel, depth, c, ldc, first); \
        else strip(R, 2, w, ldw, panel, depth, c, ldc, first); \
        break;
    switch (rows) { STRIPS(1) STRIPS(2) STRIPS(3) STRIPS(4) STRIPS(5) STRIPS(6) }
}

// Sums [count, m], a row for each row of w, into the columns of out.
INLINE void turn_out(int kind, const float *sums, long lds, long count, long m, void *out, long n, long ldo) {
    for (long r = 0; r < m; r += 8)
        for (long i = 0; i < count; i += 8) {
            float own[64];
            int whole = r + 8 <= m && i + 8 <= count;
            if (whole && kind == F32) {
                turn(sums + i * lds + r, lds, (float *)out + r * ldo + n + i, ldo);
                continue;
            }
            turn(sums + i * lds + r, lds, own, 8);
            for (int a = 0; a < 8 && r + a < m; a++) {
                if (whole && VW <= 8)
                    for (int b = 0; b < 8; b += VW)
                        store(kind, out, (r + a) * ldo + n + i + b, load(F32, own + 8 * a, b));
                else
                    for (int b = 0; b < 8 && i + b < count; b++)
                        put(kind, out, (r + a) * ldo + n + i + b, own[8 * a + b]);
            }
        }
}

void some_rows(int x_kind, const char *x, long ldx, long m, Unpack *unpack, const Weight *w, long k,
               long from, long to, int out_kind, void *out, long ldo) {
    long count = (m + PANEL - 1) / PANEL, lds = count * PANEL;
    long pieces = (k + STRETCH - 1) / STRETCH, deep = ((k + pieces - 1) / pieces + 31) / 32 * 32;
    float *panels = scratch(&kept, &held, 4 * (count * PANEL * (k + 8) + PANEL * (k + 8) + TILE * (deep + 8) +
                                               (STRIP + 8) * lds + 64));
    float *rows = panels + count * PANEL * (k + 8), *wide = rows + PANEL * (k + 8);
    float *sums = wide + TILE * (deep + 8);
    Weight rows_of_x = {.w = x, .ldw = ldx};
    for (long p = 0; p < count; p++) {
        for (long r = 0; r < PANEL; r++) {
            if (p * PANEL + r < m) UNPACK[x_kind](&rows_of_x, p * PANEL + r, 0, k, rows + r * (k + 8));
            else memset(rows + r * (k + 8), 0, 4 * k);
        }
        pack_panel(rows, k + 8, k, panels + p * PANEL * k);
    }
    int dense = unpack == unpack_f32;
    for (long n0 = from; n0 < to; n0 += STRIP) {
        long n1 = n0 + STRIP < to ? n0 + STRIP : to;
        for (long n = n0; n < n1; n += TILE) {
            int some = n1 - n < TILE ? n1 - n : TILE;
            for (long k0 = 0; k0 < k; k0 += deep) {
                long k1 = k0 + deep < k ? k0 + deep : k, ldw = dense ? w->ldw / 4 : deep + 8;
                const float *own = dense ? (const float *)(w->w + n * w->ldw) + k0 : wide;
                for (int i = 0; i < some && !dense; i++) {
                    // The next rows' columns, while these are multiplied.
                    const char *next = w->w + (n + some + i) * w->ldw + w->ldw * k0 / k;
                    for (long j = 0; j < w->ldw * (k1 - k0) / k; j += 64) __builtin_prefetch(next + j);
                    unpack(w, n + i, k0, k1, wide + i * ldw);
                }
                for (long p = 0; p < count; p++)
                    strips(some, m - p * PANEL > VW ? 2 : 1, own, ldw, panels + (p * k + k0) * PANEL, k1 - k0,
                           sums + (n - n0) * lds + p * PANEL, lds, k0 == 0);
            }
        }
        switch (out_kind) {
            case F32: turn_out(F32, sums, lds, n1 - n0, m, out, n0, ldo); break;
            case BF16: turn_out(BF16, sums, lds, n1 - n0, m, out, n0, ldo); break;
            default: turn_out(F16, sums, lds, n1 - n0, m, out, n0, ldo);
        }
    }
}

// ---------------------------------------------------------------- the op

static __thread void *kept_x;
static __thread size_t held_x;

const float *wide_rows(int kind, const char *x, long ldx, long m, long k, long *ld) {
    if (kind == F32) {
        *ld = ldx / 4;
        return (const float *)x;
    }
    float *out = scratch(&kept_x, &held_x, 4 * m * k);
    Weight rows = {.w = x, .ldw = ldx};
    for (long r = 0; r < m; r++) UNPACK[kind](&rows, r, 0, k, out + r * k);
    *ld = k;
    return out;
}

// m rows of x in f32, each pair of vectors taken apart as `dots_bf16` reads them.
static const float *apart(int kind, const char *x, long ldx, long m, long k) {
    float *out = scratch(&kept_x, &held_x, 4 * m * k);
    for (long r = 0; r < m; r++) {
        const char *row = x + r * ldx;
        float *to = out + r * k;
        long i = 0;
        for (; i + 2 * VW <= k; i += 2 * VW)
            for (int j = 0; j < VW; j++) {
                to[i + j] = get(kind, row, i + 2 * j);
                to[i + VW + j] = get(kind, row, i + 2 * j + 1);
            }
        for (; i < k; i++) to[i] = get(kind, row, i);
    }
    return out;
}

// x, its kind, row stride in bytes, m; w, its kind, row stride in bytes, n, k; out, row stride in
// elements (its kind is x's).
void op_linear(const int64_t *a, int t, int threads) {
    const char *x = (const char *)a[0], *w = (const char *)a[4];
    int kind = a[1], w_kind = a[5];
    long ldx = a[2], m = a[3], ldw = a[6], n = a[7], k = a[8], ldo = a[10], from, to;
    void *out = (void *)a[9];
    share(n, PANEL, t, threads, &from, &to);
    if (from >= to) return;
    if (m > FEW_ROWS && k > 0) {
        Weight weight = {.w = w, .ldw = ldw};
        (m <= SOME_ROWS ? some_rows : many_rows)(kind, x, ldx, m, UNPACK[w_kind], &weight, k, from, to,
                                                 kind, out, ldo);
        return;
    }
    long ld;
    if (w_kind == BF16) {
        const float *halves = kind == BF16 ? apart(BF16, x, ldx, m, k)
                              : kind == F32 ? apart(F32, x, ldx, m, k)
                                            : apart(F16, x, ldx, m, k);
        few_rows(BF16, halves, k, m, w, ldw, k, from, to, kind, out, ldo);
        return;
    }
    const float *wide = wide_rows(kind, x, ldx, m, k, &ld);
    switch (w_kind) {
        case F32: few_rows(F32, wide, ld, m, w, ldw, k, from, to, kind, out, ldo); break;
        default: few_rows(F16, wide, ld, m, w, ldw, k, from, to, kind, out, ldo);
    }
}
