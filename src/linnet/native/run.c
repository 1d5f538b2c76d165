// Runs one op, or a list of them, with a team of threads.
#include <omp.h>
#include <pthread.h>
#include <stdio.h>

#include "ops.h"

static Op *const OPS[] = {
    op_linear, op_rms_norm, op_rope, op_silu_gated, op_add, op_attend, op_attended, op_put_span, op_rows,
    op_blocks, op_block_rows, op_prompt, op_packed, op_paged, op_paged_whole, op_put_tokens,
};

long linnet_count(void) { return sizeof OPS / sizeof *OPS; }

#define KEPT 8

// What this thread keeps: where the pointers are.
static __thread void **own[KEPT];
static __thread int count;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t ends;

static void give_back(void *unused) {
    (void)unused;
    while (count > 0) free(*own[--count]);
}

static void watch(void) { pthread_key_create(&ends, give_back); }

void grow(void **kept, size_t *held, size_t bytes) {
    if (!*kept && count < KEPT) {
        pthread_once(&once, watch);
        pthread_setspecific(ends, own);
        own[count++] = kept;
    }
    free(*kept);
    *held = bytes + bytes / 4 + 4096;
    if (posix_memalign(kept, 64, *held)) {
        fprintf(stderr, "linnet: there is no memory for %zu bytes\n", *held);
        abort();
    }
}

// A record is little work where its count has this bit: one thread does it while the others wait.
#define LITTLE ((int64_t)1 << 32)

static void run_all(const int64_t *records, long words, int t, int threads) {
    int little = 1;
    for (long at = 0; at < words;) {
        const int64_t *record = records + at;
        int own = (record[1] & LITTLE) != 0;
        // One thread's work follows its own without a word to the others.
        if (at && threads > 1 && !(own && little)) {
#pragma omp barrier
        }
        if (!own) OPS[record[0]](record + 2, t, threads);
        else if (t == 0) OPS[record[0]](record + 2, 0, 1);
        little = own;
        at += 2 + (record[1] & (LITTLE - 1));
    }
}

// Records of [op, number of arguments, arguments ...], one after another, by one thread where
// `alone`: waking others takes longer than little work.
void linnet_run(const int64_t *records, long words, int alone) {
    if (alone) {
        run_all(records, words, 0, 1);
        return;
    }
#pragma omp parallel
    run_all(records, words, omp_get_thread_num(), omp_get_num_threads());
}
