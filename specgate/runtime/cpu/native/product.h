/* Rows times weights in panels. Included by kernels.h for each instruction set. */

#define MOST_PANELS PANELS(1)
#define SUMS VEC sums[MOST_ROWS][MOST_PANELS][VECTORS]
#define WEIGHTS VEC weights[MOST_PANELS][VECTORS]

/* How a part of a product lies in memory. Steps are in words. */
typedef struct {
    const float *rows;
    int64_t row_step;
    const uint32_t *weights;
    int64_t input_step, panel_step;
    const float *scales, *offsets;
    int64_t scale_step, block; /* From panel to panel; inputs. */
    float *out;
    int64_t out_step;
    int64_t num_inputs;
} NAME(Tile);
#define TILE const NAME(Tile) *tile

INLINE VEC NAME(load)(const float *from) { return *(const VEC *)from; }

/* Sums of rows x panels: 0, or what is there already. */
INLINE void NAME(begin)(const int rows, const int panels, SUMS, TILE, int adds) {
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int p = 0; p < panels; p++)
            UNROLL for (int v = 0; v < VECTORS; v++)
                sums[r][p][v] = adds ? NAME(load)(tile->out + r * tile->out_step + p * LANES + v * LANES_OF) : (VEC){0};
}

INLINE void NAME(end)(const int rows, const int panels, SUMS, TILE) {
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int p = 0; p < panels; p++)
            UNROLL for (int v = 0; v < VECTORS; v++)
                *(VEC *)(tile->out + r * tile->out_step + p * LANES + v * LANES_OF) = sums[r][p][v];
}

/* What the next panels begin with, into the second cache: while sums are made of these, memory is read for those. */
INLINE void NAME(fetch)(const void *address) { __builtin_prefetch(address, 0, 2); }

/* One input more: each row's number times the panels' weights of that input. */
INLINE void NAME(step)(const int rows, const int panels, SUMS, WEIGHTS, TILE, int64_t k) {
    UNROLL for (int r = 0; r < rows; r++) {
        float x = tile->rows[r * tile->row_step + k];
        UNROLL for (int p = 0; p < panels; p++)
            UNROLL for (int v = 0; v < VECTORS; v++) sums[r][p][v] = weights[p][v] * x + sums[r][p][v];
    }
}

INLINE void NAME(tile_float32)(const int rows, const int panels, TILE, int adds) {
    SUMS;
    WEIGHTS;
    NAME(begin)(rows, panels, sums, tile, adds);
    for (int64_t k = 0; k < tile->num_inputs; k++) {
        const uint32_t *input = tile->weights + k * tile->input_step;
        UNROLL for (int p = 0; p < panels; p++) {
            UNROLL for (int v = 0; v < VECTORS; v++)
                weights[p][v] = NAME(load)((const float *)input + p * tile->panel_step + v * LANES_OF);
            NAME(fetch)(input + (p + panels) * tile->panel_step);
        }
        NAME(step)(rows, panels, sums, weights, tile, k);
    }
    NAME(end)(rows, panels, sums, tile);
}

INLINE void NAME(tile_bfloat16)(const int rows, const int panels, TILE, int adds) {
    (void)adds;
    SUMS;
    WEIGHTS;
    NAME(begin)(rows, panels, sums, tile, 0);
    for (int64_t k = 0; k < tile->num_inputs; k++) {
        const uint32_t *pair = tile->weights + k / 2 * tile->input_step;
        UNROLL for (int p = 0; p < panels; p++) {
            UNROLL for (int v = 0; v < VECTORS; v++)
                weights[p][v] = (VEC)(*(const WORDS *)(pair + p * tile->panel_step + v * LANES_OF) << 16);
            NAME(fetch)(pair + (p + panels) * tile->panel_step);
        }
        NAME(step)(rows, panels, sums, weights, tile, k);
        if (++k == tile->num_inputs) break;
        UNROLL for (int p = 0; p < panels; p++)
            UNROLL for (int v = 0; v < VECTORS; v++)
                weights[p][v] = (VEC)(*(const WORDS *)(pair + p * tile->panel_step + v * LANES_OF) & 0xffff0000u);
        NAME(step)(rows, panels, sums, weights, tile, k);
    }
    NAME(end)(rows, panels, sums, tile);
}

