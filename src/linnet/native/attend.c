// Attention of few queries over a cache: only what they see is read, once for all heads that share
// it. The keys are dealt out to the threads, and the parts are put together at the end (as in Dao et
// al., Flash-Decoding, 2023).
#include "attend.h"

#include "ops.h"

#define KEYS 32  // at a time

typedef struct {
    const char *q, *k, *v;
    long q_row, q_head, q_at, k_row, k_head, k_at, v_row, v_head, v_at;  // strides in bytes
    char *out;                                                            // [rows, queries, heads, width]
    int kind, kept;                                                       // that of keys and values
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

void places_of(const Keys *keys, long first, long count, long *out) {
    if (!keys->pages) {
        for (long j = 0; j < count; j++) out[j] = first + j;
        return;
    }
    long page = first / keys->size, inside = first % keys->size;
    for (long j = 0; j < count; j++) {
        int32_t at = (uint32_t)keys->pages[page] * (uint32_t)keys->size + (uint32_t)inside;
        out[j] = at < 0 ? 0 : at < keys->pool ? at : keys->pool - 1;
        if (++inside == keys->size) inside = 0, page++;
    }
}

INLINE void part(const Keys *a, int kind, int count, int q_kind, const char *queries, long q_head,
                 float scale, long first, long last, float *out) {
    long width = a->width, places[2][KEYS], n = last - first < KEYS ? last - first : KEYS;
    float q[HEADS][256] __attribute__((aligned(64))), mixed[HEADS][256] __attribute__((aligned(64)));
    float largest[HEADS], total[HEADS], scores[HEADS][KEYS] __attribute__((aligned(64)));
    for (int c = 0; c < count; c++) {
        for (long i = 0; i < width; i += VW) {
            store(F32, q[c], i, load(q_kind, queries + c * q_head, i) * scale);
            store(F32, mixed[c], i, (vf){0});
        }
        largest[c] = -INFINITY, total[c] = 0;
    }
    if (n > 0) places_of(a, first, n, places[0]);
    for (long j0 = first, block = 0; j0 < last; j0 += KEYS, block ^= 1) {
        long *own = places[block], *next = places[!block];
        long after = last - j0 - n < KEYS ? last - j0 - n : KEYS;
        places_of(a, j0 + n, after, next);
        for (long j = 0; j < n; j++) {
            const char *key = a->k + own[j] * a->k_at, *value = a->v + own[j] * a->v_at;
            const char *later = a->k + (j < after ? next[j] : own[j]) * a->k_at;
            // Of memory the next block's keys and this one's values are asked for meanwhile.
            for (long i = 0; i < width * size_of(kind); i += 64) {
                __builtin_prefetch(later + i);
                __builtin_prefetch(value + i);
            }
            vf sums[HEADS] = {0};
            for (long i = 0; i < width; i += VW) {
                vf own_key = load(kind, key, i);
                for (int c = 0; c < count; c++) sums[c] += own_key * load(F32, q[c], i);
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
                const char *value = a->v + own[j] * a->v_at;
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
        n = after;
    }
    for (int c = 0; c < count; c++, out += width + 2) {
        out[0] = largest[c], out[1] = total[c];
        memcpy(out + 2, mixed[c], 4 * width);
    }
}

void attend_part(const Keys *keys, int count, int kind, const char *q, long q_head, float scale,
                 long first, long last, float *out) {
#define COUNTED(KIND) \
    switch (count) { \
        case 1: part(keys, KIND, 1, kind, q, q_head, scale, first, last, out); break; \
        case 2: part(keys, KIND, 2, kind, q, q_head, scale, first, last, out); break; \
        case 3: part(keys, KIND, 3, kind, q, q_head, scale, first, last, out); break; \
        default: part(keys, KIND, 4, kind, q, q_head, scale, first, last, out); \
    }
    switch (keys->kind) {
        case F32: COUNTED(F32) break;
        case BF16: COUNTED(BF16) break;
        default: COUNTED(F16)
    }
}

void attend_whole(int kind, const float *const *parts, long count, float sink, long width,
                  char *out) {
    float top = sink, total = 0, weights[MOST_PARTS];
    for (long c = 0; c < count; c++) top = parts[c][0] > top ? parts[c][0] : top;
    if (sink > -INFINITY) total = expf(sink - top);
    for (long c = 0; c < count; c++) {
        weights[c] = parts[c][0] > -INFINITY ? expf(parts[c][0] - top) : 0;
        total += weights[c] * parts[c][1];
    }
    for (long i = 0; i < width; i += VW) {
        vf mixed = {0};
        for (long c = 0; c < count; c++) mixed += load(F32, parts[c] + 2, i) * weights[c];
        mixed = mixed / total;
        switch (kind) {
            case F32: store(F32, out, i, mixed); break;
            case BF16: store(BF16, out, i, mixed); break;
            default: store(F16, out, i, mixed);
        }
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
        .kept = a[27],
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
        Keys keys = {
            .k = a.k + b * a.k_row + g * a.k_head, .v = a.v + b * a.v_row + g * a.v_head,
            .k_at = a.k_at, .v_at = a.v_at, .width = a.width, .kind = a.kept,
        };
        for (long h = g * shared; h < (g + 1) * shared; h += HEADS) {
            int count = (g + 1) * shared - h < HEADS ? (g + 1) * shared - h : HEADS;
            float found[HEADS * 258];
            const char *q = a.q + b * a.q_row + h * a.q_head + s * a.q_at;
            attend_part(&keys, count, a.kind, q, a.q_head, scale, start, end, found);
            for (int c = 0; c < count; c++)
                memcpy(a.parts + (((b * a.heads + h + c) * a.queries + s) * a.chunks + chunk) *
                                     (a.width + 2),
                       found + c * (a.width + 2), 4 * (a.width + 2));
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
        char *out = a.out + ((b * a.queries + s) * a.heads + h) * a.width * size_of(a.kind);
        float sink = a.sinks ? get(a.kind, a.sinks, h) : -INFINITY;
        const float *chunks[MOST_PARTS];
        for (long c = 0; c < a.chunks; c++) chunks[c] = a.parts + (item * a.chunks + c) * step;
        attend_whole(a.kind, chunks, a.chunks, sink, a.width, out);
    }
}
