// Attention of few queries over a cache: only what they see is read, once for all heads that share
// it. The keys are dealt out to the threads, and the parts are put together at the end (as in Dao et
// al., Flash-Decoding, 2023).
#include "ops.h"

#define KEYS 32   // at a time
#define HEADS 4   // queries at a time

typedef struct {
    const char *q, *k, *v;
    long q_row, q_head, q_at, k_row, k_head, k_at, v_row, v_head, v_at;  // strides in bytes
    char *out;                                                            // [rows, queries, heads, width]
    int kind;
    long rows, heads, groups, queries, keys, width;  // `groups` heads of keys
    const int32_t *at;  // the position of the first query in each row; at_step 0: the same
    long at_step, window;
    const char *sinks;
    float scale;
    float *parts;  // [rows, heads, queries, chunks, width + 2]
    long chunks;
} Attention;

// What query s of row b sees, [*first, *last); where that is nothing, all scores count as equal.
INLINE float seen(const Attention *a, long b, long s, long *first, long *last) {
    long own = a->at[b * a->at_step] + s;
    *first = a->window > 0 && own - a->window + 1 > 0 ? own - a->window + 1 : 0;
    *last = own + 1 < a->keys ? own + 1 : a->keys;
    if (*first < *last) return a->scale;
    *first = 0, *last = a->sinks ? 0 : a->keys;  // beside a sink nothing counts
    return 0;
}

// `count` queries, the heads from h on, over keys first to last: the largest score, the sum of
// exponentials and the values mixed by them, to each head's part.
INLINE void part(const Attention *a, int kind, int count, long b, long h, long g, long s, long first,
                 long last, float scale, float **out) {
    long width = a->width;
    float q[HEADS][256] __attribute__((aligned(64))), mixed[HEADS][256] __attribute__((aligned(64)));
    float largest[HEADS], total[HEADS], scores[HEADS][KEYS] __attribute__((aligned(64)));
    for (int c = 0; c < count; c++) {
        const char *own = a->q + b * a->q_row + (h + c) * a->q_head + s * a->q_at;
        for (long i = 0; i < width; i += VW) {
            store(F32, q[c], i, load(kind, own, i) * scale);
            store(F32, mixed[c], i, (vf){0});
        }
        largest[c] = -INFINITY, total[c] = 0;
    }
    const char *keys = a->k + b * a->k_row + g * a->k_head;
    const char *values = a->v + b * a->v_row + g * a->v_head;
    for (long j0 = first; j0 < last; j0 += KEYS) {
        long n = last - j0 < KEYS ? last - j0 : KEYS;
        for (long j = 0; j < n; j++) {
            const char *key = keys + (j0 + j) * a->k_at, *value = values + (j0 + j) * a->v_at;
            // Of memory the next block's keys and this one's values are asked for meanwhile.
            for (long i = 0; i < width * size_of(kind); i += 64) {
                __builtin_prefetch(key + KEYS * a->k_at + i);
                __builtin_prefetch(value + i);
            }
            vf sums[HEADS] = {0};
            for (long i = 0; i < width; i += VW) {
                vf own = load(kind, key, i);
                for (int c = 0; c < count; c++) sums[c] += own * load(F32, q[c], i);
            }
            for (int c = 0; c < count; c++) scores[c][j] = sum_of(sums[c]);
        }
        for (int c = 0; c < count; c++) {
            float top = largest[c];
            for (long j = 0; j < n; j++) top = scores[c][j] > top ? scores[c][j] : top;
            for (long j = n; j < KEYS; j++) scores[c][j] = -INFINITY;
            vf sum = {0};
            float base = top == -INFINITY ? 0 : top;  // of such scores alone the weights are 0
            for (long j = 0; j < KEYS; j += VW) {
                vf weight = vexp(load(F32, scores[c], j) - base);
                store(F32, scores[c], j, weight);
                sum += weight;
            }
            if (top > largest[c]) {
                float shrink = expf(largest[c] - top);
                total[c] *= shrink;
                for (long i = 0; i < width; i += VW)
                    store(F32, mixed[c], i, load(F32, mixed[c], i) * shrink);
                largest[c] = top;
            }
            total[c] += sum_of(sum);
        }
        // Two vectors of the width at a time stay in registers over all keys of the block.
        for (long i = 0; i < width; i += 2 * VW) {
            int two = i + VW < width;
            vf left[HEADS], right[HEADS];
            for (int c = 0; c < count; c++) {
                left[c] = load(F32, mixed[c], i);
                right[c] = two ? load(F32, mixed[c], i + VW) : (vf){0};
            }
            for (long j = 0; j < n; j++) {
                const char *value = values + (j0 + j) * a->v_at;
                vf low = load(kind, value, i), high = two ? load(kind, value, i + VW) : (vf){0};
                for (int c = 0; c < count; c++) {
                    left[c] += low * scores[c][j];
                    right[c] += high * scores[c][j];
                }
            }
            for (int c = 0; c < count; c++) {
                store(F32, mixed[c], i, left[c]);
                if (two) store(F32, mixed[c], i + VW, right[c]);
            }
        }
    }
    for (int c = 0; c < count; c++) {
        out[c][0] = largest[c], out[c][1] = total[c];
        memcpy(out[c] + 2, mixed[c], 4 * width);
    }
}