/* Codes become numbers in a register, on their way to all rows. */
INLINE void NAME(tile_codes)(const int rows, const int panels, const int bits, const int has_offsets, TILE) {
    SUMS;
    WEIGHTS;
    VEC scales[MOST_PANELS][VECTORS], offsets[MOST_PANELS][VECTORS];
    WORDS words[MOST_PANELS][VECTORS];
    const uint32_t *next = tile->weights;
    NAME(begin)(rows, panels, sums, tile, 0);
    for (int64_t k = 0, block = 0; k < tile->num_inputs; block += LANES) {
        UNROLL for (int p = 0; p < panels; p++)
            UNROLL for (int v = 0; v < VECTORS; v++) {
                int64_t place = p * tile->scale_step + block + v * LANES_OF;
                scales[p][v] = NAME(load)(tile->scales + place);
                offsets[p][v] = has_offsets ? NAME(load)(tile->offsets + place) : (VEC){0};
            }
        for (int64_t end = k + tile->block; k < end; k += 32 / bits, next += tile->input_step) {
            UNROLL for (int p = 0; p < panels; p++) {
                UNROLL for (int v = 0; v < VECTORS; v++)
                    words[p][v] = *(const WORDS *)(next + p * tile->panel_step + v * LANES_OF);
                NAME(fetch)(next + (p + panels) * tile->panel_step);
            }
            UNROLL for (int i = 0; i < 32 / bits; i++) {
                UNROLL for (int p = 0; p < panels; p++)
                    UNROLL for (int v = 0; v < VECTORS; v++) {
                        INTS codes = bits == 8 ? (INTS)(words[p][v] << (24 - 8 * (i % 4))) >> 24
                                               : (INTS)(words[p][v] >> (4 * i) & 15u);
                        VEC numbers = __builtin_convertvector(codes, VEC) * scales[p][v];
                        if (has_offsets) numbers += offsets[p][v];
                        weights[p][v] = numbers;
                    }
                NAME(step)(rows, panels, sums, weights, tile, k + i);
            }
        }
    }
    NAME(end)(rows, panels, sums, tile);
}

INLINE void NAME(tile_codes_8)(const int rows, const int panels, TILE, int adds) {
    (void)adds;
    if (tile->offsets)
        NAME(tile_codes)(rows, panels, 8, 1, tile);
    else
        NAME(tile_codes)(rows, panels, 8, 0, tile);
}

/* What is stored in 4 bits has offsets: its codes have no sign. */
INLINE void NAME(tile_codes_4)(const int rows, const int panels, TILE, int adds) {
    (void)adds;
    NAME(tile_codes)(rows, panels, 4, 1, tile);
}

