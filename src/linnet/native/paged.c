// Attention over a pool of pages (Kwon et al., arXiv:2309.06180): each query over the pages of its
// row, up to its own position. Queries of a row that follow each other are products of matrices, a
// block of them and a stretch of keys at a time (as in Dao et al., arXiv:2205.14135); others go one
// by one.
#include "attend.h"
#include "linear.h"
#include "ops.h"

#define BLOCK 48     // queries of all heads that share keys, in a block
#define FEWEST 12    // of them are worth a block
#define STRETCH 128  // keys at a time
#define CUT 64       // a single query's keys are cut in multiples of this

typedef struct {
    const char *q, *k, *v;
    long q_at, q_head, k_head, k_at, v_head, v_at;  // strides in bytes
    char *out;                                       // [queries, heads, width]
    int kind, kept;                                  // that of keys and values
    long queries, heads, groups, pool, width;
    const int32_t *table;  // [rows, pages]
    long rows, pages, size;
    const int32_t *row, *at;  // of each query; without `row` its own number
    long window;
    const char *sinks;
    float scale;
    float *parts;  // how many threads have some, then [room, 2, heads / groups, width + 2]
    long room;
} Paged;

// Queries p to p + count: of one row, at positions that follow each other, over keys first to last
// in all; `cost` counts from the start of all blocks.
typedef struct {
    long p, count, row, first, last, cost;
    float scale;
} Block;

typedef struct {
    Block *blocks;
    long count, cost;
} Plan;

static __thread void *kept;
static __thread size_t held;

INLINE long least(long a, long b) { return a < b ? a : b; }
INLINE long most(long a, long b) { return a > b ? a : b; }

INLINE long row_of(const Paged *a, long p) {
    long row = a->row ? a->row[p] : p;
    return row < 0 ? 0 : row < a->rows ? row : a->rows - 1;
}

// What a block costs for each group: its scores, and what every block costs.
INLINE long cost_of(const Block *b) { return b->count * (b->last - b->first) + 16; }

// The blocks of all queries, each for all groups.
static Plan plan_of(const Paged *a, Block *blocks) {
    long shared = a->heads / a->groups, keys = a->pages * a->size, limit = most(BLOCK / shared, 1);
    Plan plan = {.blocks = blocks};
    for (long p = 0; p < a->queries;) {
        Block *b = blocks + plan.count++;
        long row = row_of(a, p), own = a->at[p], n = 1;
        *b = (Block){.p = p, .row = row, .cost = plan.cost, .scale = a->scale};
        b->first = a->window > 0 ? most(own - a->window + 1, 0) : 0;
        b->last = least(own + 1, keys);
        if (b->first >= b->last) {  // all scores count as equal, and beside a sink as nothing
            b->first = 0, b->last = a->sinks ? 0 : keys, b->scale = 0;
        } else if (own < keys) {
            while (n < limit && p + n < a->queries && a->at[p + n] == own + n && own + n < keys &&
                   row_of(a, p + n) == row)
                n++;
            if (n * shared < FEWEST) n = 1;
            b->last = own + n;
        }
        b->count = n;
        p += n;
        plan.cost += cost_of(b) * a->groups;
    }
    return plan;
}

// Where the keys of a single query are cut for the part of all work that ends at `end`.
static long cut(const Block *b, long cost, long end) {
    if (end >= cost + cost_of(b)) return b->last;
    long done = (end - cost - 16) / CUT * CUT;
    return done <= 0 ? b->first : least(b->first + done, b->last);
}

static Keys keys_of(const Paged *a, const Block *b, long g) {
    return (Keys){
        .k = a->k + g * a->k_head, .v = a->v + g * a->v_head, .k_at = a->k_at, .v_at = a->v_at,
        .width = a->width, .kind = a->kept, .pages = a->table + b->row * a->pages, .size = a->size,
        .pool = a->pool,
    };
}

INLINE float sink_of(const Paged *a, long h) {
    return a->sinks ? get(a->kind, a->sinks, h) : -INFINITY;
}

INLINE char *out_of(const Paged *a, long p, long h) {
    return a->out + (p * a->heads + h) * a->width * size_of(a->kind);
}

// A single query over keys first to last: what comes out, or its `part` of it.
static void single(const Paged *a, const Block *b, long g, long first, long last, float *part) {
    long shared = a->heads / a->groups, step = a->width + 2;
    Keys keys = keys_of(a, b, g);
    for (long c = 0; c < shared; c += HEADS) {
        int count = least(HEADS, shared - c);
        long h = g * shared + c;
        float found[HEADS * 258], *to = part ? part + c * step : found;
        const char *q = a->q + b->p * a->q_at + h * a->q_head;
        attend_part(&keys, count, a->kind, q, a->q_head, b->scale, first, last, to);
        if (part) continue;
        for (int i = 0; i < count; i++)
            attend_whole(a->kind, (const float *[]){found + i * step}, 1, sink_of(a, h + i),
                         a->width, out_of(a, b->p, h + i));
    }
}