static void parts(const Attention *a, int count, long b, long h, long g, long s, long first, long last,
                  float scale, float **out) {
#define COUNTED(KIND) \
    switch (count) { \
        case 1: part(a, KIND, 1, b, h, g, s, first, last, scale, out); break; \
        case 2: part(a, KIND, 2, b, h, g, s, first, last, scale, out); break; \
        case 3: part(a, KIND, 3, b, h, g, s, first, last, scale, out); break; \
        default: part(a, KIND, 4, b, h, g, s, first, last, scale, out); \
    }
    switch (a->kind) {
        case F32: COUNTED(F32) break;
        case BF16: COUNTED(BF16) break;
        default: COUNTED(F16)
    }
}

static Attention attention_of(const int64_t *a) {
    return (Attention){
        .q = (char *)a[0], .k = (char *)a[1], .v = (char *)a[2],
        .q_row = a[3], .q_head = a[4], .q_at = a[5], .k_row = a[6], .k_head = a[7], .k_at = a[8],
        .v_row = a[9], .v_head = a[10], .v_at = a[11], .out = (char *)a[12], .kind = a[13],
        .rows = a[14], .heads = a[15], .groups = a[16], .queries = a[17], .keys = a[18],
        .width = a[19], .at = (int32_t *)a[20], .at_step = a[21], .window = a[22],
        .sinks = (char *)a[23], .scale = float_of(a[24]), .parts = (float *)a[25], .chunks = a[26],
    };
}

// The arguments are the fields of Attention in the order that `attention_of` reads them.
void op_attend(const int64_t *args, int t, int threads) {
    Attention a = attention_of(args);
    long shared = a.heads / a.groups, from, to;
    share(a.rows * a.groups * a.queries * a.chunks, 1, t, threads, &from, &to);
    for (long item = from; item < to; item++) {
        long chunk = item % a.chunks, rest = item / a.chunks;
        long s = rest % a.queries, g = rest / a.queries % a.groups, b = rest / a.queries / a.groups;
        long first, last;
        float scale = seen(&a, b, s, &first, &last);
        long start = first + (last - first) * chunk / a.chunks;
        long end = first + (last - first) * (chunk + 1) / a.chunks;
        for (long h = g * shared; h < (g + 1) * shared; h += HEADS) {
            int count = (g + 1) * shared - h < HEADS ? (g + 1) * shared - h : HEADS;
            float *out[HEADS];
            for (int c = 0; c < count; c++)
                out[c] = a.parts + (((b * a.heads + h + c) * a.queries + s) * a.chunks + chunk) *
                                       (a.width + 2);
            parts(&a, count, b, h, g, s, start, end, scale, out);
        }
    }
}

// The chunks of each query together. The same arguments.
void op_attended(const int64_t *args, int t, int threads) {
    Attention a = attention_of(args);
    long step = a.width + 2, from, to;
    share(a.rows * a.heads * a.queries, 1, t, threads, &from, &to);
    for (long item = from; item < to; item++) {
        long s = item % a.queries, h = item / a.queries % a.heads, b = item / a.queries / a.heads;
        const float *chunks = a.parts + item * a.chunks * step;
        float sink = a.sinks ? get(a.kind, a.sinks, h) : -INFINITY, top = sink;
        for (long c = 0; c < a.chunks; c++) top = chunks[c * step] > top ? chunks[c * step] : top;
        float total = a.sinks ? expf(sink - top) : 0, weights[64];
        for (long c = 0; c < a.chunks; c++) {
            weights[c] = chunks[c * step] > -INFINITY ? expf(chunks[c * step] - top) : 0;
            total += weights[c] * chunks[c * step + 1];
        }
        char *out = a.out + ((b * a.queries + s) * a.heads + h) * a.width * size_of(a.kind);
        for (long i = 0; i < a.width; i += VW) {
            vf mixed = {0};
            for (long c = 0; c < a.chunks; c++)
                mixed += load(F32, chunks + c * step + 2, i) * weights[c];
            mixed = mixed / total;
            switch (a.kind) {
                case F32: store(F32, out, i, mixed); break;
                case BF16: store(BF16, out, i, mixed); break;
                default: store(F16, out, i, mixed);
            }
        }
    }
}
