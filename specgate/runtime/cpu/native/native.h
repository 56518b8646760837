/* What Python hands over; specgate/runtime/cpu/native_calls.py has the same structures. No Python, no torch. */
#ifndef SPECGATE_NATIVE_H
#define SPECGATE_NATIVE_H

#include <stdint.h>

enum { LANES = 16 }; /* Outputs of a panel. */

/* How the numbers of a weight are stored, 1, 2, 4 or 8 in a word. A code is a whole number, of 8 bits with a sign or of 4
   without one. */
enum { FLOAT32, BFLOAT16, CODES_8, CODES_4, NUM_KINDS };

/* A weight [out, in], packed in panels of 16 outputs: words [panels][in / numbers of a word][16]. A word has one number
   in float32, two in bfloat16, four codes of 8 bits or eight of 4, the first one lowest, all of one output. The last
   panel is filled up with zeros, and so is an odd input in bfloat16. A code stands for code * scale + offset; each block
   of inputs has a scale, and perhaps an offset, for every output. */
typedef struct {
    const void *panels;
    const float *bias; /* [panels * 16], or NULL. */
    const float *scales, *offsets; /* Of codes: [panels][in / block][16]; no offsets: NULL. */
    int64_t out, in;
    int64_t kind, block; /* A block is a power of 2. */
} Matrix;

typedef struct {
    Matrix query, key, value, attention_out, gate, up, down;
    const float *attention_norm, *mlp_norm; /* [width] */
    const float *query_norm, *key_norm;     /* [head_dim], or NULL. */
    float *key_pages;                       /* [num_pages][kv_heads][page_panels][head_dim][16] */
    float *value_pages;                     /* [num_pages][kv_heads][page_size][head_stride] */
    int64_t window;                         /* How many tokens a row sees, itself among them; 0 is all. */
    int64_t has_attention, has_mlp;
} Layer;

typedef struct {
    const Layer *layers;
    int64_t num_layers, vocabulary, width, heads, kv_heads, head_dim, mlp_width, page_size;
    float scale, epsilon;
    const void *table; /* The embedding [vocabulary, width]; NULL: it lies in panels. */
    int64_t table_is_bfloat16;
    const float *final_norm;
    Matrix head, embedding;
} Decoder;

typedef void Range(int64_t begin, int64_t end, void *context);
/* torch_parallel_for of torch's stable C interface; 0 where it went well. */
typedef int32_t ParallelFor(int64_t begin, int64_t end, int64_t grain, Range *range, void *context);

typedef struct {
    int64_t first_row, num_rows, start; /* Rows of the batch, and the position of the first one. */
    int64_t first_page;                 /* Where in the batch's pages its own begin, in order. */
} Sequence;

typedef struct {
    int64_t *token_ids, *positions; /* [num_rows] */
    const int64_t *keep;            /* [num_kept] rows whose logits are wanted; NULL: all. */
    Sequence *sequences;
    const int64_t *pages;
    int64_t num_rows, num_kept, num_sequences, num_positions;
    const float *cosines, *sines; /* [num_positions][head_dim / 2] */
    float *scratch;               /* As many as specgate_scratch_floats says. */
    float *logits;                /* [num_kept][panels of the head * 16] */
    ParallelFor *parallel_for;    /* NULL: one thread. */
} Batch;

typedef struct {
    const float *logits; /* [num_rows][vocabulary], a row every ``step`` numbers. */
    int64_t step, vocabulary, num_rows;
    const int64_t *ids; /* [vocabulary], ascending: which tokens these are; NULL: all from 0 on. */
    const uint64_t *keys; /* [num_rows] of the noise; NULL: greedy. */
    float temperature;
    int64_t with_probs;
    double *table; /* [num_rows][4] */
    ParallelFor *parallel_for;
} Choosing;

/* Forwards one behind the other, each on the tokens that were chosen from the one before. What the first two are given
   is for the first step, of which each sequence keeps one row; those of later ones lie behind. */
typedef struct {
    Batch batch;
    Choosing choosing;
    int64_t num_steps;                /* As many as were taken, afterwards. */
    const volatile int32_t *interrupt; /* No further step is begun once it is not 0. */
    double stop_below;                 /* Nor after a token of the first sequence of a raw probability below this. */
} Draft;

#endif
