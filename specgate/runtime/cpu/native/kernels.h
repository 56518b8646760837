/* Included by native.c once for each instruction set, with NAME, VECTOR_BYTES, VECTORS, MOST_ROWS and PANELS defined. */

#define LANES_OF (VECTOR_BYTES / 4)
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

typedef float NAME(vec) __attribute__((vector_size(VECTOR_BYTES), aligned(4), may_alias));
typedef uint32_t NAME(words) __attribute__((vector_size(VECTOR_BYTES), aligned(4), may_alias));
#define VEC NAME(vec)
#define WORDS NAME(words)

/* ---- Products ---------------------------------------------------------------------------------------------------- */

/* How a part of a product lies in memory. Steps are in float32 numbers, or in pairs of bfloat16 ones. */
typedef struct {
    const float *rows;
    int64_t row_step;
    const uint32_t *weights;
    int64_t input_step, panel_step;
    float *out;
    int64_t out_step;
    int64_t num_inputs;
} NAME(Tile);
#define TILE const NAME(Tile) *tile

INLINE VEC NAME(load)(const float *from) { return *(const VEC *)from; }

/* Sums of rows x panels: 0, or what is there already. */
INLINE void NAME(begin)(const int rows, const int panels, VEC sums[rows][panels][VECTORS], TILE, int adds) {
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int p = 0; p < panels; p++)
            UNROLL for (int v = 0; v < VECTORS; v++)
                sums[r][p][v] = adds ? NAME(load)(tile->out + r * tile->out_step + p * LANES + v * LANES_OF) : (VEC){0};
}

INLINE void NAME(end)(const int rows, const int panels, VEC sums[rows][panels][VECTORS], TILE) {
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int p = 0; p < panels; p++)
            UNROLL for (int v = 0; v < VECTORS; v++)
                *(VEC *)(tile->out + r * tile->out_step + p * LANES + v * LANES_OF) = sums[r][p][v];
}

/* One input more: each row's number times the panels' weights of that input. */
INLINE void NAME(step)(
    const int rows, const int panels, VEC sums[rows][panels][VECTORS], VEC weights[panels][VECTORS], TILE, int64_t k) {
    UNROLL for (int r = 0; r < rows; r++) {
        float x = tile->rows[r * tile->row_step + k];
        UNROLL for (int p = 0; p < panels; p++)
            UNROLL for (int v = 0; v < VECTORS; v++) sums[r][p][v] = weights[p][v] * x + sums[r][p][v];
    }
}

INLINE void NAME(tile_float32)(const int rows, const int panels, TILE, int adds) {
    VEC sums[rows][panels][VECTORS], weights[panels][VECTORS];
    NAME(begin)(rows, panels, sums, tile, adds);
    for (int64_t k = 0; k < tile->num_inputs; k++) {
        UNROLL for (int p = 0; p < panels; p++)
            UNROLL for (int v = 0; v < VECTORS; v++)
                weights[p][v] = NAME(load)(
                    (const float *)tile->weights + p * tile->panel_step + k * tile->input_step + v * LANES_OF);
        NAME(step)(rows, panels, sums, weights, tile, k);
    }
    NAME(end)(rows, panels, sums, tile);
}

INLINE void NAME(tile_bfloat16)(const int rows, const int panels, TILE) {
    VEC sums[rows][panels][VECTORS], weights[panels][VECTORS];
    NAME(begin)(rows, panels, sums, tile, 0);
    for (int64_t k = 0; k < tile->num_inputs; k++) {
        const uint32_t *pair = tile->weights + k / 2 * tile->input_step;
        UNROLL for (int p = 0; p < panels; p++)
            UNROLL for (int v = 0; v < VECTORS; v++)
                weights[p][v] = (VEC)(*(const WORDS *)(pair + p * tile->panel_step + v * LANES_OF) << 16);
        NAME(step)(rows, panels, sums, weights, tile, k);
        if (++k == tile->num_inputs) break;
        UNROLL for (int p = 0; p < panels; p++)
            UNROLL for (int v = 0; v < VECTORS; v++)
                weights[p][v] = (VEC)(*(const WORDS *)(pair + p * tile->panel_step + v * LANES_OF) & 0xffff0000u);
        NAME(step)(rows, panels, sums, weights, tile, k);
    }
    NAME(end)(rows, panels, sums, tile);
}