INLINE void widen(int kind, const char *x, long width, float scale, float *out) {
    for (long i = 0; i < width; i += VW) store(F32, out, i, load(kind, x, i) * scale);
}

// The scores of a row that are seen, [first, last) of `count`, as weights beside those before: sum
// and largest are kept, and what the values before were mixed to shrinks.
static void weigh(float *row, long first, long last, long count, float *largest, float *total,
                  float *mixed, long width) {
    vf tops = splat(-INFINITY), sums = {0};
    float top = *largest;
    long j = first;
    for (; j + VW <= last; j += VW) tops = vmax(load(F32, row, j), tops);
    for (int i = 0; i < VW; i++) top = tops[i] > top ? tops[i] : top;
    for (; j < last; j++) top = row[j] > top ? row[j] : top;
    float base = top == -INFINITY ? 0 : top, rest = 0;  // of such scores alone the weights are 0
    for (long i = 0; i < first; i++) row[i] = 0;
    for (j = first; j + VW <= last; j += VW) {
        vf weight = vexp(load(F32, row, j) - base);
        store(F32, row, j, weight);
        sums += weight;
    }
    for (; j < last; j++) rest += row[j] = expf(row[j] - base);
    for (; j < count; j++) row[j] = 0;
    if (top > *largest) {
        float shrink = expf(*largest - top);
        *total *= shrink;
        for (long i = 0; i < width; i += VW) store(F32, mixed, i, load(F32, mixed, i) * shrink);
        *largest = top;
    }
    *total += sum_of(sums) + rest;
}

INLINE long wide_of(long width) { return (width + PANEL - 1) / PANEL * PANEL; }

static long space_for(long width) {
    long wide = wide_of(width), deep = most(width, STRETCH);
    return BLOCK * (width + 8) + (BLOCK + TILE) * deep + 16 + PANEL * (width + 8) +
           PANEL * width + STRETCH * wide + BLOCK * (STRETCH + 8) + BLOCK * wide +
           (BLOCK + TILE) * width + 16;
}

// A block of queries, for the heads of group g, over keys of a kind.
INLINE void block(int kind, const Paged *a, const Block *b, long g, float *space) {
    long width = a->width, wide = wide_of(width), deep = most(width, STRETCH), ld = STRETCH + 8;
    long shared = a->heads / a->groups, n = b->count * shared, own = b->last - b->count;
    float *asked = space, *tiled = asked + BLOCK * (width + 8);
    float *packed = tiled + (BLOCK + TILE) * width + 16;
    float *rows = packed + (BLOCK + TILE) * deep + 16, *keys = rows + PANEL * (width + 8);
    float *values = keys + PANEL * width, *scores = values + STRETCH * wide;
    float *mixed = scores + BLOCK * ld, largest[BLOCK], total[BLOCK];
    long places[STRETCH];
    Keys lie = keys_of(a, b, g);
    for (long i = 0; i < n; i++) {
        long h = g * shared + i / b->count, p = b->p + i % b->count;
        widen(a->kind, a->q + p * a->q_at + h * a->q_head, width, a->scale, asked + i * (width + 8));
        largest[i] = -INFINITY, total[i] = 0;
    }
    pack_tiles(asked, width + 8, n, width, tiled);
    for (long j0 = b->first; j0 < b->last; j0 += STRETCH) {
        long count = least(STRETCH, b->last - j0);
        places_of(&lie, j0, count, places);
        for (long j = 0; j < count; j += PANEL) {
            for (long r = 0; r < PANEL; r++) {
                float *row = rows + r * (width + 8);
                if (j + r < count) widen(kind, lie.k + places[j + r] * lie.k_at, width, 1, row);
                else memset(row, 0, 4 * width);
            }
            pack_panel(rows, width + 8, width, keys);
            for (long r = 0; r < n; r += TILE)
                tiles(least(TILE, n - r), tiled + r * width, keys, width, scores + r * ld + j, ld, 1);
        }
        for (long i = 0; i < n; i++) {
            long at = own + i % b->count, first = a->window > 0 ? at - a->window + 1 - j0 : 0;
            weigh(scores + i * ld, least(most(first, 0), count), most(least(at + 1 - j0, count), 0),
                  count, largest + i, total + i, mixed + i * wide, j0 > b->first ? width : 0);
        }
        pack_tiles(scores, ld, n, count, packed);
        for (long j = 0; j < count; j++) {
            const char *value = lie.v + places[j] * lie.v_at;
            for (long i = 0; i < width; i += VW)
                store(F32, values + i / PANEL * PANEL * count + j * PANEL, i % PANEL,
                      load(kind, value, i));
        }
        for (long i = 0; i < wide; i += PANEL)
            for (long r = 0; r < n; r += TILE)
                tiles(least(TILE, n - r), packed + r * count, values + i * count, count,
                      mixed + r * wide + i, wide, j0 == b->first);
    }
    for (long i = 0; i < n; i++) {
        long h = g * shared + i / b->count;
        float sink = sink_of(a, h), top = sink > largest[i] ? sink : largest[i];
        float shrink = largest[i] > -INFINITY ? expf(largest[i] - top) : 1;
        float by = shrink / (total[i] * shrink + (a->sinks ? expf(sink - top) : 0));
        char *out = out_of(a, b->p + i % b->count, h);
        for (long c = 0; c < width; c += VW) store(a->kind, out, c, load(F32, mixed + i * wide, c) * by);
    }
}

