// The ops as operators of ONNX Runtime, which hands them tensors that lie whole.
//
// Of the runtime's C interface only what its first version had is used: the places of functions in
// that table never change, and neither do the first fields of an operator.
#include <omp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops.h"

void linnet_run(const int64_t *records, long words, int alone);

enum {
    CREATE_DOMAIN = 26, DOMAIN_ADD = 27, ADD_DOMAIN = 28, DATA = 51, RANK = 61, SHAPE = 62,
    TYPE_AND_SHAPE = 65, INPUT = 90, OUTPUT = 91, RELEASE_SHAPE = 99,
};
enum { FLOAT = 1, INT32 = 6, FLOAT16 = 10, BFLOAT16 = 16 };  // types of elements
#define VERSION 12  // of the interface

typedef struct Operator Operator;
struct Operator {
    uint32_t version;
    void *(*create)(const Operator *, const void *api, const void *info);
    const char *(*name)(const Operator *);
    const char *(*provider)(const Operator *);
    int (*input_type)(const Operator *, size_t);
    size_t (*inputs)(const Operator *);
    int (*output_type)(const Operator *, size_t);
    size_t (*outputs)(const Operator *);
    void (*compute)(void *, void *context);
    void (*destroy)(void *);
    int (*input_kind)(const Operator *, size_t);
    int (*output_kind)(const Operator *, size_t);
    // What is ours: its name, the dtype it computes in, and of each input a letter: that dtype's
    // (x), an i32 (i), an f32 (f).
    const char *called;
    int kind;
    const char *takes;
    int gives;  // how many results
};

typedef void *Status;
typedef void *const *Api;
typedef struct {
    Api (*get)(uint32_t version);
} Base;

static Api api;

#define CALL(place, ...) ((Status(*)())api[place])(__VA_ARGS__)

typedef struct {
    void *data;
    size_t rank;
    int64_t shape[8];
} Tensor;

static Tensor input(void *context, size_t index) {
    void *value, *about;
    Tensor out;
    CALL(INPUT, context, index, &value);
    CALL(DATA, value, &out.data);
    CALL(TYPE_AND_SHAPE, value, &about);
    CALL(RANK, about, &out.rank);
    CALL(SHAPE, about, out.shape, out.rank);
    ((void (*)(void *))api[RELEASE_SHAPE])(about);
    return out;
}

static void *output(void *context, size_t index, const int64_t *shape, size_t rank) {
    void *value, *data;
    CALL(OUTPUT, context, index, shape, rank, &value);
    CALL(DATA, value, &data);
    return data;
}

static void *memory(size_t bytes) {
    void *out = malloc(bytes);
    if (!out) {
        fprintf(stderr, "linnet: there is no memory for %zu bytes\n", bytes);
        abort();
    }
    return out;
}

// The places in OPS of run.c.
enum { LINEAR, RMS_NORM, ROPE, SILU_GATED, ATTEND = 5, ATTENDED, PUT_SPAN, PROMPT = 11, PUT_TOKENS = 15 };
#define ALONE (1 << 16)  // waking other threads takes as long as this much work

static void run(int64_t work, int64_t op, const int64_t *arguments, int64_t count) {
    int64_t record[40] = {op, count};
    for (int64_t i = 0; i < count; i++) record[2 + i] = arguments[i];
    linnet_run(record, 2 + count, work < ALONE);
}

#define RUN(work, op, ...)                                                              \
    do {                                                                                \
        const int64_t arguments[] = {__VA_ARGS__};                                      \
        run(work, op, arguments, sizeof arguments / sizeof *arguments);                 \
    } while (0)

#define MOST 3  // products of one input at once

static int kind_of(void *kernel) { return ((const Operator *)kernel)->kind; }

static int64_t product(const Tensor *x, size_t axes) {
    int64_t out = 1;
    for (size_t i = 0; i < axes; i++) out *= x->shape[i];
    return out;
}

static int64_t bits(Tensor x) { return *(uint32_t *)x.data; }

// x [*S, K] and each w [N, K] to a [*S, N].
static void linear(void *kernel, void *context) {
    int64_t kind = kind_of(kernel), size = size_of(kind), records[MOST * 13], work = 0, at = 0;
    Tensor x = input(context, 0);
    int64_t rows = product(&x, x.rank - 1), width = x.shape[x.rank - 1];
    for (int i = 0; i < ((const Operator *)kernel)->gives; i++) {
        Tensor w = input(context, i + 1);
        int64_t count = x.shape[x.rank - 1] = w.shape[0];
        int64_t out = (int64_t)output(context, i, x.shape, x.rank);
        const int64_t record[13] = {LINEAR, 11, (int64_t)x.data, kind, width * size, rows,
            (int64_t)w.data, kind, width * size, count, width, out, count};
        memcpy(records + at, record, sizeof record);
        work += (rows > 8 ? rows : 1) * count * width;
        at += 13;
    }
    if (rows) linnet_run(records, at, work < ALONE);
}

