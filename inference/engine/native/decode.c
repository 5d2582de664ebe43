/*
 * Attention of single query tokens over the paged cache, read in place: bound by reading it. Each
 * row looks at its own length and no further; a key-value head is read once for the query heads
 * that share it. Over a bfloat16 cache, queries and weights are rounded to bfloat16 as well.
 *
 * A long past is cut at fixed places, and the parts are merged in order: the result does not
 * depend on the number of threads or on the other rows.
 */
#include "kernels.h"

enum {
    PART = 256, /* tokens of the past that one task reads */
    QUERIES = 4 /* queries that read a key together */
};

/* Have `count` values brought near before they are needed: not into the first cache, which has
 * fewer places for what is under way. */
INLINE void fetch_ahead(const void *from, int64_t at, int kind, int64_t count) {
    int64_t width = kind == BFLOAT16 ? 2 : 4;
    for (int64_t byte = 0; byte < count * width; byte += 64)
        __builtin_prefetch((const char *)from + at * width + byte, 0, 2);
}

/* sum[g][k] += products of queries and keys: `queries` in the cache's own kind */
INLINE void score_float32(const float *from, const float *queries, int64_t size, int keys, int count,
                          floats (*sum)[4]) {
    for (int64_t d = 0; d < size; d += LANES) {
        floats key[4];
#pragma GCC unroll 4
        for (int k = 0; k < keys; k++) key[k] = load(from + k * size + d);
#pragma GCC unroll 4
        for (int g = 0; g < count; g++) {
            floats query = load(queries + g * size + d);
#pragma GCC unroll 4
            for (int k = 0; k < keys; k++) sum[g][k] += query * key[k];
        }
    }
}

INLINE void score_bfloat16(const bf16 *from, const bf16 *queries, int64_t size, int keys, int count,
                           floats (*sum)[4]) {
    int64_t d = 0;
    for (; d + 2 * LANES <= size; d += 2 * LANES) {
        words key[4];
#pragma GCC unroll 4
        for (int k = 0; k < keys; k++) key[k] = load_words(from + k * size + d);
#pragma GCC unroll 4
        for (int g = 0; g < count; g++) {
            words query = load_words(queries + g * size + d);
#pragma GCC unroll 4
            for (int k = 0; k < keys; k++) sum[g][k] = dot_pairs(sum[g][k], query, key[k]);
        }
    }
    for (; d < size; d += LANES)
        for (int g = 0; g < count; g++)
            for (int k = 0; k < keys; k++)
                sum[g][k] += load_bf16(queries + g * size + d) * load_bf16(from + k * size + d);
}

/* Scores of `keys` (1 or 4) rows in a page for `count` queries. */
INLINE void score_keys(const void *from, int64_t at, int kind, int64_t size, int keys,
                       const void *queries, int count, float *scores) {
    floats sum[QUERIES][4];
#pragma GCC unroll 4
    for (int g = 0; g < count; g++)
#pragma GCC unroll 4
        for (int k = 0; k < keys; k++) sum[g][k] = (floats){0};
    if (kind == BFLOAT16)
        score_bfloat16((const bf16 *)from + at, queries, size, keys, count, sum);
    else
        score_float32((const float *)from + at, queries, size, keys, count, sum);
#pragma GCC unroll 4
    for (int g = 0; g < count; g++) {
        if (keys == 4)
            store_sums(scores + g * PART, sum[g][0], sum[g][1], sum[g][2], sum[g][3]);
        else
            scores[g * PART] = sum_of(sum[g][0]);
    }
}

/* found += weights times values, for `vectors` x 16 columns. */
INLINE void mix_float32(const float *from, int64_t ahead, int64_t size, int64_t tokens,
                        const float *weights, int count, int vectors, floats (*found)[4]) {
    for (int64_t t = 0; t < tokens; t++) {
        fetch_ahead(from, ahead + t * size, FLOAT32, vectors * LANES);
        floats value[4];
#pragma GCC unroll 4
        for (int i = 0; i < vectors; i++) value[i] = load(from + t * size + i * LANES);
#pragma GCC unroll 4
        for (int g = 0; g < count; g++) {
            floats weight = all(weights[g * PART + t]);
#pragma GCC unroll 4
            for (int i = 0; i < vectors; i++) found[g][i] += weight * value[i];
        }
    }
}

/* Two tokens' 32 columns in pairs, in the order in which the machine pairs them: see `in_order`. */
INLINE void pair_values(const bf16 *a, const bf16 *b, words *low, words *high) {
    shorts x, y;
    memcpy(&x, a, sizeof x), memcpy(&y, b, sizeof y);
#define FOUR(i) i, i + 32, i + 1, i + 33, i + 2, i + 34, i + 3, i + 35
    *low = (words)__builtin_shufflevector(x, y, FOUR(0), FOUR(8), FOUR(16), FOUR(24));
    *high = (words)__builtin_shufflevector(x, y, FOUR(4), FOUR(12), FOUR(20), FOUR(28));
#undef FOUR
}