static Paged paged_of(const int64_t *a) {
    return (Paged){
        .q = (char *)a[0], .k = (char *)a[1], .v = (char *)a[2], .q_at = a[3], .q_head = a[4],
        .k_head = a[5], .k_at = a[6], .v_head = a[7], .v_at = a[8], .out = (char *)a[9],
        .kind = a[10], .queries = a[11], .heads = a[12], .groups = a[13], .pool = a[14],
        .width = a[15], .table = (int32_t *)a[16], .rows = a[17], .pages = a[18], .size = a[19],
        .row = (int32_t *)a[20], .at = (int32_t *)a[21], .window = a[22], .sinks = (char *)a[23],
        .scale = float_of(a[24]), .parts = (float *)a[25], .room = a[26],
        .kept = a[27],
    };
}

// What thread t makes of a query that it has `after` another thread, or before the others.
static float *part_of(const Paged *a, long t, int after) {
    return a->parts + 16 + (2 * t + after) * (a->heads / a->groups) * (a->width + 2);
}

INLINE long end_of(const Plan *plan, long t, long threads) { return plan->cost * t / threads; }

// The arguments are the fields of Paged in the order that `paged_of` reads them. All work is dealt
// out by what it costs: a single query may be cut, and what its threads make of it is put together
// by `op_paged_whole`.
void op_paged(const int64_t *args, int t, int threads) {
    Paged a = paged_of(args);
    long many = least(threads, a.room);
    if (t == 0) *(int32_t *)a.parts = many;
    if (t >= many) return;
    long floats = space_for(a.width);
    float *space = scratch(&kept, &held, 4 * floats + 64 + a.queries * sizeof(Block));
    Plan plan = plan_of(&a, (Block *)(space + (floats + 15) / 16 * 16));
    long from = end_of(&plan, t, many), to = end_of(&plan, t + 1, many);
    for (long i = 0; i < plan.count; i++) {
        const Block *b = plan.blocks + i;
        for (long g = 0; g < a.groups; g++) {
            long cost = b->cost + g * cost_of(b), end = cost + cost_of(b);
            if (end <= from || cost >= to) continue;
            if (b->count > 1) {
                if (cost < from) continue;  // it is of who has its start
                switch (a.kept) {
                    case F32: block(F32, &a, b, g, space); break;
                    case BF16: block(BF16, &a, b, g, space); break;
                    default: block(F16, &a, b, g, space);
                }
                continue;
            }
            long first = cost < from ? cut(b, cost, from) : b->first, last = cut(b, cost, to);
            if (first == b->first && last == b->last) single(&a, b, g, first, last, NULL);
            else if (first < last) single(&a, b, g, first, last, part_of(&a, t, cost < from));
        }
    }
}

// The parts of each query that several threads had. The same arguments.
void op_paged_whole(const int64_t *args, int t, int threads) {
    (void)threads;
    Paged a = paged_of(args);
    long shared = a.heads / a.groups, many = *(const int32_t *)a.parts;
    if (t > 0 || many < 2) return;
    Plan plan = plan_of(&a, scratch(&kept, &held, a.queries * sizeof(Block)));
    for (long i = 0; i < plan.count; i++) {
        const Block *b = plan.blocks + i;
        for (long g = 0; b->count == 1 && g < a.groups; g++) {
            long cost = b->cost + g * cost_of(b), end = cost + cost_of(b), count = 0;
            const float *parts[MOST_PARTS], *own[MOST_PARTS];
            for (long u = cost * many / plan.cost; u < many && end_of(&plan, u, many) < end; u++) {
                long from = end_of(&plan, u, many), to = end_of(&plan, u + 1, many);
                if (to <= cost) continue;
                long first = cost < from ? cut(b, cost, from) : b->first, last = cut(b, cost, to);
                if (first < last) parts[count++] = part_of(&a, u, cost < from);
            }
            for (long c = 0; count > 1 && c < shared; c++) {
                for (long u = 0; u < count; u++) own[u] = parts[u] + c * (a.width + 2);
                attend_whole(a.kind, own, count, sink_of(&a, g * shared + c), a.width,
                             out_of(&a, b->p, g * shared + c));
            }
        }
    }
}
