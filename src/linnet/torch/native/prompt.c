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
    int kind;
    long rows, heads, groups, queries, keys, width, at, window;
    const char *sinks;
    float scale;
} Prompt;

INLINE long least(long a, long b) { return a < b ? a : b; }

// Keys in panels [width, PANEL] for the scores, values in panels [keys, PANEL] for what they mix;
// zeros where a panel is wider than there are.
static void pack(const Prompt *a, long b, long g, long from, long to, float *keys, float *values) {
    const char *k = a->k + b * a->k_row + g * a->k_head, *v = a->v + b * a->v_row + g * a->v_head;
    long wide = (a->width + PANEL - 1) / PANEL * PANEL, count = to - from;
    for (long j = 0; j < (count + PANEL - 1) / PANEL * PANEL; j++)
        for (long i = 0; i < a->width; i++)
            keys[j / PANEL * PANEL * a->width + i * PANEL + j % PANEL] =
                j < count ? get(a->kind, k + (from + j) * a->k_at, i) : 0;
    for (long j = 0; j < count; j++)
        for (long i = 0; i < wide; i++)
            values[i / PANEL * PANEL * count + j * PANEL + i % PANEL] =
                i < a->width ? get(a->kind, v + (from + j) * a->v_at, i) : 0;
}

// The row's weights in place of its scores, zeros outside [first, last): their sum.
static float weigh(float *row, long first, long last, long count, float sink) {
    float top = sink;
    for (long j = first; j < last; j++) top = row[j] > top ? row[j] : top;
    for (long j = 0; j < first; j++) row[j] = 0;
    vf sums = {0};
    long j = first;
    for (; j + VW <= last; j += VW) {
        vf weight = vexp(load(F32, row, j) - top);
        store(F32, row, j, weight);
        sums += weight;
    }
    float total = sum_of(sums) + (sink > -INFINITY ? expf(sink - top) : 0);
    for (; j < last; j++) total += row[j] = expf(row[j] - top);
    for (; j < count; j++) row[j] = 0;
    return total;
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
    };
    long wide = (a.width + PANEL - 1) / PANEL * PANEL, all = a.at + a.queries;
    long room = (all + PANEL - 1) / PANEL * PANEL, shared = a.heads / a.groups;
    float *keys = scratch(&kept, &held,
                          4 * (room * a.width + wide * all + QUERIES * (a.width + room + wide) + 64));
    float *values = keys + room * a.width, *asked = values + wide * all;
    float *scores = asked + QUERIES * a.width, *mixed = scores + QUERIES * room;
    long blocks = (a.queries + QUERIES - 1) / QUERIES, from, to, packed = -1;
    share(a.rows * a.heads * blocks, 1, t, threads, &from, &to);
    for (long item = from; item < to; item++) {
        long block = item % blocks, h = item / blocks % a.heads, b = item / blocks / a.heads;
        long g = h / shared;
        if (packed != b * a.groups + g) pack(&a, b, g, 0, all, keys, values);
        packed = b * a.groups + g;
        long s0 = block * QUERIES, rows = least(QUERIES, a.queries - s0);
        long low = a.window > 0 && a.at + s0 - a.window + 1 > 0 ? a.at + s0 - a.window + 1 : 0;
        long high = a.at + s0 + rows;
        low = low / PANEL * PANEL;  // whole panels
        long count = high - low, padded = (count + PANEL - 1) / PANEL * PANEL;
        const char *q = a.q + b * a.q_row + h * a.q_head + s0 * a.q_at;
        for (long r = 0; r < rows; r++)
            for (long i = 0; i < a.width; i++)
                asked[r * a.width + i] = get(a.kind, q + r * a.q_at, i) * a.scale;
        for (long j = 0; j < padded; j += PANEL)
            for (long r = 0; r < rows; r += TILE)
                tiles(least(TILE, rows - r), asked + r * a.width, a.width, keys + (low + j) * a.width,
                      a.width, scores + r * padded + j, padded, 1);
        float sink = a.sinks ? get(a.kind, a.sinks, h) : -INFINITY, total[QUERIES];
        for (long r = 0; r < rows; r++) {
            long own = a.at + s0 + r, start = a.window > 0 && own - a.window + 1 > low ? own - a.window + 1 : low;
            total[r] = weigh(scores + r * padded, start - low, own + 1 - low, count, sink);
        }
        for (long i = 0; i < wide; i += PANEL)
            for (long r = 0; r < rows; r += TILE)
                tiles(least(TILE, rows - r), scores + r * padded, padded, values + i * all + low * PANEL,
                      count, mixed + r * wide + i, wide, 1);
        for (long r = 0; r < rows; r++) {
            char *out = a.out + ((b * a.queries + s0 + r) * a.heads + h) * a.width * size_of(a.kind);
            for (long i = 0; i < a.width; i++) put(a.kind, out, i, mixed[r * wide + i] / total[r]);
        }
    }
}
