/*
 * Attention of many query tokens of one sequence over its paged cache: bound by arithmetic. Keys
 * and values are laid out block by block, and tiles of six query rows pass over them with a
 * running softmax. Over a bfloat16 cache, queries and weights are rounded to bfloat16 as well,
 * which doubles what the machine multiplies at once; sums are float32.
 */
#include "kernels.h"

enum {
    KEYS = 64,  /* keys that are laid out at once */
    ROWS = 6,   /* query rows of a tile */
    CHUNK = 192 /* query rows, about, of one task */
};

/*
 * What one task keeps. Of float32: queries [rows, head_dim], keys [head_dim, KEYS], values [KEYS,
 * head_dim]. Of bfloat16 the same in pairs: keys [head_dim / 2, KEYS] pairs of columns, values
 * [KEYS / 2, head_dim] pairs of keys. Per row its running result, largest score, sum of weights.
 */
typedef struct {
    void *queries;
    float *keys, *values, *found, *top, *total;
} Scratch;

static int64_t task_rows(const Pages *c) {
    int64_t group = c->heads / c->kv_heads;
    return group < CHUNK ? CHUNK / group * group : group;
}

/* Floats of scratch for each thread. */
int64_t prefill_scratch_floats(const Pages *c) {
    int64_t rows = task_rows(c) + ROWS;
    return (2 * KEYS + 2 * rows) * c->head_dim + 2 * rows + 4 * LANES;
}

static Scratch scratch_at(const Pages *c, float *from) {
    int64_t rows = task_rows(c) + ROWS, size = c->head_dim;
    Scratch s = {.queries = from, .keys = from + rows * size};
    s.values = s.keys + KEYS * size;
    s.found = s.values + KEYS * size;
    s.top = s.found + rows * size;
    s.total = s.top + rows;
    return s;
}

static int64_t place_of(const Pages *c, const int64_t *pages, int64_t token) {
    return (pages[token / c->block_size] * c->block_size + token % c->block_size) * c->head_dim;
}

/* Lay out keys and values of tokens [first, last); what is missing of KEYS becomes zero. */
static void gather_float32(const Pages *c, const int64_t *pages, int64_t first, int64_t last,
                           Scratch s) {
    int64_t size = c->head_dim;
    for (int64_t k = 0; k < KEYS; k++) {
        int64_t at = first + k < last ? place_of(c, pages, first + k) : -1;
        for (int64_t d = 0; d < size; d++)
            s.keys[d * KEYS + k] = at < 0 ? 0.0f : ((const float *)c->keys)[at + d];
        for (int64_t d = 0; d < size; d++)
            s.values[k * size + d] = at < 0 ? 0.0f : ((const float *)c->values)[at + d];
    }
}

static void gather_bfloat16(const Pages *c, const int64_t *pages, int64_t first, int64_t last,
                            Scratch s) {
    int64_t size = c->head_dim;
    uint32_t *keys = (uint32_t *)s.keys, *values = (uint32_t *)s.values;
    for (int64_t k = 0; k < KEYS; k += 2) {
        for (int64_t each = k; each < k + 2; each++) {
            uint32_t row[WIDEST_HEAD / 2] = {0};
            if (first + each < last)
                memcpy(row, (const bf16 *)c->keys + place_of(c, pages, first + each), size * 2);
            for (int64_t d = 0; d < size / 2; d++) keys[d * KEYS + each] = row[d];
        }
        for (int64_t d = 0; d < size; d += LANES) {
            words a = {0}, b = {0};
            if (first + k < last)
                a = (words)load_bf16((const bf16 *)c->values + place_of(c, pages, first + k) + d);
            if (first + k + 1 < last)
                b = (words)load_bf16((const bf16 *)c->values + place_of(c, pages, first + k + 1) + d);
            words both = a >> 16 | b;
            memcpy(values + k / 2 * size + d, &both, sizeof both);
        }
    }
}

INLINE void scores_float32(const float *queries, const float *keys, int64_t size,
                           floats (*score)[4]) {
    for (int64_t d = 0; d < size; d++) {
        floats key[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) key[i] = load(keys + d * KEYS + i * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) {
            floats query = all(queries[r * size + d]);
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) score[r][i] += query * key[i];
        }
    }
}

INLINE void scores_bfloat16(const bf16 *queries, const float *keys, int64_t size,
                            floats (*score)[4]) {
    for (int64_t d = 0; d < size; d += 2) {
        words key[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) key[i] = load_words(keys + d / 2 * KEYS + i * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) {
            words query = all_pairs(queries + r * size + d);
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) score[r][i] = dot_pairs(score[r][i], key[i], query);
        }
    }
}

/* Hide what a row may not see, then turn its scores into weights against its running largest. */
INLINE void weigh_row(floats *score, int32_t newest, int32_t oldest, float scale, float *top,
                      float *total, float *fade) {
    const ints lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    floats best = all(HIDDEN), sum = {0};
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        ints place = lane + i * LANES;
        ints seen = (place <= newest) & (place >= oldest);
        floats each = score[i] * scale;
        score[i] = (floats)((seen & (ints)each) | (~seen & (ints)all(HIDDEN)));
        best = larger(best, score[i]);
    }
    float found = largest_of(best);
    found = found > *top ? found : *top;
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        score[i] = exp_of(score[i] - found);
        sum += score[i];
    }
    *fade = exp_of(all(*top - found))[0];
    *total = *total * *fade + sum_of(sum);
    *top = found;
}

INLINE void mix_float32(const float *values, const float *weights, int64_t size, int vectors,
                        floats (*sum)[4]) {
    for (int64_t k = 0; k < KEYS; k++) {
        floats value[4];
#pragma GCC unroll 4
        for (int i = 0; i < vectors; i++) value[i] = load(values + k * size + i * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) {
            floats weight = all(weights[r * KEYS + k]);
#pragma GCC unroll 4
            for (int i = 0; i < vectors; i++) sum[r][i] += weight * value[i];
        }
    }
}

