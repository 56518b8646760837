/* What is done to each row by itself. Included by kernels.h for each instruction set. */

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

/* One forward on its way. */
typedef struct {
    const Decoder *decoder;
    const Batch *batch;
    Strides strides;
    const Layer *layer;
    float *hidden, *normed, *inner, *attended, *kept;
    const float *norm; /* The norm that is due. */
    int failed;
} NAME(Pass);

/* A number of a weight in panels. */
INLINE float NAME(number)(const Matrix *matrix, int64_t out, int64_t in) {
    int64_t kind = matrix->kind, lane = out % LANES;
    uint32_t word = ((const uint32_t *)matrix->panels)[out / LANES * panel_words(matrix) + (in >> kind) * LANES + lane];
    int64_t shift = (in & ((1 << kind) - 1)) << (5 - kind);
    if (kind <= BFLOAT16) {
        union { uint32_t bits; float number; } whole = {kind == FLOAT32 ? word : word >> shift << 16};
        return whole.number;
    }
    int log = __builtin_ctzll((unsigned long long)matrix->block);
    int64_t place = (out / LANES * (matrix->in >> log) + (in >> log)) * LANES + lane;
    float code = kind == CODES_8 ? (float)(int8_t)(word >> shift) : (float)(word >> shift & 15u);
    float scaled = code * matrix->scales[place];
    return matrix->offsets ? scaled + matrix->offsets[place] : scaled;
}

static void NAME(embed)(int64_t begin, int64_t end, void *context) {
    const NAME(Pass) *pass = context;
    const Decoder *decoder = pass->decoder;
    int64_t width = decoder->width;
    for (int64_t row = begin; row < end; row++) {
        int64_t id = pass->batch->token_ids[row];
        float *out = pass->hidden + row * pass->strides.width;
        for (int64_t i = 0; i < width; i++) {
            if (!decoder->table)
                out[i] = NAME(number)(&decoder->embedding, id, i);
            else if (decoder->table_is_bfloat16) {
                uint32_t bits = (uint32_t)((const uint16_t *)decoder->table)[id * width + i] << 16;
                memcpy(out + i, &bits, sizeof bits);
            } else
                out[i] = ((const float *)decoder->table)[id * width + i];
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
