/*
 * y = W x for weights in panels, by tiles of up to six rows times 32 outputs.
 *
 * Grouped weights are integers q for each output and group of 32 inputs: of four bits, with
 * w = scale * q + minimum, or of eight, with w = scale * (q - 128). Activations are rounded to signed bytes with a scale for each row and group, so that
 * each group's products are exact integers, and a row's result depends on no other row.
 */
#include "kernels.h"

/*
 * Rows of a tile. A tile's sums should fit the registers: where they do not, tall tiles are slow,
 * and some compilers take minutes over them.
 */
#ifdef __AVX512F__
enum { TILE = 6 };
#define UNROLL_STEPS _Pragma("GCC unroll 8")
#else
enum { TILE = 2 };
#define UNROLL_STEPS _Pragma("GCC unroll 2")
#endif

INLINE int group_bytes(int kind) {
    return kind == GROUPED4 ? GROUP * PANEL / 2 + 2 * PANEL * 2 : GROUP * PANEL + PANEL * 2;
}

/* Bytes of one row of an operand. */
int64_t operand_value_bytes(int64_t kind, int64_t inputs) {
    return inputs * (kind == FLOAT32 ? 4 : kind == BFLOAT16 ? 2 : 1);
}

/* The largest magnitude, compared as integers so that infinities and NaN count as largest. */
static float magnitude_of(floats a, floats b) {
    ints x = (ints)a & 0x7fffffff, y = (ints)b & 0x7fffffff;
    ints more = x > y;
    x = (more & x) | (~more & y);
    int32_t best = x[0];
    for (int lane = 1; lane < LANES; lane++) best = x[lane] > best ? x[lane] : best;
    float found;
    memcpy(&found, &best, sizeof found);
    return found;
}

/* Scales are the scale, then what the kind adds for it: scale * sum, or -128 * sum as an integer. */
static void quantize_group(const float *from, int8_t *to, float *scales, int64_t kind) {
    const float magic = 12582912.0f;
    floats a = load(from), b = load(from + LANES);
    float scale = magnitude_of(a, b) / 127.0f;
    float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
    ints p = __builtin_convertvector((a * inverse + magic) - magic, ints);
    ints q = __builtin_convertvector((b * inverse + magic) - magic, ints);
    int sum = 0;
    for (int lane = 0; lane < LANES; lane++) {
        to[lane] = (int8_t)p[lane];
        to[lane + LANES] = (int8_t)q[lane];
        sum += p[lane] + q[lane];
    }
    scales[0] = scale;
    if (kind == GROUPED4) {
        scales[1] = scale * (float)sum;
    } else {
        int32_t shift = -128 * sum;
        memcpy(scales + 1, &shift, sizeof shift);
    }
}

void operand_row(Operand x, int64_t row, const float *from, const Linear *w) {
    int64_t size = w->inputs;
    if (w->kind == FLOAT32) {
        memcpy((float *)x.values + row * size, from, size * sizeof(float));
    } else if (w->kind == BFLOAT16) {
        for (int64_t i = 0; i < size; i += LANES)
            store_bf16((bf16 *)x.values + row * size + i, load(from + i));
    } else {
        for (int64_t g = 0; g < size / GROUP; g++)
            quantize_group(from + g * GROUP, (int8_t *)x.values + row * size + g * GROUP,
                           x.scales + (row * (size / GROUP) + g) * 2, w->kind);
    }
}

/* sum + four products of unsigned by signed bytes in each lane; `four` holds the signed ones. */
INLINE ints dot_bytes(ints sum, words weights, int32_t four) {
#if defined(__AVX512VNNI__)
    return (ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)weights, _mm512_set1_epi32(four));
