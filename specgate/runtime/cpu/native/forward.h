/* All layers, one after the other. Included by kernels.h for each instruction set. */

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
