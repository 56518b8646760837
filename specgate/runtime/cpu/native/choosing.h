/* Which token is chosen in each row of logits. Included by kernels.h for each instruction set. */

enum { NAME(IDS) = 16 * LANES };

/* The best score of a row so far, the first of equal ones, and the next best. */
typedef struct {
    double best, second;
    int64_t id;
} NAME(Leader);

static void NAME(look_at)(NAME(Leader) *leader, double score, int64_t id) {
    if (score > leader->best)
        *leader = (NAME(Leader)){score, leader->best, id};
    else if (score > leader->second)
        leader->second = score;
}

/* SplitMix64, see noise.py. */
INLINE uint64_t NAME(word)(uint64_t key, int64_t id) {
    uint64_t z = key + (uint64_t)(id + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static double NAME(gumbel)(uint64_t key, int64_t id) {
    return -log(-log(((double)(NAME(word)(key, id) >> 12) + 0.5) * 0x1p-52));
}

/* The uniform number of a word is at most 1 - v, v being the upper 31 bits of its complement over 2^31, so its noise is
   at most -ln v. A float's bits over 2^23 are its binary logarithm plus 127, less up to 0.09. So this is more than -ln v
   by up to 0.06. */
INLINE float NAME(most_noise)(uint64_t key, int64_t id) {
    union { float number; int32_t bits; } v = {(float)(int32_t)(~NAME(word)(key, id) >> 33)};
    return 0.69314718f * (158.0f - (float)v.bits * 0x1p-23f);
}

/* Of up to IDS ids from ``first``: their logits, which are -inf behind the end, and the highest of them. */
INLINE float NAME(read_ids)(const Choosing *job, const float *row, int64_t first, float logits[NAME(IDS)]) {
    float highest[LANES];
    int64_t count = least(NAME(IDS), job->vocabulary - first);
    memcpy(logits, row + first, (size_t)count * sizeof *logits);
    for (int64_t i = count; i < NAME(IDS); i++) logits[i] = -INFINITY;
    memcpy(highest, logits, sizeof highest);
    for (int64_t i = LANES; i < NAME(IDS); i += LANES)
        for (int lane = 0; lane < LANES; lane++)
            highest[lane] = logits[i + lane] > highest[lane] ? logits[i + lane] : highest[lane];
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) highest[i] = highest[i] > highest[i + half] ? highest[i] : highest[i + half];
    return highest[0];
}

/* The sum of e to the (logit - highest) of a row. */
static double NAME(mass)(const Choosing *job, const float *row, float highest) {
    double mass = 0;
    for (int64_t first = 0; first < job->vocabulary; first += NAME(IDS)) {
        float logits[NAME(IDS)], parts[LANES] = {0};
        NAME(read_ids)(job, row, first, logits);
        for (int64_t i = 0; i < NAME(IDS); i += LANES)
            for (int lane = 0; lane < LANES; lane++) parts[lane] += NAME(exponential)(logits[i + lane] - highest);
        mass += NAME(total)(parts);
    }
    return mass;
}

/* The ids of up to IDS places from ``first``; behind the end it is no matter which. */
INLINE void NAME(read_tokens)(const Choosing *job, int64_t first, int64_t ids[NAME(IDS)]) {
    for (int64_t i = 0; i < NAME(IDS); i++) ids[i] = first + i;
    if (job->ids) memcpy(ids, job->ids + first, (size_t)least(NAME(IDS), job->vocabulary - first) * sizeof *ids);
}

/* Whose noise could not make it one of the two best is not asked for it: two logarithms each for thirty ids or so. */
static void NAME(sample)(const Choosing *job, const float logits[NAME(IDS)], uint64_t key, int64_t first, NAME(Leader) *leader) {
    float scaled[NAME(IDS)], bounds[NAME(IDS)];
    int64_t ids[NAME(IDS)];
    NAME(read_tokens)(job, first, ids);
    for (int64_t i = 0; i < NAME(IDS); i++) {
        scaled[i] = logits[i] / job->temperature;
        bounds[i] = scaled[i] + NAME(most_noise)(key, ids[i]);
    }
    for (int64_t i = 0; i < NAME(IDS); i++)
        /* The margin is for the rounding of the bound. */
        if (bounds[i] + 1e-3 + 1e-6 * fabs(leader->second) >= leader->second)
            NAME(look_at)(leader, scaled[i] + NAME(gumbel)(key, ids[i]), first + i);
}

/* What chosen_on_device tells of a row: id, score, lead over the next best, raw probability. */
static void NAME(choose_rows)(int64_t begin, int64_t end, void *context) {
    const Choosing *job = context;
    for (int64_t r = begin; r < end; r++) {
        const float *row = job->logits + r * job->step;
        NAME(Leader) leader = {-INFINITY, -INFINITY, 0};
        float highest = -INFINITY;
        int broken = 0;
        for (int64_t first = 0; first < job->vocabulary; first += NAME(IDS)) {
            float logits[NAME(IDS)], most = NAME(read_ids)(job, row, first, logits);
            highest = most > highest ? most : highest;
            for (int64_t i = 0; i < NAME(IDS); i++) broken |= !(logits[i] < INFINITY);
            if (job->keys)
                NAME(sample)(job, logits, job->keys[r], first, &leader);
            else if (most > leader.second)
                for (int64_t i = 0; i < NAME(IDS); i++) NAME(look_at)(&leader, logits[i], first + i);
        }
        double *told = job->table + 4 * r;
        told[0] = (double)(job->ids ? job->ids[leader.id] : leader.id);
        told[1] = broken ? NAN : leader.best;
        told[2] = leader.best - leader.second;
        told[3] = job->with_probs ? exp((double)row[leader.id] - highest) / NAME(mass)(job, row, highest) : told[1];
    }
}

static int NAME(choose)(const Choosing *job) {
    int64_t work = job->vocabulary * (job->keys ? 32 : 4);
    return NAME(in_parallel)(job->parallel_for, job->num_rows, work, NAME(choose_rows), (void *)job);
}

static int NAME(draft)(const Decoder *decoder, Draft *draft) {
    Batch batch = draft->batch;
    Choosing choosing = draft->choosing;
    int64_t sequences = batch.num_sequences, num_steps = draft->num_steps;
    for (draft->num_steps = 1;; draft->num_steps++) {
        int error = NAME(forward)(decoder, &batch);
        if (!error) error = NAME(choose)(&choosing);
        int unsure = choosing.with_probs && choosing.table[3] < draft->stop_below;
        if (error || unsure || draft->num_steps == num_steps || *draft->interrupt) return error;
        for (int64_t s = 0; s < sequences; s++) {
            Sequence *sequence = batch.sequences + s;
            int64_t end = sequence->start + sequence->num_rows;
            *sequence = (Sequence){s, 1, end, sequence->first_page};
            batch.token_ids[s] = (int64_t)choosing.table[4 * s];
            batch.positions[s] = end;
        }
        batch.num_rows = batch.num_kept = sequences;
        batch.keep = 0;
        batch.logits += sequences * choosing.step;
        choosing.logits = batch.logits;
        choosing.table += 4 * sequences;
        if (choosing.keys) choosing.keys += sequences;
    }
}
