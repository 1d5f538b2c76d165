// Attention of one query at a time, for all heads that share keys.
#pragma once
#include "vec.h"

#define HEADS 4         // queries at a time
#define MOST_PARTS 256  // of one query

// Where the keys and values of a row lie: position j at `places[j / size] * size + j % size` of a pool
// of `pool` positions, the nearest where that lies outside; without `pages` at j.
typedef struct {
    const char *k, *v;
    long k_at, v_at, width;  // strides in bytes
    int kind;
    const int32_t *pages;
    long size, pool;
} Keys;

// Where positions first to first + count lie.
void places_of(const Keys *keys, long first, long count, long *out);

// Heads 0 to `count`, at most HEADS, whose queries of a kind of their own lie `q_head` bytes apart,
// over keys first to last:
// to `out + c * (width + 2)` the largest score, the sum of exponentials and the values mixed by them.
void attend_part(const Keys *keys, int count, int kind, const char *q, long q_head, float scale,
                 long first, long last, float *out);

// `count` such parts of one head together; a `sink` of -inf is none.
void attend_whole(int kind, const float *const *parts, long count, float sink, long width,
                  char *out);
