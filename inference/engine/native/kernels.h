/*
 * What the parts of the library know of each other. Each function here is called by every thread
 * of a parallel region and shares its work out by OpenMP; all threads leave it together. Built
 * without OpenMP, the same code runs on one thread.
 */
#ifndef KERNELS_H
#define KERNELS_H

#include "vectors.h"

#ifdef _OPENMP
#include <omp.h>
#define THREAD omp_get_thread_num()
#else
#define THREAD 0
#endif

/*
 * A weight matrix [outputs, inputs] in panels of 32 outputs, as packing.py lays it out:
 * FLOAT32 and BFLOAT16 panels are whole; GROUPED panels are made of groups of 32 inputs, each
 * with its integers, then 32 scales in half precision, then, if of four bits, 32 minima.
 */
typedef struct {
    int64_t kind, inputs, outputs;
    const void *panels;
    const float *bias; /* filled up to whole panels; or NULL */
} Linear;

enum { PANEL = 32, GROUP = 32, WIDEST_HEAD = 512 };

/* The rows that a Linear multiplies, in the form that its kind wants. */
typedef struct {
    void *values;
    float *scales; /* GROUPED: for each row and group, the scale and its shift */
} Operand;

/* One layer's pages: a page is [block_size, head_dim]. */
typedef struct {
    void *keys, *values;
    int64_t kind, heads, kv_heads, head_dim, block_size;
    int64_t span; /* tokens that a query sees, itself included; 0: all before it */
} Pages;

static const float HIDDEN = -1e30f; /* the score of what a query may not see */

INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* The first token that the newest of `length` tokens sees. */
INLINE int64_t first_seen(const Pages *pages, int64_t length) {
    return pages->span && length > pages->span ? length - pages->span : 0;
}

/* Sequences with one query each; pages [rows, kv_heads, width]. */
typedef struct {
    int64_t rows, width;
    const int64_t *pages, *lengths;
} Decodes;

/* Queries [first, first + count) of a step, tokens [start, start + count); pages [kv_heads, width]. */
typedef struct {
    int64_t first, count, start, width;
    const int64_t *pages;
} Prefill;

/* Queries and results are float rows; a stride is the distance of two tokens, in floats. */
typedef struct {
    const float *queries;
    float *found;
    int64_t query_stride, found_stride;
} Rows;

int64_t operand_value_bytes(int64_t kind, int64_t inputs);
void operand_row(Operand x, int64_t row, const float *from, const Linear *w);
void product(const Linear *w, Operand x, int64_t rows, float *to, int64_t stride, int adds);

int64_t decode_partial_floats(const Pages *pages, const Decodes *decodes);
void attend_decodes(const Pages *pages, const Decodes *decodes, Rows rows, float *partials);
int64_t prefill_scratch_floats(const Pages *pages);
void attend_prefill(const Pages *pages, const Prefill *prefill, Rows rows, float *scratch);

#endif
