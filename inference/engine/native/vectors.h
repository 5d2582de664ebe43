/*
 * Sixteen lanes of float and what the kernels do with them, in the vector extension of GCC and
 * Clang: the compiler makes of it whatever the machine has. Knows no kernel.
 *
 * Needs IEEE arithmetic in the order written: never compile with -ffast-math.
 */
#ifndef VECTORS_H
#define VECTORS_H

#include <stdint.h>
#include <string.h>
#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

#define LANES 16
#define INLINE static inline __attribute__((always_inline, unused))

typedef float floats __attribute__((vector_size(64)));
typedef int32_t ints __attribute__((vector_size(64)));
typedef uint32_t words __attribute__((vector_size(64)));
typedef uint16_t halves __attribute__((vector_size(32)));
typedef uint16_t shorts __attribute__((vector_size(64)));
typedef uint16_t bf16;

/* How values lie in memory; the same numbers as in library.py. */
enum { FLOAT32 = 0, BFLOAT16 = 1, GROUPED8 = 2, GROUPED4 = 3 };

INLINE floats all(float x) {
    return (floats){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
}

INLINE floats load(const float *from) {
    floats found;
    memcpy(&found, from, sizeof found);
    return found;
}

INLINE void store(float *to, floats x) { memcpy(to, &x, sizeof x); }

INLINE words widened(halves x) {
#ifdef __AVX512F__
    return (words)_mm512_cvtepu16_epi32((__m256i)x); /* GCC makes two halves of it otherwise */
#else
    return __builtin_convertvector(x, words);
#endif
}

INLINE floats load_bf16(const bf16 *from) {
    halves found;
    memcpy(&found, from, sizeof found);
    return (floats)(widened(found) << 16);
}

/* Round to nearest, ties to even; a NaN stays one. */
INLINE void store_bf16(bf16 *to, floats x) {
    words bits = (words)x;
    halves found = __builtin_convertvector((bits + 0x7fff + ((bits >> 16) & 1)) >> 16, halves);
    memcpy(to, &found, sizeof found);
}

/* IEEE half precision, finite values only; subnormals included. */
INLINE floats load_fp16(const uint16_t *from) {
    halves found;
    memcpy(&found, from, sizeof found);
#ifdef __AVX512F__
    return (floats)_mm512_cvtph_ps((__m256i)found);
#else
    words bits = widened(found);
    floats magnitude = (floats)((bits & 0x7fff) << 13) * all(0x1p112f);
    return (floats)((words)magnitude | ((bits & 0x8000) << 16));
#endif
}

/* Sixteen values of a kind, widened. */
INLINE floats load_kind(const void *from, int64_t at, int kind) {
    return kind == BFLOAT16 ? load_bf16((const bf16 *)from + at) : load((const float *)from + at);
}

INLINE void store_kind(void *to, int64_t at, floats x, int kind) {
    if (kind == BFLOAT16)
        store_bf16((bf16 *)to + at, x);
    else
        store((float *)to + at, x);
}

INLINE words load_words(const void *from) {
    words found;
    memcpy(&found, from, sizeof found);
    return found;
}

/* sum + two products of bfloat16 in each lane */
INLINE floats dot_pairs(floats sum, words a, words b) {
#ifdef __AVX512BF16__
    return (floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
#else
    sum += (floats)(a << 16) * (floats)(b << 16);
    return sum + (floats)(a & 0xffff0000u) * (floats)(b & 0xffff0000u);
#endif
}

/* The same two bfloat16 in every lane. */
INLINE words all_pairs(const bf16 *from) {
    uint32_t two;
    memcpy(&two, from, sizeof two);
    return (words){0} + two;
}

INLINE floats larger(floats a, floats b) {
    ints first = a > b;
    return (floats)((first & (ints)a) | (~first & (ints)b));
}

#define UPPER(v, a, b, c, d, e, f, g, h) \
    __builtin_shufflevector(v, v, a, b, c, d, e, f, g, h, a, b, c, d, e, f, g, h)

INLINE float sum_of(floats x) {
    x += UPPER(x, 8, 9, 10, 11, 12, 13, 14, 15);
    x += UPPER(x, 4, 5, 6, 7, 4, 5, 6, 7);
    x += UPPER(x, 2, 3, 2, 3, 2, 3, 2, 3);
    return x[0] + x[1];
}

INLINE float largest_of(floats x) {
    x = larger(x, UPPER(x, 8, 9, 10, 11, 12, 13, 14, 15));
    x = larger(x, UPPER(x, 4, 5, 6, 7, 4, 5, 6, 7));
    x = larger(x, UPPER(x, 2, 3, 2, 3, 2, 3, 2, 3));
    return x[0] > x[1] ? x[0] : x[1];
}

/* The sums of four vectors, to four places: one tree for all instead of four. */
INLINE void store_sums(float *to, floats a, floats b, floats c, floats d) {
    floats ab = __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29)
              + __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
    floats cd = __builtin_shufflevector(c, d, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29)
              + __builtin_shufflevector(c, d, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
    floats all4 = __builtin_shufflevector(ab, cd, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29)
                + __builtin_shufflevector(ab, cd, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
    all4 += UPPER(all4, 8, 9, 10, 11, 12, 13, 14, 15);
    all4 += UPPER(all4, 4, 5, 6, 7, 4, 5, 6, 7);
    memcpy(to, &all4, 4 * sizeof(float));
}

/* e to the x, to about 2 ulp; below -87 it is next to nothing, above 88 it stays at its largest. */
INLINE floats exp_of(floats x) {
    const float magic = 12582912.0f; /* adding it rounds to a whole number */
    ints low = x < all(-87.0f), high = x > all(88.0f);
    x = (floats)((low & (ints)all(-87.0f)) | (~low & (ints)x));
    x = (floats)((high & (ints)all(88.0f)) | (~high & (ints)x));
    floats whole = (x * 1.44269504f + magic) - magic;
    floats f = x - whole * 0.693359375f - whole * -2.12194440e-4f;
    floats y = f * 1.9875691500e-4f + 1.3981999507e-3f;
    y = y * f + 8.3334519073e-3f;
    y = y * f + 4.1665795894e-2f;
    y = y * f + 1.6666665459e-1f;
    y = y * f + 5.0000001201e-1f;
    y = y * f * f + f + 1.0f;
    return y * (floats)((__builtin_convertvector(whole, ints) + 127) << 23);
}

INLINE floats silu_of(floats x) { return x / (1.0f + exp_of(-x)); }

#endif
