#pragma once
#include "vec.h"

Op op_linear, op_rms_norm, op_rope, op_silu_gated, op_add, op_attend, op_attended, op_put_span,
    op_rows, op_blocks, op_block_rows, op_prompt, op_packed, op_paged,
    op_paged_whole, op_put_tokens;
