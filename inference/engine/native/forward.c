/*
 * All layers of a Llama-family model over the tokens of one step, in one parallel region, and the
 * head. Hidden states and everything between two products are float32, whatever the weights are.
 */
#include "kernels.h"

/* A norm that is not there is NULL. The pages' `span` is the layer's own. */
typedef struct {
    Linear qkv, output, gate_up, down;
    const float *attention_norm, *mlp_norm, *query_norm, *key_norm;
    int64_t rotates;
    Pages pages;
} Layer;

typedef struct {
    int64_t hidden, inner, heads, kv_heads, head_dim, layers;
    double eps;
    const Layer *layer;
    const float *cosines, *sines; /* [positions, head_dim / 2] */
    const float *norm;
    Linear head;
} Model;

/* `states` [tokens, hidden] come in as embeddings and go out as what the head's norm takes. */
typedef struct {
    int64_t tokens, prefill_count, threads;
    float *states;
    const int64_t *positions, *slots; /* slots [tokens, kv_heads] */
    Decodes decodes;                  /* its rows are the first tokens */
    const Prefill *prefills;
    uint8_t *scratch;
} Step;

/* Where a step's intermediate values lie. */
typedef struct {
    float *qkv, *mixed, *inner, *partials, *own;
    int64_t own_floats;
    Operand operand;
} Room;

INLINE int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
INLINE int64_t lined(int64_t bytes) { return (bytes + 63) / 64 * 64; }

static int64_t qkv_size(const Model *m) { return (m->heads + 2 * m->kv_heads) * m->head_dim; }
static int64_t widest(const Model *m) {
    return most(most(m->hidden, m->inner), m->heads * m->head_dim);
}

/* Lay the room out at `base`; gives its bytes. With base NULL it only counts. */
static int64_t lay_out(const Model *m, const Step *s, uint8_t *base, Room *room) {
    const Pages *pages = &m->layer[0].pages;
    int64_t n = s->tokens, wide = widest(m), at = 0;
#define TAKE(field, bytes) room->field = (void *)(base + at), at += lined(bytes)
    TAKE(qkv, n * qkv_size(m) * 4);
    TAKE(mixed, n * m->heads * m->head_dim * 4);
    TAKE(inner, n * 2 * m->inner * 4);
    TAKE(operand.values, n * wide * 4);
    TAKE(operand.scales, n * (wide / GROUP + 1) * 2 * 4);
    TAKE(partials, s->decodes.rows ? decode_partial_floats(pages, &s->decodes) * 4 : 0);
    room->own_floats = most(prefill_scratch_floats(pages), wide) + 16;
    TAKE(own, s->threads * room->own_floats * 4);
#undef TAKE
    return at;
}

/* to = weight * from / root mean square of from */
static void norm_row(const float *from, const float *weight, int64_t size, double eps, float *to) {
    floats squares = {0};
    float rest = 0.0f;
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES) squares += load(from + i) * load(from + i);
    for (; i < size; i++) rest += from[i] * from[i];
    float mean = (sum_of(squares) + rest) / (float)size;
    float scale = 1.0f / __builtin_sqrtf(mean + (float)eps);
    for (i = 0; i < size; i++) to[i] = weight[i] * (from[i] * scale);
}

static void normed_operand(const Model *m, const Linear *w, const float *norm, int64_t rows,
                           const float *states, Room *room) {
    float *row = room->own + THREAD * room->own_floats;
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        norm_row(states + r * m->hidden, norm, m->hidden, m->eps, row);
        operand_row(room->operand, r, row, w);
    }
}

static void plain_operand(const Linear *w, int64_t rows, const float *from, Room *room) {
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; r++) operand_row(room->operand, r, from + r * w->inputs, w);
}

/* silu(gate) * up of the two halves of each row */
static void gated_operand(const Linear *w, int64_t rows, const float *from, Room *room) {
    int64_t size = w->inputs;
    float *row = room->own + THREAD * room->own_floats;
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        const float *gate = from + r * 2 * size;
        for (int64_t i = 0; i < size; i += LANES)
            store(row + i, silu_of(load(gate + i)) * load(gate + size + i));
        operand_row(room->operand, r, row, w);
    }
}

/* Halves of a head, turned against each other. */
static void turn(float *head, const float *cosines, const float *sines, int64_t half) {
    for (int64_t i = 0; i < half; i++) {
        float left = head[i], right = head[i + half];
        head[i] = left * cosines[i] - right * sines[i];
        head[i + half] = right * cosines[i] + left * sines[i];
    }
}

static void keep(const Pages *pages, void *to, int64_t slot, const float *from) {
    for (int64_t i = 0; i < pages->head_dim; i += LANES)
        store_kind(to, slot * pages->head_dim + i, load(from + i), (int)pages->kind);
}