#elif defined(__AVX2__)
    int32_t even = (uint16_t)(int8_t)four | (int32_t)((uint32_t)(int8_t)(four >> 16) << 16);
    int32_t odd = (uint16_t)(int8_t)(four >> 8) | (int32_t)((uint32_t)(int8_t)(four >> 24) << 16);
    words low = weights & 0x00ff00ff, high = (weights >> 8) & 0x00ff00ff;
    __m256i parts[2], lows[2], highs[2];
    memcpy(parts, &sum, 64), memcpy(lows, &low, 64), memcpy(highs, &high, 64);
    for (int i = 0; i < 2; i++) {
        __m256i a = _mm256_madd_epi16(lows[i], _mm256_set1_epi32(even));
        __m256i b = _mm256_madd_epi16(highs[i], _mm256_set1_epi32(odd));
        parts[i] = _mm256_add_epi32(parts[i], _mm256_add_epi32(a, b));
    }
    memcpy(&sum, parts, 64);
    return sum;
#else
    sum += (ints)(weights & 255) * (int32_t)(int8_t)four;
    sum += (ints)((weights >> 8) & 255) * (int32_t)(int8_t)(four >> 8);
    sum += (ints)((weights >> 16) & 255) * (int32_t)(int8_t)(four >> 16);
    return sum + (ints)(weights >> 24) * (int32_t)(int8_t)(four >> 24);
#endif
}

INLINE void tile_float32(const float *w, const float *x, int64_t size, int rows, floats (*sum)[2]) {
    for (int64_t k = 0; k < size; k++, w += PANEL) {
        floats a = load(w), b = load(w + LANES);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            floats each = all(x[r * size + k]);
            sum[r][0] += a * each;
            sum[r][1] += b * each;
        }
    }
}

INLINE void tile_bfloat16(const bf16 *w, const bf16 *x, int64_t size, int rows, floats (*sum)[2]) {
    for (int64_t k = 0; k < size; k += 2, w += 2 * PANEL) {
        words a = load_words(w), b = load_words(w + PANEL);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            words each = all_pairs(x + r * size + k);
            sum[r][0] = dot_pairs(sum[r][0], a, each);
            sum[r][1] = dot_pairs(sum[r][1], b, each);
        }
    }
}

/* Four inputs' integers for 16 outputs; 4-bit ones lie in pairs of such steps. */
INLINE words step_words(const uint8_t *group, int step, int half, int kind) {
    if (kind == GROUPED8) return load_words(group + (step * 2 + half) * 64);
    words two = load_words(group + (step / 2 * 2 + half) * 64);
    return (step & 1 ? two >> 4 : two) & 0x0f0f0f0f;
}

INLINE void tile_grouped(const uint8_t *w, const int8_t *x, const float *scales, int64_t size,
                         int kind, int rows, floats (*sum)[2]) {
    int64_t groups = size / GROUP;
    for (int64_t g = 0; g < groups; g++, w += group_bytes(kind)) {
        ints dots[TILE][2];
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            int32_t shift = 0;
            if (kind == GROUPED8) memcpy(&shift, scales + (r * groups + g) * 2 + 1, sizeof shift);
            dots[r][0] = dots[r][1] = (ints){0} + shift;
        }
        UNROLL_STEPS
        for (int step = 0; step < GROUP / 4; step++) {
            words a = step_words(w, step, 0, kind), b = step_words(w, step, 1, kind);
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) {
                int32_t four;
                memcpy(&four, x + r * size + g * GROUP + step * 4, 4);
                dots[r][0] = dot_bytes(dots[r][0], a, four);
                dots[r][1] = dot_bytes(dots[r][1], b, four);
            }
        }
        const uint16_t *end = (const uint16_t *)(w + group_bytes(kind)) - PANEL;
        const uint16_t *start = kind == GROUPED4 ? end - PANEL : end;
        floats scale[2] = {load_fp16(start), load_fp16(start + LANES)};
        floats least[2] = {load_fp16(end), load_fp16(end + LANES)}; /* of four bits only */
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            const float *own = scales + (r * groups + g) * 2;
#pragma GCC unroll 2
            for (int half = 0; half < 2; half++) {
                floats dot = __builtin_convertvector(dots[r][half], floats) * own[0];
                sum[r][half] += dot * scale[half];
                if (kind == GROUPED4) sum[r][half] += least[half] * own[1];
            }
        }
    }
}

