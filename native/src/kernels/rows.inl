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

static int row_find(const float* x, int n, float value) {
    const F8 wanted = f8_set1(value);
    int i = 0;
    for (; i + 8 <= n; i += 8)
        if (const int mask = f8_equal_mask(f8_load(x + i), wanted)) return i + __builtin_ctz(mask);
    for (; i < n; i++)
        if (x[i] == value) return i;
    return -1;
}

static inline F8 floor_of(F8 x) {  // x >= 0
    const F8 near = f8_rint(x);
    return f8_select_less(x, near, f8_sub(near, f8_set1(1.0f)), near);
}

// The mass floor(w * 2^40), as two integers of 20 bits: floats hold the sums of sixteen of each exactly.
static void row_weights(const float* x, int n, float maximum, float temperature, float* scaled, float* weight,
                        int64_t* mass) {
    const F8 m = f8_set1(maximum), t = f8_set1(temperature), half = f8_set1(1048576.0f);
    for (int start = 0; start < n; start += kMassBlock) {
        const int end = start + kMassBlock < n ? start + kMassBlock : n;
        F8 high = f8_zero(), low = f8_zero();
        for (int i = start; i < end; i += 8) {  // `scaled` and `weight` have room for round_up(n, 8)
            const F8 y = f8_div(f8_sub(i + 8 <= n ? f8_load(x + i) : load_tail(x + i, n - i), m), t);
            const F8 w = exp_or_zero(y), up = f8_mul(w, half), whole = floor_of(up);
            f8_store(scaled + i, y);
            f8_store(weight + i, w);
            high = f8_add(high, whole);
            low = f8_add(low, floor_of(f8_mul(f8_sub(up, whole), half)));
        }
        alignas(32) float h[8], l[8];
        f8_store(h, high), f8_store(l, low);
        int64_t sum = 0;
        for (int i = 0; i < 8; i++) {
            if (!(h[i] <= kMassBlock / 8 * 1048576.0f)) {  // of a NaN the weight is enormous
                sum = -1;
                break;
            }
            sum += ((int64_t)h[i] << 20) + (int64_t)l[i];
        }
        mass[start / kMassBlock] = sum;
    }
}

// Writes the indices of the values that are at least `least`, in order; returns how many.
static int row_at_least(const float* x, int n, float least, int32_t* out) {
    const F8 t = f8_set1(least);
    int count = 0, i = 0;
    for (; i + 8 <= n; i += 8) {
        const F8 v = f8_load(x + i);
        for (int mask = f8_equal_mask(f8_max(v, t), v); mask; mask &= mask - 1)
            out[count++] = i + __builtin_ctz(mask);
    }
    for (; i < n; i++)
        if (x[i] >= least) out[count++] = i;
    return count;
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