/* Norm and turn queries and keys, and write keys and values to their places in the cache. */
static void place_heads(const Model *m, const Layer *l, const Step *s, float *qkv) {
    int64_t size = m->head_dim, half = size / 2, all_heads = m->heads + 2 * m->kv_heads;
#pragma omp for schedule(static)
    for (int64_t each = 0; each < s->tokens * all_heads; each++) {
        int64_t token = each / all_heads, head = each % all_heads;
        float *own = qkv + each * size;
        int64_t place = head - m->heads; /* among the keys, then the values */
        const float *norm = place < 0 ? l->query_norm : place < m->kv_heads ? l->key_norm : 0;
        if (norm) norm_row(own, norm, size, m->eps, own);
        if (place < m->kv_heads && l->rotates)
            turn(own, m->cosines + s->positions[token] * half, m->sines + s->positions[token] * half, half);
        if (place >= m->kv_heads)
            keep(&l->pages, l->pages.values, s->slots[token * m->kv_heads + place - m->kv_heads], own);
        else if (place >= 0)
            keep(&l->pages, l->pages.keys, s->slots[token * m->kv_heads + place], own);
    }
}

static void attend(const Model *m, const Layer *l, const Step *s, Room *room) {
    int64_t size = m->heads * m->head_dim;
    Rows rows = {room->qkv, room->mixed, qkv_size(m), size};
    if (s->decodes.rows) attend_decodes(&l->pages, &s->decodes, rows, room->partials);
    float *scratch = room->own + THREAD * (room->own_floats - prefill_scratch_floats(&l->pages));
    for (int64_t i = 0; i < s->prefill_count; i++)
        attend_prefill(&l->pages, s->prefills + i, rows, scratch);
}

static void layer_forward(const Model *m, const Layer *l, const Step *s, Room *room) {
    int64_t n = s->tokens;
    normed_operand(m, &l->qkv, l->attention_norm, n, s->states, room);
    product(&l->qkv, room->operand, n, room->qkv, qkv_size(m), 0);
    place_heads(m, l, s, room->qkv);
    attend(m, l, s, room);
    plain_operand(&l->output, n, room->mixed, room);
    product(&l->output, room->operand, n, s->states, m->hidden, 1);
    normed_operand(m, &l->gate_up, l->mlp_norm, n, s->states, room);
    product(&l->gate_up, room->operand, n, room->inner, 2 * m->inner, 0);
    gated_operand(&l->down, n, room->inner, room);
    product(&l->down, room->operand, n, s->states, m->hidden, 1);
}

/* ---- what Python calls ---- */

int64_t haltline_scratch_bytes(const Model *model, const Step *step) {
    Room room;
    return lay_out(model, step, 0, &room);
}

void haltline_forward(const Model *model, const Step *step) {
#pragma omp parallel num_threads((int)step->threads)
    {
        Room room;
        lay_out(model, step, step->scratch, &room);
        for (int64_t i = 0; i < model->layers; i++)
            layer_forward(model, model->layer + i, step, &room);
    }
}

/* logits [tokens, vocabulary] of `states`; the step has tokens, states, scratch and threads. */
void haltline_logits(const Model *model, const Step *step, float *logits) {
#pragma omp parallel num_threads((int)step->threads)
    {
        Room room;
        lay_out(model, step, step->scratch, &room);
        normed_operand(model, &model->head, model->norm, step->tokens, step->states, &room);
        product(&model->head, room.operand, step->tokens, logits, model->head.outputs, 0);
    }
}

/* Bytes for the operand of a product alone. */
int64_t haltline_linear_bytes(const Linear *linear, int64_t rows) {
    return lined(rows * operand_value_bytes(linear->kind, linear->inputs))
         + rows * (linear->inputs / GROUP + 1) * 2 * 4;
}

void haltline_linear(const Linear *linear, const float *from, int64_t rows, float *to,
                     uint8_t *scratch, int64_t threads) {
    int64_t values = lined(rows * operand_value_bytes(linear->kind, linear->inputs));
    Room room = {.operand = {scratch, (float *)(scratch + values)}};
#pragma omp parallel num_threads((int)threads)
    {
        plain_operand(linear, rows, from, &room);
        product(linear, room.operand, rows, to, linear->outputs, 0);
    }
}

int64_t haltline_decode_bytes(const Pages *pages, const Decodes *decodes) {
    return decode_partial_floats(pages, decodes) * 4;
}

void haltline_decode(const Pages *pages, const Decodes *decodes, const Rows *rows, float *scratch,
                     int64_t threads) {
#pragma omp parallel num_threads((int)threads)
    attend_decodes(pages, decodes, *rows, scratch);
}

int64_t haltline_prefill_bytes(const Pages *pages, int64_t threads) {
    return prefill_scratch_floats(pages) * 4 * threads;
}

void haltline_prefill(const Pages *pages, const Prefill *prefill, const Rows *rows, float *scratch,
                      int64_t threads) {
#pragma omp parallel num_threads((int)threads)
    attend_prefill(pages, prefill, *rows, scratch);
}

/* What this build has: 1 threads, 2 dot products of bytes, 4 dot products of bfloat16. */
int64_t haltline_features(void) {
    int64_t found = 0;
#ifdef _OPENMP
    found |= 1;
#endif
#ifdef __AVX512VNNI__
    found |= 2;
#endif
#ifdef __AVX512BF16__
    found |= 4;
#endif
    return found;
}

/* The sizes of the structures, for library.py to compare with its own. */
void haltline_layout(int64_t *sizes) {
    sizes[0] = sizeof(Linear), sizes[1] = sizeof(Pages), sizes[2] = sizeof(Decodes);
    sizes[3] = sizeof(Prefill), sizes[4] = sizeof(Rows), sizes[5] = sizeof(Layer);
    sizes[6] = sizeof(Model), sizes[7] = sizeof(Step);
}
