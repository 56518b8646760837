/* Rotation, pages of keys and values, and attention over them. Included by kernels.h for each instruction set. */

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
        __atomic_store_n(&pass->failed, FAILED_TO_ALLOCATE, __ATOMIC_RELAXED);
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