INLINE void mix_bfloat16(const float *values, const bf16 *weights, int64_t size, int vectors,
                         floats (*sum)[4]) {
    for (int64_t k = 0; k < KEYS; k += 2) {
        words value[4];
#pragma GCC unroll 4
        for (int i = 0; i < vectors; i++) value[i] = load_words(values + k / 2 * size + i * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) {
            words weight = all_pairs(weights + r * KEYS + k);
#pragma GCC unroll 4
            for (int i = 0; i < vectors; i++) sum[r][i] = dot_pairs(sum[r][i], value[i], weight);
        }
    }
}

/* The running results of a tile, faded, plus weights times values, in `vectors` x 16 columns. */
INLINE void mix_tile(int kind, const float *values, const void *weights, const float *fade,
                     float *found, int64_t size, int vectors) {
    floats sum[ROWS][4];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int i = 0; i < vectors; i++) sum[r][i] = load(found + r * size + i * LANES) * fade[r];
    if (kind == BFLOAT16)
        mix_bfloat16(values, weights, size, vectors, sum);
    else
        mix_float32(values, weights, size, vectors, sum);
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int i = 0; i < vectors; i++) store(found + r * size + i * LANES, sum[r][i]);
}

/* Query rows [at, at + ROWS) of a task against the keys laid out, which start at token `first`. */
INLINE void tile_block(const Pages *c, int kind, Scratch s, int64_t at, const int64_t *positions,
                       int64_t first) {
    int64_t size = c->head_dim, d = 0;
    float weights[ROWS * KEYS], fade[ROWS], scale = 1.0f / __builtin_sqrtf((float)size);
    floats score[ROWS][4];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) score[r][i] = (floats){0};
    if (kind == BFLOAT16)
        scores_bfloat16((const bf16 *)s.queries + at * size, s.keys, size, score);
    else
        scores_float32((const float *)s.queries + at * size, s.keys, size, score);
    for (int r = 0; r < ROWS; r++) {
        int32_t newest = (int32_t)(positions[r] - first);
        int32_t oldest = c->span ? (int32_t)(newest - c->span + 1) : INT32_MIN;
        weigh_row(score[r], newest, oldest, scale, s.top + at + r, s.total + at + r, fade + r);
        for (int i = 0; i < 4; i++) store_kind(weights, r * KEYS + i * LANES, score[r][i], kind);
    }
    float *found = s.found + at * size;
    for (; d + 4 * LANES <= size; d += 4 * LANES)
        mix_tile(kind, s.values + d, weights, fade, found + d, size, 4);
    for (; d < size; d += LANES) mix_tile(kind, s.values + d, weights, fade, found + d, size, 1);
}

/* Query tokens [from, to) of a chunk, for one key-value head. */
INLINE void prefill_task(const Pages *c, int kind, const Prefill *prefill, Rows rows, Scratch s,
                         int64_t head, int64_t from, int64_t to) {
    int64_t group = c->heads / c->kv_heads, size = c->head_dim, count = (to - from) * group;
    int64_t newest = prefill->start + to, oldest = first_seen(c, prefill->start + from + 1);
    const int64_t *pages = prefill->pages + head * prefill->width;
    for (int64_t r = 0; r < count + ROWS; r++) { /* those beyond the last repeat it, to be dropped */
        int64_t row = smaller(r, count - 1), token = prefill->first + from + row / group;
        const float *query = rows.queries + token * rows.query_stride + (head * group + row % group) * size;
        for (int64_t d = 0; d < size; d += LANES) {
            store_kind(s.queries, r * size + d, load(query + d), kind);
            store(s.found + r * size + d, (floats){0});
        }
        s.top[r] = HIDDEN, s.total[r] = 0.0f;
    }
    for (int64_t first = oldest / KEYS * KEYS; first < newest; first += KEYS) {
        if (kind == BFLOAT16)
            gather_bfloat16(c, pages, first, smaller(newest, first + KEYS), s);
        else
            gather_float32(c, pages, first, smaller(newest, first + KEYS), s);
        for (int64_t at = 0; at < count; at += ROWS) {
            int64_t positions[ROWS];
            for (int r = 0; r < ROWS; r++)
                positions[r] = prefill->start + from + smaller(at + r, count - 1) / group;
            if (first <= positions[ROWS - 1]) tile_block(c, kind, s, at, positions, first);
        }
    }
    for (int64_t row = 0; row < count; row++) {
        int64_t token = prefill->first + from + row / group;
        float *found = rows.found + token * rows.found_stride + (head * group + row % group) * size;
        for (int64_t d = 0; d < size; d += LANES)
            store(found + d, load(s.found + row * size + d) / s.total[row]);
    }
}

void attend_prefill(const Pages *c, const Prefill *prefill, Rows rows, float *scratch) {
    int64_t step = task_rows(c) / (c->heads / c->kv_heads);
    int64_t pieces = (prefill->count + step - 1) / step;
    Scratch own = scratch_at(c, scratch + THREAD * prefill_scratch_floats(c));
#pragma omp for schedule(dynamic, 1)
    for (int64_t task = 0; task < pieces * c->kv_heads; task++) {
        int64_t head = task % c->kv_heads;
        int64_t from = (pieces - 1 - task / c->kv_heads) * step; /* the longest first */
        int64_t to = smaller(prefill->count, from + step);
        if (c->kind == BFLOAT16)
            prefill_task(c, BFLOAT16, prefill, rows, own, head, from, to);
        else
            prefill_task(c, FLOAT32, prefill, rows, own, head, from, to);
    }
}
