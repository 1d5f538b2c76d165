// Attention of many queries: products of matrices a block of queries at a time, over the keys that
// the block sees, and never more scores than a block has (as in Dao et al., arXiv:2205.14135).
#include "linear.h"
#include "ops.h"

#define QUERIES 48  // of a block

static __thread void *kept;
static __thread size_t held;

typedef struct {
    const char *q, *k, *v;
    long q_row, q_head, q_at, k_row, k_head, k_at, v_row, v_head, v_at;  // strides in bytes
    char *out;                                                            // [rows, queries, heads, width]
    int kind, kept;                                                       // that of keys and values
    long rows, heads, groups, queries, keys, width, at, window;
    const char *sinks;
    float scale;
} Prompt;

INLINE long least(long a, long b) { return a < b ? a : b; }

// `count` rows of `width` numbers, times `scale`, as f32; zeros up to `room` rows.
INLINE void widen(int kind, const char *x, long step, long count, long room, long width, float scale,
                  float *out, long ld) {
    for (long r = 0; r < count; r++) {
        long i = 0;
        for (; i + VW <= width; i += VW)
            store(F32, out + r * ld, i, load(kind, x + r * step, i) * scale);
        for (; i < width; i++) out[r * ld + i] = get(kind, x + r * step, i) * scale;
    }
    for (long r = count; r < room; r++) memset(out + r * ld, 0, 4 * width);
}

// Keys in panels [width, PANEL] for the scores, values in panels [keys, PANEL] for what they mix;
// zeros where a panel is wider than there are.
INLINE void pack(int kind, const Prompt *a, long b, long g, long count, float *rows, float *keys,
                 float *values) {
    const char *k = a->k + b * a->k_row + g * a->k_head, *v = a->v + b * a->v_row + g * a->v_head;
    long ld = a->width + 8;
    for (long j = 0; j < count; j += PANEL) {
        widen(kind, k + j * a->k_at, a->k_at, least(PANEL, count - j), PANEL, a->width, 1, rows, ld);
        pack_panel(rows, ld, a->width, keys + j * a->width);
    }
    for (long i = 0; i < a->width; i += PANEL)
        for (long j = 0; j < count; j++)
            for (long c = i; c < i + PANEL; c += VW) {
                vf own = {0};
                if (c + VW <= a->width) own = load(kind, v + j * a->v_at, c);
                else for (long e = c; e < a->width; e++) own[e - c] = get(kind, v + j * a->v_at, e);
                store(F32, values + i * count + j * PANEL, c - i, own);
            }
}

// The row's weights in place of its scores, zeros outside [first, last): their sum.
static float weigh(float *row, long first, long last, long count, float sink) {
    float top = sink;
    vf tops = splat(-INFINITY);
    long j = first;
    for (; j + VW <= last; j += VW) tops = vmax(load(F32, row, j), tops);
    for (int i = 0; i < VW; i++) top = tops[i] > top ? tops[i] : top;
    for (; j < last; j++) top = row[j] > top ? row[j] : top;
    if (top == -INFINITY) top = 0;  // of such scores alone the weights are 0
    memset(row, 0, 4 * first);
    vf sums = {0};
    for (j = first; j + VW <= last; j += VW) {
        vf weight = vexp(load(F32, row, j) - top);
        store(F32, row, j, weight);
        sums += weight;
    }
    float total = sum_of(sums) + (sink > -INFINITY ? expf(sink - top) : 0);
    for (; j < last; j++) total += row[j] = expf(row[j] - top);
    memset(row + last, 0, 4 * (count - last));
    return total;
}