#define TILES_OF(kind, rows) \
    static void NAME(few_##kind##_##rows)(TILE, int adds) { NAME(tile_##kind)(rows, PANELS(rows), tile, adds); } \
    static void NAME(one_##kind##_##rows)(TILE, int adds) { NAME(tile_##kind)(rows, 1, tile, adds); }
#define TILES(rows) TILES_OF(float32, rows) TILES_OF(bfloat16, rows) TILES_OF(codes_8, rows) TILES_OF(codes_4, rows)
TILES(1) TILES(2) TILES(3) TILES(4) TILES(5) TILES(6)
#if MOST_ROWS > 6
TILES(7) TILES(8) TILES(9) TILES(10) TILES(11) TILES(12)
#endif
#undef TILES
#undef TILES_OF

#if MOST_ROWS > 6
#define OF_ROWS(name) \
    {0, NAME(name##1), NAME(name##2), NAME(name##3), NAME(name##4), NAME(name##5), NAME(name##6), NAME(name##7), \
     NAME(name##8), NAME(name##9), NAME(name##10), NAME(name##11), NAME(name##12)}
#else
#define OF_ROWS(name) \
    {0, NAME(name##1), NAME(name##2), NAME(name##3), NAME(name##4), NAME(name##5), NAME(name##6)}
#endif

/* At most MOST_ROWS rows times so many panels. */
static void NAME(tiles)(NAME(Tile) tile, int64_t rows, int64_t panels, int64_t kind, int adds) {
    static void (*const few[NUM_KINDS][MOST_ROWS + 1])(TILE, int) = {
        OF_ROWS(few_float32_), OF_ROWS(few_bfloat16_), OF_ROWS(few_codes_8_), OF_ROWS(few_codes_4_)};
    static void (*const one[NUM_KINDS][MOST_ROWS + 1])(TILE, int) = {
        OF_ROWS(one_float32_), OF_ROWS(one_bfloat16_), OF_ROWS(one_codes_8_), OF_ROWS(one_codes_4_)};
    while (panels > 0) {
        int64_t count = panels >= PANELS(rows) ? PANELS(rows) : 1;
        (count < PANELS(rows) ? one : few)[kind][rows](&tile, adds);
        tile.weights += count * tile.panel_step;
        if (tile.scales) tile.scales += count * tile.scale_step;
        if (tile.offsets) tile.offsets += count * tile.scale_step;
        tile.out += count * LANES;
        panels -= count;
    }
}

/* Into how many rows to cut what is left, so that no group is much smaller than the others. */
static int64_t NAME(group)(int64_t left) {
    int64_t groups = (left + MOST_ROWS - 1) / MOST_ROWS;
    return (left + groups - 1) / groups;
}

/* Matrices with the same inputs, their outputs side by side. */
typedef struct {
    const Matrix *const *matrices;
    int64_t num_matrices;
    const float *rows;
    int64_t row_step, num_rows;
    float *out;
    int64_t out_step;
    int adds; /* To what is in out: a residual. */
} NAME(Product);

/* Sums of a group of rows, with a bias perhaps, to where they belong. */
INLINE void NAME(hand_out)(
    const NAME(Product) *job, const float *sums, const float *bias, int64_t rows, int64_t width, float *out) {
    for (int64_t r = 0; r < rows; r++, sums += width, out += job->out_step)
        for (int64_t i = 0; i < width; i++) {
            float total = bias ? sums[i] + bias[i] : sums[i];
            out[i] = job->adds ? out[i] + total : total;
        }
}

/* Numbers of rows that are read again for every panel: they should stay in a core's own cache. */
enum { NAME(BLOCK) = 1 << 16 };

/* Panels begin to end of one matrix, times all rows; out is its first panel's. */
static void NAME(panels_times)(
    const NAME(Product) *job, const Matrix *matrix, int64_t begin, int64_t end, float *out) {
    int64_t panel_step = panel_words(matrix), scale_step = matrix->block ? matrix->in / matrix->block * LANES : 0;
    int64_t block = most(NAME(BLOCK) / most(matrix->in, 1) / MOST_ROWS, 1) * MOST_ROWS;
    float sums[MOST_ROWS * PANELS(1) * LANES];
    for (int64_t first = 0; first < job->num_rows; first += block) {
        int64_t stop = least(first + block, job->num_rows);
        for (int64_t p = begin, count; p < end; p += count) {
            count = least(PANELS(1), end - p);
            for (int64_t row = first, rows; row < stop; row += rows) {
                rows = NAME(group)(stop - row);
                NAME(tiles)((NAME(Tile)){
                    .rows = job->rows + row * job->row_step, .row_step = job->row_step,
                    .weights = (const uint32_t *)matrix->panels + p * panel_step,
                    .input_step = LANES, .panel_step = panel_step,
                    .scales = matrix->scales ? matrix->scales + p * scale_step : 0,
                    .offsets = matrix->offsets ? matrix->offsets + p * scale_step : 0,
                    .scale_step = scale_step, .block = matrix->block,
                    .out = sums, .out_step = count * LANES, .num_inputs = matrix->in,
                }, rows, count, matrix->kind, 0);
                const float *bias = matrix->bias ? matrix->bias + p * LANES : 0;
                NAME(hand_out)(job, sums, bias, rows, count * LANES, out + row * job->out_step + p * LANES);
            }
        }
    }
}

/* Panels begin to end, counted through all matrices. */
static void NAME(multiply)(int64_t begin, int64_t end, void *context) {
    const NAME(Product) *job = context;
    float *out = job->out;
    for (int64_t i = 0; i < job->num_matrices; i++) {
        int64_t panels = num_panels(job->matrices[i]);
        if (begin < panels && end > 0)
            NAME(panels_times)(job, job->matrices[i], most(begin, 0), least(end, panels), out);
        begin -= panels;
        end -= panels;
        out += panels * LANES;
    }
}

/* Multiply-adds that are worth a thread of their own. */
enum { NAME(WORTH) = 1 << 16 };

static int NAME(in_parallel)(ParallelFor *parallel_for, int64_t count, int64_t work_each, Range *range, void *context) {
    int64_t grain = most(1, NAME(WORTH) / most(work_each, 1));
    if (parallel_for && count > grain) return parallel_for(0, count, grain, range, context) ? FAILED_TO_RUN : 0;
    range(0, count, context);
    return 0;
}

static int NAME(product)(
    ParallelFor *parallel_for, const Matrix *const *matrices, int64_t num_matrices, const float *rows, int64_t row_step,
    int64_t num_rows, float *out, int64_t out_step, int adds) {
    NAME(Product) job = {matrices, num_matrices, rows, row_step, num_rows, out, out_step, adds};
    int64_t panels = 0;
    for (int64_t i = 0; i < num_matrices; i++) panels += num_panels(matrices[i]);
    return NAME(in_parallel)(parallel_for, panels, LANES * matrices[0]->in * num_rows, NAME(multiply), &job);
}
