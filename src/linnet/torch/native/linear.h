// Products with weights that are stored row by row, in any form that `Unpack` can read.
#pragma once
#include "vec.h"

#define FEW_ROWS 8

// Columns k0 to k1 of one row, as f32.
typedef void Unpack(const void *row, long k0, long k1, float *out);

// Rows `from` to `to` of w times m rows of x; `ldx` and `ldw` in bytes, `ldo` in elements.
void many_rows(int x_kind, const char *x, long ldx, long m, Unpack *unpack, const char *w, long ldw,
               long k, long from, long to, int out_kind, void *out, long ldo);

// m rows of x in f32: as they lie, or in memory of this thread's; *ld in elements.
const float *wide_rows(int kind, const char *x, long ldx, long m, long k, long *ld);