/* Put a tile where it belongs; the last panel may reach beyond the outputs. */
INLINE void put(float *to, floats a, floats b, int64_t left, int adds) {
    if (left >= PANEL) {
        store(to, adds ? load(to) + a : a);
        store(to + LANES, adds ? load(to + LANES) + b : b);
        return;
    }
    for (int64_t i = 0; i < left; i++) {
        float value = i < LANES ? a[i] : b[i - LANES];
        to[i] = adds ? to[i] + value : value;
    }
}

INLINE void tile(const Linear *w, int64_t panel, Operand x, int64_t row, int rows, int kind,
                 float *to, int64_t stride, int adds) {
    int64_t size = w->inputs, groups = size / GROUP;
    floats sum[TILE][2];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
        sum[r][0] = w->bias ? load(w->bias + panel * PANEL) : (floats){0};
        sum[r][1] = w->bias ? load(w->bias + panel * PANEL + LANES) : (floats){0};
    }
    if (kind == FLOAT32)
        tile_float32((const float *)w->panels + panel * PANEL * size,
                     (const float *)x.values + row * size, size, rows, sum);
    else if (kind == BFLOAT16)
        tile_bfloat16((const bf16 *)w->panels + panel * PANEL * size,
                      (const bf16 *)x.values + row * size, size, rows, sum);
    else
        tile_grouped((const uint8_t *)w->panels + panel * groups * group_bytes(kind),
                     (const int8_t *)x.values + row * size, x.scales + row * groups * 2, size, kind,
                     rows, sum);
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
        put(to + (row + r) * stride + panel * PANEL, sum[r][0], sum[r][1],
            w->outputs - panel * PANEL, adds);
}

/* A case beyond the tallest tile never comes; it must still compile. */
#define AT_MOST(height) ((height) < TILE ? (height) : TILE)

/* All rows of a panel, in tiles of equal height as far as that goes. */
#define TILES(KIND)                                                                              \
    static void tiles_##KIND(const Linear *w, int64_t panel, Operand x, int64_t rows, float *to,  \
                             int64_t stride, int adds) {                                          \
        int64_t row = 0, left = (rows + TILE - 1) / TILE;                                         \
        for (int64_t height; left > 0; left--, row += height) {                                   \
            height = (rows - row + left - 1) / left;                                              \
            switch (height) {                                                                     \
            case 6: tile(w, panel, x, row, AT_MOST(6), KIND, to, stride, adds); break;            \
            case 5: tile(w, panel, x, row, AT_MOST(5), KIND, to, stride, adds); break;            \
            case 4: tile(w, panel, x, row, AT_MOST(4), KIND, to, stride, adds); break;            \
            case 3: tile(w, panel, x, row, AT_MOST(3), KIND, to, stride, adds); break;            \
            case 2: tile(w, panel, x, row, AT_MOST(2), KIND, to, stride, adds); break;            \
            default: tile(w, panel, x, row, 1, KIND, to, stride, adds);                           \
            }                                                                                     \
        }                                                                                         \
    }

TILES(FLOAT32)
TILES(BFLOAT16)
TILES(GROUPED8)
TILES(GROUPED4)

/* to [rows, outputs] = W x + b, or that added to what is there. */
void product(const Linear *w, Operand x, int64_t rows, float *to, int64_t stride, int adds) {
    int64_t panels = (w->outputs + PANEL - 1) / PANEL;
    int64_t chunk = panels >= 256 ? 16 : panels >= 64 ? 4 : 1;
#pragma omp for schedule(dynamic, chunk)
    for (int64_t panel = 0; panel < panels; panel++) {
        switch (w->kind) {
        case FLOAT32: tiles_FLOAT32(w, panel, x, rows, to, stride, adds); break;
        case BFLOAT16: tiles_BFLOAT16(w, panel, x, rows, to, stride, adds); break;
        case GROUPED8: tiles_GROUPED8(w, panel, x, rows, to, stride, adds); break;
        default: tiles_GROUPED4(w, panel, x, rows, to, stride, adds); break;
        }
    }
}
