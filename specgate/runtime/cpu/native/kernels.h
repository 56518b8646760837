/* Included by native.c for each instruction set, with NAME, VECTOR_BYTES, VECTORS, MOST_ROWS and PANELS defined. */

#define LANES_OF (VECTOR_BYTES / 4)
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

typedef float NAME(vec) __attribute__((vector_size(VECTOR_BYTES), aligned(4), may_alias));
typedef uint32_t NAME(words) __attribute__((vector_size(VECTOR_BYTES), aligned(4), may_alias));
typedef int32_t NAME(ints) __attribute__((vector_size(VECTOR_BYTES), aligned(4), may_alias));
#define VEC NAME(vec)
#define WORDS NAME(words)
#define INTS NAME(ints)

#include "product.h"
#include "rows.h"
#include "attention.h"
#include "forward.h"
#include "choosing.h"

#undef LANES_OF
#undef INLINE
#undef UNROLL
#undef VEC
#undef WORDS
#undef INTS
#undef TILE
#undef MOST_PANELS
#undef SUMS
#undef WEIGHTS
#undef OF_ROWS
#undef NAME
#undef VECTOR_BYTES
#undef VECTORS
#undef MOST_ROWS
#undef PANELS