// x [*S, H], weight [H], eps.
static void rms_norm(void *kernel, void *context) {
    Tensor x = input(context, 0), weight = input(context, 1), eps = input(context, 2);
    int64_t rows = product(&x, x.rank - 1), width = weight.shape[0];
    int64_t out = (int64_t)output(context, 0, x.shape, x.rank);
    if (rows && width)
        RUN(rows * width, RMS_NORM, (int64_t)x.data, out, (int64_t)weight.data, kind_of(kernel), rows,
            width, bits(eps));
}

// x [B, H, S, D], tables [S, D].
static void rope(void *kernel, void *context) {
    Tensor x = input(context, 0), cosines = input(context, 1), sines = input(context, 2);
    int64_t heads = x.shape[1], places = x.shape[2], width = x.shape[3];
    int64_t kind = kind_of(kernel), row = width * size_of(kind), numbers = product(&x, 4);
    int64_t out = (int64_t)output(context, 0, x.shape, 4);
    if (numbers)
        RUN(numbers, ROPE, (int64_t)x.data, heads * places * row, places * row, row, out,
            (int64_t)cosines.data, (int64_t)sines.data, kind, x.shape[0], heads, places, width);
}

// silu(gate) * up of [*S, N].
static void silu_gated(void *kernel, void *context) {
    Tensor gate = input(context, 0), up = input(context, 1);
    int64_t width = gate.rank ? gate.shape[gate.rank - 1] : 1, kind = kind_of(kernel);
    int64_t rows = gate.rank ? product(&gate, gate.rank - 1) : 1, row = width * size_of(kind);
    int64_t out = (int64_t)output(context, 0, gate.shape, gate.rank);
    if (rows && width)
        RUN(4 * rows * width, SILU_GATED, (int64_t)gate.data, row, (int64_t)up.data, row, out, kind,
            rows, width);
}

#define FEW 4    // queries of a head; more are products of matrices
#define PART 64  // keys, at least, for a thread
#define PARTS 64

// Queries [B, Heads, Q, D] over keys and values [B, KvHeads, K, D]: query s is at position at + s,
// or at[b] + s in row b, and sees the keys up to its own.
static void span_attention(void *kernel, void *context) {
    Tensor q = input(context, 0), k = input(context, 1), v = input(context, 2);
    Tensor at = input(context, 3), scale = input(context, 4);
    int64_t rows = q.shape[0], heads = q.shape[1], queries = q.shape[2], width = q.shape[3];
    int64_t groups = k.shape[1], keys = k.shape[2], kind = kind_of(kernel), row = width * size_of(kind);
    int64_t own = at.rank > 0, first = own ? 0 : *(int32_t *)at.data, numbers = product(&q, 4);
    char *out = output(context, 0, q.shape, 4), *turned = out;
    if (!numbers) return;
    // The ops give [B, Q, Heads, D].
    if (queries > 1 && heads > 1) turned = memory(numbers * size_of(kind));
#define COMMON                                                                                     \
    (int64_t)q.data, (int64_t)k.data, (int64_t)v.data, heads * queries * row, queries * row, row,  \
        groups * keys * row, keys * row, row, groups * keys * row, keys * row, row, (int64_t)turned, \
        kind, rows, heads, groups, queries, keys, width
    if (!own && queries > FEW && first >= 0 && first + queries <= keys) {
        RUN(rows * heads * queries * (first + queries) * width, PROMPT, COMMON, first, 0, 0,
            bits(scale), kind);
    } else {
        int64_t chunks = keys / PART, most = omp_get_max_threads();
        if (chunks > most) chunks = most;
        chunks = chunks < 1 ? 1 : chunks > PARTS ? PARTS : chunks;
        int64_t held = rows * heads * queries * chunks * (width + 2);
        float *parts = memory(held * sizeof(float));
        RUN(2 * rows * groups * queries * keys * width, ATTEND, COMMON, (int64_t)at.data, own, 0, 0,
            bits(scale), (int64_t)parts, chunks, kind);
        RUN(held, ATTENDED, COMMON, (int64_t)at.data, own, 0, 0, bits(scale), (int64_t)parts, chunks,
            kind);
        free(parts);
    }
    if (turned == out) return;
    for (int64_t b = 0; b < rows; b++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t s = 0; s < queries; s++)
                memcpy(out + ((b * heads + h) * queries + s) * row,
                       turned + ((b * queries + s) * heads + h) * row, row);
    free(turned);
}