#define TILES(rows) \
    static void NAME(few_##rows)(TILE, int adds) { NAME(tile_float32)(rows, PANELS(rows), tile, adds); } \
    static void NAME(one_##rows)(TILE, int adds) { NAME(tile_float32)(rows, 1, tile, adds); } \
    static void NAME(few_short_##rows)(TILE) { NAME(tile_bfloat16)(rows, PANELS(rows), tile); } \
    static void NAME(one_short_##rows)(TILE) { NAME(tile_bfloat16)(rows, 1, tile); }
TILES(1) TILES(2) TILES(3) TILES(4) TILES(5) TILES(6)
#if MOST_ROWS > 6
TILES(7) TILES(8) TILES(9) TILES(10) TILES(11) TILES(12)
#endif
#undef TILES

#if MOST_ROWS > 6
#define OF_ROWS(name) \
    {0, NAME(name##1), NAME(name##2), NAME(name##3), NAME(name##4), NAME(name##5), NAME(name##6), NAME(name##7), \
     NAME(name##8), NAME(name##9), NAME(name##10), NAME(name##11), NAME(name##12)}
#else
#define OF_ROWS(name) \
    {0, NAME(name##1), NAME(name##2), NAME(name##3), NAME(name##4), NAME(name##5), NAME(name##6)}
#endif

/* At most MOST_ROWS rows times so many panels. */
static void NAME(tiles)(NAME(Tile) tile, int64_t rows, int64_t panels, int is_bfloat16, int adds) {
    static void (*const few[])(TILE, int) = OF_ROWS(few_), (*const one[])(TILE, int) = OF_ROWS(one_);
    static void (*const few_short[])(TILE) = OF_ROWS(few_short_), (*const one_short[])(TILE) = OF_ROWS(one_short_);
    while (panels > 0) {
        int64_t count = panels >= PANELS(rows) ? PANELS(rows) : 1;
        int is_one = count < PANELS(rows);
        if (is_bfloat16)
            (is_one ? one_short : few_short)[rows](&tile);
        else
            (is_one ? one : few)[rows](&tile, adds);
        tile.weights += count * tile.panel_step;
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
    int64_t panel_step = (matrix->is_bfloat16 ? (matrix->in + 1) / 2 : matrix->in) * LANES;
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
                    .out = sums, .out_step = count * LANES, .num_inputs = matrix->in,
                }, rows, count, (int)matrix->is_bfloat16, 0);
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

/* ---- What is done to each row by itself -------------------------------------------------------------------------- */

/* Sums by the place modulo 16, then those in a fixed order. */
INLINE float NAME(total)(const float parts[LANES]) {
    float sums[LANES];
    memcpy(sums, parts, sizeof sums);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) sums[i] += sums[i + half];
    return sums[0];
}

/* Root-mean-square norm (Zhang and Sennrich, 2019); out may be the row itself. */
INLINE void NAME(rms_norm)(const float *row, const float *weight, float epsilon, int64_t width, float *out) {
    float parts[LANES] = {0};
    int64_t whole = width / LANES * LANES;
    for (int64_t i = 0; i < whole; i += LANES)
        for (int lane = 0; lane < LANES; lane++) parts[lane] = fmaf(row[i + lane], row[i + lane], parts[lane]);
    for (int64_t i = whole; i < width; i++) parts[i - whole] = fmaf(row[i], row[i], parts[i - whole]);
    float scale = 1.0f / sqrtf(NAME(total)(parts) / (float)width + epsilon);
    for (int64_t i = 0; i < width; i++) out[i] = row[i] * scale * weight[i];
}

/* e to the x to two units in the last place: 2 to the n times a polynomial on [-ln 2 / 2, ln 2 / 2] (Cephes, Moshier).
   0 below the least normal number. Not a number stays that. */
INLINE float NAME(exponential)(float x) {
    float bounded = x > 88.0f ? 88.0f : x;
    float shifted = fmaf(bounded, 1.44269504088896341f, 12582912.0f); /* 1.5 * 2 to the 23: rounds to a whole number. */
    float n = shifted - 12582912.0f;
    float rest = fmaf(n, 2.12194440e-4f, fmaf(n, -0.693359375f, bounded));
    float y = 1.9875691500e-4f;
    y = fmaf(y, rest, 1.3981999507e-3f);
    y = fmaf(y, rest, 8.3334519073e-3f);
    y = fmaf(y, rest, 4.1665795894e-2f);
    y = fmaf(y, rest, 1.6666665459e-1f);
    y = fmaf(y, rest, 5.0000001201e-1f);
    y = fmaf(y, rest * rest, rest + 1.0f);
    union { float number; uint32_t bits; } power, whole = {shifted};
    power.bits = (whole.bits + 127u) << 23;
    return x < -87.0f ? 0.0f : y * power.number;
}

/* ---- A decoder's parts, each over a range of rows or of pieces of work ------------------------------------------- */

typedef struct {
    const Decoder *decoder;
    const Batch *batch;
    Strides strides;
    const Layer *layer;
    float *hidden, *normed, *inner, *attended, *kept;
    const float *norm; /* The norm that is due. */
    int failed;
} NAME(Pass);

static void NAME(embed)(int64_t begin, int64_t end, void *context) {
    const NAME(Pass) *pass = context;
    const Decoder *decoder = pass->decoder;
    int64_t width = decoder->width;
    int64_t is_short = decoder->embedding ? decoder->embedding_is_bfloat16 : decoder->head.is_bfloat16;
    for (int64_t row = begin; row < end; row++) {
        int64_t id = pass->batch->token_ids[row], first = id * width, step = 1;
        const void *table = decoder->embedding;
        float *out = pass->hidden + row * pass->strides.width;
        if (!table) {
            table = decoder->head.panels;
            first = id / LANES * (is_short ? (width + 1) / 2 * 2 : width) * LANES + id % LANES * (is_short ? 2 : 1);
            step = LANES;
        }
        for (int64_t i = 0; i < width; i++) {
            if (is_short) {
                /* Pairs stay side by side in a panel. */
                int64_t place = step == 1 ? first + i : first + i / 2 * 2 * LANES + i % 2;
                uint32_t bits = (uint32_t)((const uint16_t *)table)[place] << 16;
                memcpy(out + i, &bits, sizeof bits);
            } else
                out[i] = ((const float *)table)[first + i * step];
        }
    }
}

static void NAME(norm_rows)(int64_t begin, int64_t end, void *context) {
    const NAME(Pass) *pass = context;
    int64_t step = pass->strides.width;
    for (int64_t row = begin; row < end; row++)
        NAME(rms_norm)(pass->hidden + row * step, pass->norm, pass->decoder->epsilon, pass->decoder->width,
                       pass->normed + row * step);
}

static void NAME(norm_kept)(int64_t begin, int64_t end, void *context) {
    const NAME(Pass) *pass = context;
    int64_t step = pass->strides.width;
    for (int64_t i = begin; i < end; i++) {
        int64_t row = pass->batch->keep ? pass->batch->keep[i] : i;
        NAME(rms_norm)(pass->hidden + row * step, pass->norm, pass->decoder->epsilon, pass->decoder->width,
                       pass->kept + i * step);
    }
}

/* Rotary position embedding (Su et al., 2021), both halves of a head together. */
INLINE void NAME(rotate)(float *head, const float *cosine, const float *sine, int64_t half) {
    for (int64_t i = 0; i < half; i++) {
        float first = head[i], second = head[i + half];
        head[i] = fmaf(first, cosine[i], -(second * sine[i]));
        head[i + half] = fmaf(second, cosine[i], first * sine[i]);
    }
}

INLINE int64_t NAME(page_panels)(const Decoder *decoder) { return (decoder->page_size + LANES - 1) / LANES; }
INLINE int64_t NAME(head_stride)(const Decoder *decoder) { return rounded_up(decoder->head_dim, LANES); }

/* Where a token's keys begin in a head's part of a page, in steps of 16. */
INLINE float *NAME(keys_of)(const NAME(Pass) *pass, int64_t page, int64_t head, int64_t offset) {
    const Decoder *decoder = pass->decoder;
    int64_t panel = (page * decoder->kv_heads + head) * NAME(page_panels)(decoder) + offset / LANES;
    return pass->layer->key_pages + panel * decoder->head_dim * LANES + offset % LANES;
}

INLINE float *NAME(values_of)(const NAME(Pass) *pass, int64_t page, int64_t head, int64_t offset) {
    const Decoder *decoder = pass->decoder;
    int64_t token = (page * decoder->kv_heads + head) * decoder->page_size + offset;
    return pass->layer->value_pages + token * NAME(head_stride)(decoder);
}

/* Norm and rotate queries and keys, and write keys and values into the pages. */
static void NAME(place_rows)(int64_t begin, int64_t end, void *context) {
    const NAME(Pass) *pass = context;
    const Decoder *decoder = pass->decoder;
    const Layer *layer = pass->layer;
    int64_t dim = decoder->head_dim, half = dim / 2, s = 0, step = pass->strides.queries + 2 * pass->strides.keys;
    for (int64_t row = begin; row < end; row++) {
        while (row >= pass->batch->sequences[s].first_row + pass->batch->sequences[s].num_rows) s++;
        int64_t position = pass->batch->positions[row];
        int64_t page = pass->batch->pages[pass->batch->sequences[s].first_page + position / decoder->page_size];
        int64_t offset = position % decoder->page_size;
        const float *cosine = pass->batch->cosines + position * half, *sine = pass->batch->sines + position * half;
        float *query = pass->inner + row * step, *key = query + pass->strides.queries;
        const float *value = key + pass->strides.keys;
        for (int64_t h = 0; h < decoder->heads; h++) {
            if (layer->query_norm)
                NAME(rms_norm)(query + h * dim, layer->query_norm, decoder->epsilon, dim, query + h * dim);
            NAME(rotate)(query + h * dim, cosine, sine, half);
        }
        for (int64_t h = 0; h < decoder->kv_heads; h++) {
            if (layer->key_norm) NAME(rms_norm)(key + h * dim, layer->key_norm, decoder->epsilon, dim, key + h * dim);
            NAME(rotate)(key + h * dim, cosine, sine, half);
            float *keys = NAME(keys_of)(pass, page, h, offset);
            for (int64_t d = 0; d < dim; d++) keys[d * LANES] = key[h * dim + d];
            memcpy(NAME(values_of)(pass, page, h, offset), value + h * dim, sizeof(float) * dim);
        }
    }
}

/* Make what a row looks at, [from, position], into weights that sum to 1 / the result; 0 elsewhere up to end. */
INLINE float NAME(softmax)(float *scores, int64_t begin, int64_t from, int64_t position, int64_t end) {
    for (int64_t t = begin; t < from; t++) scores[t] = -INFINITY;
    for (int64_t t = position + 1; t < end; t++) scores[t] = -INFINITY;
    float highest = -INFINITY, parts[LANES] = {0};
    for (int64_t t = from; t <= position; t++) highest = scores[t] > highest ? scores[t] : highest;
    for (int64_t t = begin; t < end; t += LANES)
        for (int lane = 0; lane < LANES; lane++) {
            float weight = NAME(exponential)(scores[t + lane] - highest);
            scores[t + lane] = weight;
            parts[lane] += weight;
        }
    return 1.0f / NAME(total)(parts);
}

/* What the rows of one sequence and one head of keys see: at most MOST_ROWS pairs of a row and a head of queries. */
INLINE void NAME(attend_group)(
    const NAME(Pass) *pass, const Sequence *sequence, int64_t head, int64_t first_pair, int64_t pairs, float *scores,
    int64_t score_step, float *queries, float *sums) {
    const Decoder *decoder = pass->decoder;
    int64_t dim = decoder->head_dim, stride = NAME(head_stride)(decoder), group = decoder->heads / decoder->kv_heads;
    int64_t page_size = decoder->page_size, window = pass->layer->window;
    const int64_t *pages = pass->batch->pages + sequence->first_page;
    for (int64_t i = 0; i < pairs; i++) {
        int64_t row = sequence->first_row + (first_pair + i) / group, h = head * group + (first_pair + i) % group;
        const float *query = pass->inner + row * (pass->strides.queries + 2 * pass->strides.keys) + h * dim;
        for (int64_t d = 0; d < dim; d++) queries[i * dim + d] = query[d] * decoder->scale;
    }
    int64_t first_position = sequence->start + first_pair / group;
    int64_t end = sequence->start + (first_pair + pairs - 1) / group + 1;
    int64_t from = window ? most(0, first_position - window + 1) : 0;
    for (int64_t page = from / page_size; page * page_size < end; page++) {
        int64_t base = page * page_size, offset = most(0, from - base) / LANES * LANES;
        int64_t panels = (least(end - base, page_size) - offset + LANES - 1) / LANES;
        NAME(tiles)((NAME(Tile)){
            .rows = queries, .row_step = dim,
            .weights = (const uint32_t *)NAME(keys_of)(pass, pages[page], head, offset),
            .input_step = LANES, .panel_step = dim * LANES,
            .out = scores + base + offset, .out_step = score_step, .num_inputs = dim,
        }, pairs, panels, 0, 0);
    }
    float scales[MOST_ROWS];
    for (int64_t i = 0; i < pairs; i++) {
        int64_t position = sequence->start + (first_pair + i) / group;
        int64_t own_from = window ? most(0, position - window + 1) : 0;
        scales[i] = NAME(softmax)(
            scores + i * score_step, from / LANES * LANES, own_from, position, rounded_up(end, LANES));
    }
    for (int64_t page = from / page_size; page * page_size < end; page++) {
        int64_t base = page * page_size, offset = most(0, from - base);
        NAME(tiles)((NAME(Tile)){
            .rows = scores + base + offset, .row_step = score_step,
            .weights = (const uint32_t *)NAME(values_of)(pass, pages[page], head, offset),
            .input_step = stride, .panel_step = LANES,
            .out = sums, .out_step = stride, .num_inputs = least(end - base, page_size) - offset,
        }, pairs, stride / LANES, 0, page > from / page_size);
    }
    for (int64_t i = 0; i < pairs; i++) {
        int64_t row = sequence->first_row + (first_pair + i) / group, h = head * group + (first_pair + i) % group;
        float *out = pass->attended + row * pass->strides.attended + h * dim;
        for (int64_t d = 0; d < dim; d++) out[d] = sums[i * stride + d] * scales[i];
    }
}

INLINE int64_t NAME(pieces_of)(const Decoder *decoder, const Sequence *sequence) {
    int64_t pairs = sequence->num_rows * (decoder->heads / decoder->kv_heads);
    return decoder->kv_heads * ((pairs + MOST_ROWS - 1) / MOST_ROWS);
}

static void NAME(attend)(int64_t begin, int64_t end, void *context) {
    NAME(Pass) *pass = context;
    const Decoder *decoder = pass->decoder;
    const Sequence *sequence = pass->batch->sequences;
    int64_t longest = 0, stride = NAME(head_stride)(decoder), dim = decoder->head_dim;
    for (int64_t s = 0; s < pass->batch->num_sequences; s++)
        longest = most(longest, sequence[s].start + sequence[s].num_rows);
    int64_t score_step = rounded_up(longest, LANES) + LANES;
    float *room = malloc(sizeof(float) * MOST_ROWS * (score_step + dim + stride));
    if (!room) {
        pass->failed = FAILED_TO_ALLOCATE;
        return;
    }
    float *queries = room + MOST_ROWS * score_step, *sums = queries + MOST_ROWS * dim;
    for (int64_t piece = 0, of = 0; piece < end; sequence++, piece += of) {
        of = NAME(pieces_of)(decoder, sequence);
        int64_t each = of / decoder->kv_heads, pairs = sequence->num_rows * (decoder->heads / decoder->kv_heads);
        for (int64_t i = most(begin - piece, 0); i < least(end - piece, of); i++) {
            int64_t first = i % each * MOST_ROWS;
            NAME(attend_group)(pass, sequence, i / each, first, least(MOST_ROWS, pairs - first), room, score_step,
                               queries, sums);
        }
    }
    free(room);
}

static void NAME(gate_rows)(int64_t begin, int64_t end, void *context) {
    const NAME(Pass) *pass = context;
    for (int64_t row = begin; row < end; row++) {
        const float *gate = pass->inner + row * 2 * pass->strides.mlp, *up = gate + pass->strides.mlp;
        float *out = pass->attended + row * pass->strides.mlp;
        for (int64_t i = 0; i < pass->strides.mlp; i += LANES)
            for (int lane = 0; lane < LANES; lane++)
                out[i + lane] = gate[i + lane] / (1.0f + NAME(exponential)(-gate[i + lane])) * up[i + lane];
    }
}

/* ---- The forward ------------------------------------------------------------------------------------------------- */

static int NAME(attention_block)(NAME(Pass) *pass) {
    const Decoder *decoder = pass->decoder;
    const Batch *batch = pass->batch;
    const Layer *layer = pass->layer;
    int64_t num_rows = batch->num_rows, num_pieces = 0, work = 0;
    int64_t step = pass->strides.queries + 2 * pass->strides.keys;
    const Matrix *before[] = {&layer->query, &layer->key, &layer->value}, *after = &layer->attention_out;
    pass->attended = pass->inner + num_rows * step;
    pass->norm = layer->attention_norm;
    for (int64_t s = 0; s < batch->num_sequences; s++) {
        num_pieces += NAME(pieces_of)(decoder, batch->sequences + s);
        work = most(work, batch->sequences[s].start + batch->sequences[s].num_rows);
    }
    int error = NAME(in_parallel)(batch->parallel_for, num_rows, 4 * decoder->width, NAME(norm_rows), pass);
    if (!error)
        error = NAME(product)(batch->parallel_for, before, 3, pass->normed, pass->strides.width, num_rows, pass->inner,
                              step, 0);
    if (!error) error = NAME(in_parallel)(batch->parallel_for, num_rows, 4 * decoder->width, NAME(place_rows), pass);
    if (!error)
        error = NAME(in_parallel)(batch->parallel_for, num_pieces, 2 * work * decoder->head_dim * MOST_ROWS,
                                  NAME(attend), pass);
    if (!error && pass->failed) error = pass->failed;
    if (!error)
        error = NAME(product)(batch->parallel_for, &after, 1, pass->attended, pass->strides.attended, num_rows,
                              pass->hidden, pass->strides.width, 1);
    return error;
}

static int NAME(mlp_block)(NAME(Pass) *pass) {
    const Batch *batch = pass->batch;
    const Layer *layer = pass->layer;
    int64_t num_rows = batch->num_rows;
    const Matrix *before[] = {&layer->gate, &layer->up}, *after = &layer->down;
    pass->attended = pass->inner + num_rows * 2 * pass->strides.mlp;
    pass->norm = layer->mlp_norm;
    int error = NAME(in_parallel)(batch->parallel_for, num_rows, 4 * pass->decoder->width, NAME(norm_rows), pass);
    if (!error)
        error = NAME(product)(batch->parallel_for, before, 2, pass->normed, pass->strides.width, num_rows, pass->inner,
                              2 * pass->strides.mlp, 0);
    if (!error)
        error = NAME(in_parallel)(batch->parallel_for, num_rows, 16 * pass->decoder->mlp_width, NAME(gate_rows), pass);
    if (!error)
        error = NAME(product)(batch->parallel_for, &after, 1, pass->attended, pass->strides.mlp, num_rows, pass->hidden,
                              pass->strides.width, 1);
    return error;
}

static int NAME(forward)(const Decoder *decoder, const Batch *batch) {
    NAME(Pass) pass = {.decoder = decoder, .batch = batch, .strides = strides_of(decoder)};
    int64_t num_rows = batch->num_rows;
    for (int64_t row = 0; row < num_rows; row++)
        if ((uint64_t)batch->token_ids[row] >= (uint64_t)decoder->vocabulary ||
            (uint64_t)batch->positions[row] >= (uint64_t)batch->num_positions)
            return OUT_OF_RANGE;
    pass.hidden = batch->scratch;
    pass.normed = pass.hidden + num_rows * pass.strides.width;
    pass.kept = pass.normed + num_rows * pass.strides.width;
    pass.inner = pass.kept + batch->num_kept * pass.strides.width;
    NAME(embed)(0, num_rows, &pass);
    for (int64_t i = 0; i < decoder->num_layers; i++) {
        int error = 0;
        pass.layer = decoder->layers + i;
        if (pass.layer->has_attention) error = NAME(attention_block)(&pass);
        if (!error && pass.layer->has_mlp) error = NAME(mlp_block)(&pass);
        if (error) return error;
    }
    pass.norm = decoder->final_norm;
    NAME(norm_kept)(0, batch->num_kept, &pass);
    const Matrix *head = &decoder->head;
    return NAME(product)(batch->parallel_for, &head, 1, pass.kept, pass.strides.width, batch->num_kept,
                         batch->logits, num_panels(&decoder->head) * LANES, 0);
}

#undef LANES_OF
#undef INLINE
#undef UNROLL
#undef VEC
#undef WORDS
#undef TILE
#undef OF_ROWS
#undef NAME
#undef VECTOR_BYTES
#undef VECTORS
#undef MOST_ROWS
#undef PANELS
