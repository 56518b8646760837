/* Products of a few rows and whole forwards of decoders of Llama's form, for AVX2, AVX-512 and NEON from one source.

   Each number of a result is one chain of fused multiply-adds, in the order of the inputs, whatever the number of rows
   that share a call and however many threads: a row's bits do not depend on who shares its forward. Weights in bfloat16
   are widened on the way into a register, which is exact, so they give the bits of the same numbers in float32. So do
   codes, where their numbers are rounded once as in a file's own definition: see panels.py. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "native.h"

#define EXPORT __attribute__((visibility("default")))

enum { NONE, AVX2, AVX512, NEON };
enum { FAILED_TO_ALLOCATE = 1, NO_SUCH_KERNELS = 2, FAILED_TO_RUN = 3, OUT_OF_RANGE = 4 };

static inline int64_t rounded_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
/* A word has 1 << kind numbers. */
static inline int64_t panel_words(const Matrix *matrix) {
    return ((matrix->in + (1 << matrix->kind) - 1) >> matrix->kind) * LANES;
}
static inline int64_t num_panels(const Matrix *matrix) { return (matrix->out + LANES - 1) / LANES; }
static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* Where what each row brings along lies: every part is a multiple of 16 numbers wide. */
typedef struct {
    int64_t width, queries, keys, attended, mlp;
} Strides;

static Strides strides_of(const Decoder *decoder) {
    return (Strides){
        .width = rounded_up(decoder->width, LANES),
        .queries = rounded_up(decoder->heads * decoder->head_dim, LANES),
        .keys = rounded_up(decoder->kv_heads * decoder->head_dim, LANES),
        .attended = rounded_up(decoder->heads * decoder->head_dim, LANES),
        .mlp = rounded_up(decoder->mlp_width, LANES),
    };
}

/* Both the attention's and the MLP's part of a layer use the same room, one after the other. */
EXPORT int64_t specgate_scratch_floats(const Decoder *decoder, int64_t num_rows, int64_t num_kept) {
    Strides strides = strides_of(decoder);
    int64_t inner = most(strides.queries + 2 * strides.keys + strides.attended, 3 * strides.mlp);
    return num_rows * (2 * strides.width + inner) + num_kept * strides.width;
}

#if defined(__clang__)
#define BEGIN_TARGET_AVX2 _Pragma("clang attribute push(__attribute__((target(\"avx2,fma\"))), apply_to = function)")
#define BEGIN_TARGET_AVX512 \
    _Pragma("clang attribute push(__attribute__((target(\"avx512f,avx512vl,avx2,fma\"))), apply_to = function)")
#define END_TARGET _Pragma("clang attribute pop")
#else
#define BEGIN_TARGET_AVX2 _Pragma("GCC push_options") _Pragma("GCC target(\"avx2,fma\")")
#define BEGIN_TARGET_AVX512 _Pragma("GCC push_options") _Pragma("GCC target(\"avx512f,avx512vl,avx2,fma\")")
#define END_TARGET _Pragma("GCC pop_options")
#endif

/* VECTORS: registers that the 16 outputs of a panel take. MOST_ROWS: rows whose sums stay in registers with them.
   PANELS: how many panels so many rows take at a time, so that enough chains run side by side. */
#if defined(__x86_64__)
BEGIN_TARGET_AVX2
#define NAME(name) name##_avx2
#define VECTOR_BYTES 32
#define VECTORS 2
#define MOST_ROWS 6
#define PANELS(rows) ((rows) <= 2 ? 2 : 1)
#include "kernels.h"
END_TARGET
BEGIN_TARGET_AVX512
#define NAME(name) name##_avx512
#define VECTOR_BYTES 64
#define VECTORS 1
#define MOST_ROWS 12
#define PANELS(rows) ((rows) <= 6 ? 4 : 2)
#include "kernels.h"
END_TARGET
#elif defined(__aarch64__)
#define NAME(name) name##_neon
#define VECTOR_BYTES 16
#define VECTORS 4
#define MOST_ROWS 6
#define PANELS(rows) ((rows) <= 1 ? 2 : 1)
#include "kernels.h"
#endif

static int has(int kernels) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    int has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (kernels == AVX512) return has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl");
    return kernels == AVX2 && has_avx2;
#elif defined(__aarch64__)
    return kernels == NEON;
#else
    return 0;
#endif
}

/* Which kernels this processor is best served by; NONE: it has none of them. */
EXPORT int specgate_cpu_best(void) {
    for (int kernels = NEON; kernels > NONE; kernels--)
        if (has(kernels)) return kernels;
    return NONE;
}

#ifndef SPECGATE_SOURCES
#define SPECGATE_SOURCES ""
#endif
/* The digest of these files: Python's structures must be those of native.h, and mean the same. */
EXPORT const char *specgate_sources(void) { return SPECGATE_SOURCES; }

/* rows [num_rows][in] times a matrix, plus its bias: out [num_rows][panels * 16]. */
EXPORT int specgate_product(
    int kernels, const Matrix *matrix, const float *rows, int64_t num_rows, float *out, ParallelFor *parallel_for) {
    switch (kernels) {
#if defined(__x86_64__)
    case AVX2: return product_avx2(parallel_for, &matrix, 1, rows, matrix->in, num_rows, out, num_panels(matrix) * LANES, 0);
    case AVX512:
        return product_avx512(parallel_for, &matrix, 1, rows, matrix->in, num_rows, out, num_panels(matrix) * LANES, 0);
#elif defined(__aarch64__)
    case NEON: return product_neon(parallel_for, &matrix, 1, rows, matrix->in, num_rows, out, num_panels(matrix) * LANES, 0);
#endif
    default: return NO_SUCH_KERNELS;
    }
}

/* Write the keys and values of all rows into the pages, and the logits of those to keep. 0 where it went well. */
EXPORT int specgate_forward(int kernels, const Decoder *decoder, const Batch *batch) {
    switch (kernels) {
#if defined(__x86_64__)
    case AVX2: return forward_avx2(decoder, batch);
    case AVX512: return forward_avx512(decoder, batch);
#elif defined(__aarch64__)
    case NEON: return forward_neon(decoder, batch);
#endif
    default: return NO_SUCH_KERNELS;
    }
}

/* Choose a token in every row, see choosing.h. */
EXPORT int specgate_choose(int kernels, const Choosing *choosing) {
    switch (kernels) {
#if defined(__x86_64__)
    case AVX2: return choose_avx2(choosing);
    case AVX512: return choose_avx512(choosing);
#elif defined(__aarch64__)
    case NEON: return choose_neon(choosing);
#endif
    default: return NO_SUCH_KERNELS;
    }
}

/* Draft a few tokens behind every sequence of a batch, see Draft. */
EXPORT int specgate_draft(int kernels, const Decoder *decoder, Draft *draft) {
    switch (kernels) {
#if defined(__x86_64__)
    case AVX2: return draft_avx2(decoder, draft);
    case AVX512: return draft_avx512(decoder, draft);
#elif defined(__aarch64__)
    case NEON: return draft_neon(decoder, draft);
#endif
    default: return NO_SUCH_KERNELS;
    }
}