// The cache [B, H, S, D] in the operator's output, which may be where it lies already.
static char *kept(void *kernel, void *context, Tensor *cache) {
    *cache = input(context, 0);
    char *out = output(context, 0, cache->shape, 4);
    if (out != cache->data) memcpy(out, cache->data, product(cache, 4) * size_of(kind_of(kernel)));
    return out;
}

// cache, value [B, H, N, D], the position of the first.
static void write_span(void *kernel, void *context) {
    Tensor cache, value = input(context, 1), at = input(context, 2);
    int64_t out = (int64_t)kept(kernel, context, &cache), row = cache.shape[3] * size_of(kind_of(kernel));
    int64_t heads = cache.shape[1], places = cache.shape[2], count = value.shape[2];
    if (product(&value, 4))
        RUN(product(&value, 4), PUT_SPAN, out, heads * places * row, places * row, places, row,
            (int64_t)value.data, heads * count * row, count * row, row, cache.shape[0], heads, count,
            (int64_t)at.data);
}

// cache, value [B, H, 1, D], a position for each row.
static void write_rows(void *kernel, void *context) {
    Tensor cache, value = input(context, 1), at = input(context, 2);
    int64_t out = (int64_t)kept(kernel, context, &cache), row = cache.shape[3] * size_of(kind_of(kernel));
    int64_t heads = cache.shape[1], places = cache.shape[2];
    if (product(&value, 4))
        RUN(product(&value, 4), PUT_TOKENS, out, heads * places * row, places * row, row,
            cache.shape[0], places, row, (int64_t)value.data, heads * row, row, heads, cache.shape[0],
            0, (int64_t)at.data);
}

// cache, value [1, H, P, D], rows [P], positions [P].
static void write_tokens(void *kernel, void *context) {
    Tensor cache, value = input(context, 1), rows = input(context, 2), at = input(context, 3);
    int64_t out = (int64_t)kept(kernel, context, &cache), row = cache.shape[3] * size_of(kind_of(kernel));
    int64_t heads = cache.shape[1], places = cache.shape[2], count = value.shape[2];
    if (product(&value, 4))
        RUN(product(&value, 4), PUT_TOKENS, out, heads * places * row, places * row, row,
            cache.shape[0], places, row, (int64_t)value.data, row, count * row, heads, count,
            (int64_t)rows.data, (int64_t)at.data);
}

static void *create(const Operator *op, const void *unused, const void *info) {
    (void)unused, (void)info;
    return (void *)op;
}
static const char *name(const Operator *op) { return op->called; }
static const char *provider(const Operator *op) { (void)op; return NULL; }  // the CPU's
static int output_type(const Operator *op, size_t index) {
    (void)index;
    return op->kind == F32 ? FLOAT : op->kind == BF16 ? BFLOAT16 : FLOAT16;
}
static int input_type(const Operator *op, size_t index) {
    char letter = op->takes[index];
    return letter == 'i' ? INT32 : letter == 'f' ? FLOAT : output_type(op, 0);
}
static size_t inputs(const Operator *op) { return strlen(op->takes); }
static size_t outputs(const Operator *op) { return op->gives; }
static int required(const Operator *op, size_t index) { (void)op, (void)index; return 0; }
static void destroy(void *kernel) { (void)kernel; }

#define ONE(called, kind, takes, compute, gives)                                                        \
    {VERSION, create, name, provider, input_type, inputs, output_type, outputs, compute, destroy, \
     required, required, called, kind, takes, gives}
#define SEVERAL(called, takes, compute, gives)                                                        \
    ONE(called "_f32", F32, takes, compute, gives), ONE(called "_bf16", BF16, takes, compute, gives), \
        ONE(called "_f16", F16, takes, compute, gives)
#define EACH(called, takes, compute) SEVERAL(called, takes, compute, 1)

static const Operator OPERATORS[] = {
    EACH("linear", "xx", linear),
    SEVERAL("linear_2", "xxx", linear, 2),
    SEVERAL("linear_3", "xxxx", linear, 3),
    EACH("rms_norm", "xxf", rms_norm),
    EACH("rope", "xxx", rope),
    EACH("silu_gated", "xx", silu_gated),
    EACH("span_attention", "xxxif", span_attention),
    EACH("write_span", "xxi", write_span),
    EACH("write_rows", "xxi", write_rows),
    EACH("write_tokens", "xxii", write_tokens),
};

Status RegisterCustomOps(void *options, const Base *base) {
    void *domain;
    Status failed;
    api = base->get(VERSION);
    if ((failed = CALL(CREATE_DOMAIN, "linnet.native", &domain))) return failed;
    for (size_t i = 0; i < sizeof OPERATORS / sizeof *OPERATORS; i++)
        if ((failed = CALL(DOMAIN_ADD, domain, &OPERATORS[i]))) return failed;
    return CALL(ADD_DOMAIN, options, domain);
}
