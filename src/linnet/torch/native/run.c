// Runs one op, or a list of them, with a team of threads.
#include <omp.h>

#include "ops.h"

static Op *const OPS[] = {
    op_linear, op_rms_norm, op_rope, op_silu_mul, op_add, op_attend, op_attended, op_put_span, op_rows,
};

long linnet_count(void) { return sizeof OPS / sizeof *OPS; }

// Records of [op, number of arguments, arguments ...], one after another, a barrier after each.
void linnet_run(const int64_t *records, long words) {
#pragma omp parallel
    {
        int t = omp_get_thread_num(), threads = omp_get_num_threads();
        for (long at = 0; at < words; at += 2 + records[at + 1]) {
            if (at) {
#pragma omp barrier
            }
            OPS[records[at]](records + at + 2, t, threads);
        }
    }
}
