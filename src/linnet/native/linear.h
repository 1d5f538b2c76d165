// Products with weights that are stored row by row, in any form that `Unpack` can read.
#pragma once
#include "vec.h"

#define FEW_ROWS 8
#ifndef SOME_ROWS
#define SOME_ROWS 320
#endif
#define PANEL (2 * VW)  // rows of the weight side by side
#define TILE 6          // rows of x at once

// PANEL rows of a matrix, `ld` apart, turned: [depth, PANEL].
void pack_panel(const float *rows, long ld, long depth, float *panel);

// TILE rows of x after TILE rows, each turned: [depth, TILE], zeros where x ends. Writes up to 2
// numbers beyond.
void pack_tiles(const float *x, long ldx, long rows, long depth, float *out);

// The first `rows` rows of a tile, at most TILE, times a panel: stored in c, or added to it unless
// this is the `first` part.
void tiles(int rows, const float *x, const float *panel, long depth, float *c, long ldc, int first);

// A weight as it is stored: rows `ldw` bytes apart. What is beside it is in packed.c.
typedef struct {
    const char *w;
    long ldw;
    const char *scale, *zero;
    long scale_step, zero_step, group;
    int scale_kind, rounded;
} Weight;

// Columns k0 to k1 of row n, as f32.
typedef void Unpack(const Weight *w, long n, long k0, long k1, float *out);

// Rows `from` to `to` of w times m rows of x; `ldx` in bytes, `ldo` in elements.
void many_rows(int x_kind, const char *x, long ldx, long m, Unpack *unpack, const Weight *w, long k,
               long from, long to, int out_kind, void *out, long ldo);

// The same for a number of rows that is not worth panels of w.
void some_rows(int x_kind, const char *x, long ldx, long m, Unpack *unpack, const Weight *w, long k,
               long from, long to, int out_kind, void *out, long ldo);

// One row of f32 times m rows of x.
void dot_rows(const float *x, long ldx, long m, const float *w, long k, float *out);

// m rows of x in f32: as they lie, or in memory of this thread's; *ld in elements.
const float *wide_rows(int kind, const char *x, long ldx, long m, long k, long *ld);