// Blocks of queries `from` to `to`, those of a head after each other, over keys of a kind.
INLINE void blocks(int kind, const Prompt *a, long from, long to) {
    long wide = (a->width + PANEL - 1) / PANEL * PANEL, all = a->at + a->queries;
    long room = (all + PANEL - 1) / PANEL * PANEL, shared = a->heads / a->groups;
    long ld = room + 8;  // not a power of two, where rows would meet in the same lines of a cache
    long most = room > a->width ? room : a->width;
    float *keys = scratch(&kept, &held,
                          4 * (room * a->width + wide * all + (PANEL + QUERIES) * (a->width + 8) +
                               QUERIES * (ld + wide) + (QUERIES + TILE) * most + 64));
    float *values = keys + room * a->width, *rows = values + wide * all;
    float *asked = rows + PANEL * (a->width + 8), *scores = asked + QUERIES * (a->width + 8);
    float *mixed = scores + QUERIES * ld, *packed = mixed + QUERIES * wide;
    long count_blocks = (a->queries + QUERIES - 1) / QUERIES, last_packed = -1;
    for (long item = from; item < to; item++) {
        long block = item % count_blocks, h = item / count_blocks % a->heads;
        long b = item / count_blocks / a->heads, g = h / shared;
        if (last_packed != b * a->groups + g) pack(kind, a, b, g, all, rows, keys, values);
        last_packed = b * a->groups + g;
        long s0 = block * QUERIES, n = least(QUERIES, a->queries - s0);
        long low = a->window > 0 && a->at + s0 - a->window + 1 > 0 ? a->at + s0 - a->window + 1 : 0;
        low = low / PANEL * PANEL;  // whole panels
        long count = a->at + s0 + n - low, padded = (count + PANEL - 1) / PANEL * PANEL;
        const char *q = a->q + b * a->q_row + h * a->q_head + s0 * a->q_at;
        widen(a->kind, q, a->q_at, n, n, a->width, a->scale, asked, a->width + 8);
        pack_tiles(asked, a->width + 8, n, a->width, packed);
        for (long j = 0; j < padded; j += PANEL)
            for (long r = 0; r < n; r += TILE)
                tiles(least(TILE, n - r), packed + r * a->width, keys + (low + j) * a->width,
                      a->width, scores + r * ld + j, ld, 1);
        float sink = a->sinks ? get(a->kind, a->sinks, h) : -INFINITY, total[QUERIES];
        for (long r = 0; r < n; r++) {
            long own = a->at + s0 + r, start = own - a->window + 1;
            start = a->window > 0 && start > low ? start : low;
            total[r] = weigh(scores + r * ld, start - low, own + 1 - low, count, sink);
        }
        pack_tiles(scores, ld, n, count, packed);
        for (long i = 0; i < wide; i += PANEL)
            for (long r = 0; r < n; r += TILE)
                tiles(least(TILE, n - r), packed + r * count, values + i * all + low * PANEL, count,
                      mixed + r * wide + i, wide, 1);
        for (long r = 0; r < n; r++) {
            char *out = a->out + ((b * a->queries + s0 + r) * a->heads + h) * a->width * size_of(a->kind);
            long i = 0;
            for (; i + VW <= a->width; i += VW)
                store(a->kind, out, i, load(F32, mixed + r * wide, i) * (1 / total[r]));
            for (; i < a->width; i++) put(a->kind, out, i, mixed[r * wide + i] * (1 / total[r]));
        }
    }
}

// The fields of Prompt in their order. Every query sees a key: at >= 0, at + queries <= keys.
void op_prompt(const int64_t *args, int t, int threads) {
    Prompt a = {
        .q = (char *)args[0], .k = (char *)args[1], .v = (char *)args[2], .q_row = args[3],
        .q_head = args[4], .q_at = args[5], .k_row = args[6], .k_head = args[7], .k_at = args[8],
        .v_row = args[9], .v_head = args[10], .v_at = args[11], .out = (char *)args[12],
        .kind = args[13], .rows = args[14], .heads = args[15], .groups = args[16],
        .queries = args[17], .keys = args[18], .width = args[19], .at = args[20],
        .window = args[21], .sinks = (char *)args[22], .scale = float_of(args[23]),
        .kept = args[24],
    };
    long from, to;
    share(a.rows * a.heads * ((a.queries + QUERIES - 1) / QUERIES), 1, t, threads, &from, &to);
    switch (a.kept) {
        case F32: blocks(F32, &a, from, to); break;
        case BF16: blocks(BF16, &a, from, to); break;
        default: blocks(F16, &a, from, to);
    }
}