INLINE void in_order(floats *a, floats *b) {
    floats low = *a, high = *b;
    *a = __builtin_shufflevector(low, high, 0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    *b = __builtin_shufflevector(low, high, 8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
}

/* The same over pairs of tokens; `weights` are bfloat16, with a zero after the last. */
INLINE void mix_bfloat16(const bf16 *from, int64_t ahead, int64_t size, int64_t tokens,
                         const bf16 *weights, int count, int vectors, floats (*found)[4]) {
    for (int64_t t = 0; t < tokens; t += 2) {
        fetch_ahead(from, ahead + t * size, BFLOAT16, vectors * LANES);
        fetch_ahead(from, ahead + t * size + size, BFLOAT16, vectors * LANES);
        const bf16 *first = from + t * size, *second = t + 1 < tokens ? first + size : first;
        words value[4];
        if (vectors == 4) {
            pair_values(first, second, value, value + 1);
            pair_values(first + 2 * LANES, second + 2 * LANES, value + 2, value + 3);
        } else {
            value[0] = (words)load_bf16(first) >> 16 | (words)load_bf16(second);
        }
#pragma GCC unroll 4
        for (int g = 0; g < count; g++) {
            words weight = all_pairs(weights + g * (PART + 2) + t);
            if (t + 1 == tokens) weight &= 0xffff;
#pragma GCC unroll 4
            for (int i = 0; i < vectors; i++) found[g][i] = dot_pairs(found[g][i], value[i], weight);
        }
    }
}

/* Scores to weights in place, zeros up to a whole vector; gives the largest score, and the sum of the weights. */
INLINE float weigh(float *scores, int64_t count, float scale, float *total) {
    floats best = all(HIDDEN), sum = {0};
    int64_t whole = (count + LANES - 1) / LANES * LANES;
    for (int64_t t = count; t < whole; t++) scores[t] = HIDDEN;
    for (int64_t t = 0; t < whole; t += LANES) best = larger(best, load(scores + t));
    float top = largest_of(best) * scale;
    for (int64_t t = 0; t < whole; t += LANES) {
        floats weight = exp_of(load(scores + t) * scale - top);
        store(scores + t, weight);
        sum += weight;
    }
    *total = sum_of(sum);
    return top;
}

/*
 * The walk over a part's pages: `at` is the place of token t, `run` how many follow it there, and
 * `next` the place of the page after this one, to be fetched ahead: no machine foresees it.
 */
#define EACH_RUN(first, last)                                                                  \
    for (int64_t t = (first), run, at, next;                                                   \
         t < (last) && (at = (pages[t / block] * block + t % block) * size,                    \
                        run = smaller((last) - t, block - t % block),                          \
                        next = t + run < (last) ? pages[(t + run) / block] * block * size : at, \
                        1);                                                                    \
         t += run)

/* Weights times values of tokens [first, last), in `vectors` x 16 columns from column `d`. */
INLINE void mix_columns(const Pages *c, int kind, const int64_t *pages, int64_t first, int64_t last,
                        int64_t d, const float *scores, const bf16 *weights, int count, int vectors,
                        float *to, int64_t stride) {
    int64_t size = c->head_dim, block = c->block_size;
    floats found[QUERIES][4];
#pragma GCC unroll 4
    for (int g = 0; g < count; g++)
#pragma GCC unroll 4
        for (int i = 0; i < vectors; i++) found[g][i] = (floats){0};
    EACH_RUN(first, last) {
        if (kind == BFLOAT16)
            mix_bfloat16((const bf16 *)c->values + at + d, next - at, size, run, weights + t - first,
                         count, vectors, found);
        else
            mix_float32((const float *)c->values + at + d, next - at, size, run, scores + t - first,
                        count, vectors, found);
    }
#pragma GCC unroll 4
    for (int g = 0; g < count; g++) {
        if (kind == BFLOAT16 && vectors == 4)
            in_order(&found[g][0], &found[g][1]), in_order(&found[g][2], &found[g][3]);
#pragma GCC unroll 4
        for (int i = 0; i < vectors; i++) store(to + g * stride + d + i * LANES, found[g][i]);
    }
}

/*
 * Tokens [first, last) of one sequence for `count` queries of one group. A partial result is
 * [head_dim] values, weighted but not divided, then the largest score and the sum of weights.
 */
INLINE void decode_some(const Pages *c, int kind, const float *from, int count, const int64_t *pages,
                        int64_t first, int64_t last, float *partial, int64_t partial_stride) {
    int64_t size = c->head_dim, block = c->block_size;
    float scores[QUERIES * PART], scale = 1.0f / __builtin_sqrtf((float)size);
    bf16 narrow[QUERIES * WIDEST_HEAD], weights[QUERIES * (PART + 2)];
    const void *queries = kind == BFLOAT16 ? (const void *)narrow : from;
    if (kind == BFLOAT16)
        for (int64_t i = 0; i < count * size; i += LANES) store_bf16(narrow + i, load(from + i));
    EACH_RUN(first, last) {
        int64_t k = 0;
        for (; k + 4 <= run; k += 4) {
            fetch_ahead(c->keys, next + k * size, kind, 4 * size);
            score_keys(c->keys, at + k * size, kind, size, 4, queries, count, scores + t - first + k);
        }
        for (; k < run; k++)
            score_keys(c->keys, at + k * size, kind, size, 1, queries, count, scores + t - first + k);
    }
    for (int g = 0; g < count; g++) {
        float *end = partial + g * partial_stride + size;
        end[0] = weigh(scores + g * PART, last - first, scale, end + 1);
        for (int64_t t = 0; kind == BFLOAT16 && t < last - first; t += LANES)
            store_bf16(weights + g * (PART + 2) + t, load(scores + g * PART + t));
    }
    int64_t d = 0;
    for (; d + 4 * LANES <= size; d += 4 * LANES)
        mix_columns(c, kind, pages, first, last, d, scores, weights, count, 4, partial, partial_stride);
    for (; d < size; d += LANES)
        mix_columns(c, kind, pages, first, last, d, scores, weights, count, 1, partial, partial_stride);
}

#define DECODE(KIND)                                                                           \
    static void decode_##KIND(const Pages *c, const float *queries, int count,                  \
                              const int64_t *pages, int64_t first, int64_t last, float *partial, \
                              int64_t stride) {                                                 \
        switch (count) {                                                                        \
        case 4: decode_some(c, KIND, queries, 4, pages, first, last, partial, stride); break;   \
        case 3: decode_some(c, KIND, queries, 3, pages, first, last, partial, stride); break;   \
        case 2: decode_some(c, KIND, queries, 2, pages, first, last, partial, stride); break;   \
        default: decode_some(c, KIND, queries, 1, pages, first, last, partial, stride);         \
        }                                                                                       \
    }

DECODE(FLOAT32)
DECODE(BFLOAT16)

static int64_t part_count(const Decodes *decodes) {
    int64_t longest = 0;
    for (int64_t row = 0; row < decodes->rows; row++)
        longest = decodes->lengths[row] > longest ? decodes->lengths[row] : longest;
    return (longest + PART - 1) / PART;
}

/* Floats that attend_decodes needs for the partial results. */
int64_t decode_partial_floats(const Pages *c, const Decodes *decodes) {
    return decodes->rows * c->heads * part_count(decodes) * (c->head_dim + 2);
}

static void decode_task(const Pages *c, const Decodes *decodes, Rows rows, float *partials,
                        int64_t parts, int64_t task) {
    int64_t part = task % parts, head = task / parts % c->kv_heads, row = task / parts / c->kv_heads;
    int64_t length = decodes->lengths[row], first = part * PART;
    int64_t last = smaller(length, first + PART);
    first = first > first_seen(c, length) ? first : first_seen(c, length);
    if (first >= last) return;
    int64_t group = c->heads / c->kv_heads, stride = parts * (c->head_dim + 2);
    const int64_t *pages = decodes->pages + (row * c->kv_heads + head) * decodes->width;
    for (int64_t g = 0; g < group; g += QUERIES) {
        int64_t own = head * group + g;
        const float *queries = rows.queries + row * rows.query_stride + own * c->head_dim;
        float *partial = partials + (row * c->heads + own) * stride + part * (c->head_dim + 2);
        int count = (int)smaller(QUERIES, group - g);
        if (c->kind == BFLOAT16)
            decode_BFLOAT16(c, queries, count, pages, first, last, partial, stride);
        else
            decode_FLOAT32(c, queries, count, pages, first, last, partial, stride);
    }
}

/* One head's parts, in order, to its result. */
static void merge_parts(const Pages *c, const float *partial, int64_t first, int64_t parts, float *to) {
    int64_t size = c->head_dim, each = size + 2;
    float top = HIDDEN, total = 0.0f;
    for (int64_t p = first; p < parts; p++)
        top = partial[p * each + size] > top ? partial[p * each + size] : top;
    for (int64_t d = 0; d < size; d += LANES) store(to + d, (floats){0});
    for (int64_t p = first; p < parts; p++) {
        float weight = exp_of(all(partial[p * each + size] - top))[0];
        total += weight * partial[p * each + size + 1];
        for (int64_t d = 0; d < size; d += LANES)
            store(to + d, load(to + d) + load(partial + p * each + d) * weight);
    }
    for (int64_t d = 0; d < size; d += LANES) store(to + d, load(to + d) / total);
}

void attend_decodes(const Pages *c, const Decodes *decodes, Rows rows, float *partials) {
    int64_t parts = part_count(decodes), tasks = decodes->rows * c->kv_heads * parts;
    int64_t chunk = tasks >= 64 ? 4 : 1;
#pragma omp for schedule(dynamic, chunk)
    for (int64_t task = 0; task < tasks; task++)
        decode_task(c, decodes, rows, partials, parts, task);
#pragma omp for schedule(static)
    for (int64_t each = 0; each < decodes->rows * c->heads; each++) {
        int64_t row = each / c->heads, head = each % c->heads, length = decodes->lengths[row];
        merge_parts(c, partials + each * parts * (c->head_dim + 2), first_seen(c, length) / PART,
                    (length + PART - 1) / PART, rows.found + row * rows.found_stride + head * c->head_dim);
    }
}
