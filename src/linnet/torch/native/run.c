// Runs one op, or a list of them, with a team of threads.
#include <omp.h>

#include "ops.h"

static Op *const OPS[] = {
    op_linear, op_rms_norm, op_rope, op_silu_gated, op_add, op_attend, op_attended, op_put_span, op_rows,
    op_blocks, op_block_rows,
};

long linnet_count(void) { return sizeof OPS / sizeof *OPS; }

static void run_all(const int64_t *records, long words, int t, int threads) {
    for (long at = 0; at < words; at += 2 + records[at + 1]) {
        if (at && threads > 1) {
#pragma omp barrier
        }
        OPS[records[at]](records + at + 2, t, threads);
    }
}

// Records of [op, number of arguments, arguments ...], one after another, a barrier after each; by
// one thread where `alone`, since waking others takes longer than little work.
void linnet_run(const int64_t *records, long words, int alone) {
    if (alone) {
        run_all(records, words, 0, 1);
        return;
    }
#pragma omp parallel
    run_all(records, words, omp_get_thread_num(), omp_get_num_threads());
}
