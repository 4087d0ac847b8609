// Passes over one row of logits, for the sampler.

constexpr float kWeightFloor = -87.0f;  // below it a weight is exactly zero

static inline F8 load_tail(const float* x, int n) {  // lanes past the end are minus infinity
    alignas(32) float t[8];
    for (int i = 0; i < 8; i++) t[i] = i < n ? x[i] : -INFINITY;
    return f8_load(t);
}
static inline F8 exp_or_zero(F8 y) { return f8_select_less(y, f8_set1(kWeightFloor), f8_zero(), f8_exp(y)); }

static float row_maximum(const float* x, int n) {
    F8 m[4];
    for (auto& lane : m) lane = f8_set1(-INFINITY);
    int i = 0;
    for (; i + 32 <= n; i += 32)
        for (int j = 0; j < 4; j++) m[j] = f8_max(f8_load(x + i + j * 8), m[j]);
    for (; i < n; i += 8) m[0] = f8_max(load_tail(x + i, n - i), m[0]);
    return f8_hmax(f8_max(f8_max(m[0], m[1]), f8_max(m[2], m[3])));
}

static void row_block_maxima(const float* x, int n, float* maxima) {
    for (int start = 0; start < n; start += kRowBlock)
        *maxima++ = row_maximum(x + start, n - start < kRowBlock ? n - start : kRowBlock);
}

// Whole numbers below 2^53 add up exactly in double, in any order.
static void row_block_masses(const float* weight, int n, int64_t* masses) {
    for (int start = 0; start < n; start += kRowBlock) {
        const int end = n - start < kRowBlock ? n : start + kRowBlock;
        double sum[8] = {};
        int i = start;
        for (; i + 8 <= end; i += 8)
            for (int j = 0; j < 8; j++) sum[j] += __builtin_floor((double)weight[i + j] * kMassOne);
        for (; i < end; i++) sum[0] += __builtin_floor((double)weight[i] * kMassOne);
        double total = 0;
        for (const double lane : sum) total += lane;
        *masses++ = total >= 0 ? (int64_t)total : -1;  // -1: a weight is NaN
    }
}

static int row_find(const float* x, int n, float value) {
    const F8 wanted = f8_set1(value);
    int i = 0;
    for (; i + 8 <= n; i += 8)
        if (const int mask = f8_equal_mask(f8_load(x + i), wanted)) return i + __builtin_ctz(mask);
    for (; i < n; i++)
        if (x[i] == value) return i;
    return -1;
}

static void row_weights(const float* x, int n, float maximum, float temperature, float* scaled,
                        float* weight) {
    const F8 m = f8_set1(maximum), t = f8_set1(temperature);
    for (int i = 0; i < n; i += 8) {  // `scaled` and `weight` have room for round_up(n, 8)
        const F8 y = f8_div(f8_sub(i + 8 <= n ? f8_load(x + i) : load_tail(x + i, n - i), m), t);
        f8_store(scaled + i, y);
        f8_store(weight + i, exp_or_zero(y));
    }
}

// Blocks of 256 are summed in eight float lanes (element i in lane i % 8) and the fixed tree, blocks in
// double.
static double row_exp_total(const float* x, int n, float maximum) {
    const F8 m = f8_set1(maximum);
    double total = 0;
    for (int start = 0; start < n; start += 256) {
        const int end = start + 256 < n ? start + 256 : n;
        F8 sum = f8_zero();
        for (int i = start; i < end; i += 8) {
            const F8 y = f8_sub(i + 8 <= end ? f8_load(x + i) : load_tail(x + i, end - i), m);
            sum = f8_add(sum, exp_or_zero(y));
        }
        total += (double)f8_hsum(sum);
    }
    return total;
}
