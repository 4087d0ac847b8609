// Passes over one row of logits, for the sampler.

constexpr float kWeightFloor = -87.0f;  // below it a weight is exactly zero

static inline F8 load_tail(const float* x, int n) {  // lanes past the end are minus infinity
    alignas(32) float t[8];
    for (int i = 0; i < 8; i++) t[i] = i < n ? x[i] : -INFINITY;
    return f8_load(t);
}
static inline void load_four(const float* x, int n, F8 y[4]) {
    for (int j = 0; j < 4; j++) y[j] = n >= j * 8 + 8 ? f8_load(x + j * 8) : load_tail(x + j * 8, n - j * 8);
}

static inline void exp_or_zero(F8 y[4]) {
    for (int j = 0; j < 4; j++) y[j] = f8_select_less(y[j], f8_set1(kWeightFloor), f8_zero(), exp_of(y[j]));
}

static float row_maximum(const float* x, int n) {
    F8 m[4];
    for (auto& lane : m) lane = f8_set1(-INFINITY);
    int i = 0;
    for (; i + 32 <= n; i += 32)
        for (int j = 0; j < 4; j++) m[j] = f8_max(f8_load(x + i + j * 8), m[j]);
    for (; i < n; i += 8) m[0] = f8_max(load_tail(x + i, n - i), m[0]);
    return f8_hmax(f8_max(f8_max(m[0], m[1]), f8_max(m[2], m[3])));
}

// The maximum of at most kRowBlock values; takes the bits of the lanes away in which a NaN was.
static inline float block_maximum(const float* x, int n, int* clean) {
    F8 m[4];
    for (auto& lane : m) lane = f8_set1(-INFINITY);
    int i = 0;
    for (; i + 32 <= n; i += 32)
        for (int j = 0; j < 4; j++) {
            const F8 v = f8_load(x + i + j * 8);
            *clean &= f8_equal_mask(v, v), m[j] = f8_max(v, m[j]);
        }
    for (; i < n; i += 8) {
        const F8 v = load_tail(x + i, n - i);
        *clean &= f8_equal_mask(v, v), m[0] = f8_max(v, m[0]);
    }
    return f8_hmax(f8_max(f8_max(m[0], m[1]), f8_max(m[2], m[3])));
}

static bool row_block_maxima(const float* x, int n, float* maxima) {
    int clean = 0xff;
    for (int start = 0; start < n; start += kRowBlock)
        *maxima++ = block_maximum(x + start, n - start < kRowBlock ? n - start : kRowBlock, &clean);
    return clean == 0xff;
}

static inline void mask_block(float* x, int n, const uint32_t* mask) {
    for (int start = 0; start < n; start += 32, mask++) {
        const uint32_t bits = *mask;
        if (bits == 0xffffffffu) continue;
        const int size = n - start < 32 ? n - start : 32;
        float* y = x + start;
        if (size == 32 && bits == 0)
            for (int i = 0; i < 32; i++) y[i] = -INFINITY;
        else if (size == 32)
            for (int i = 0; i < 32; i++) y[i] = bits & 1u << i ? y[i] : -INFINITY;
        else
            for (int i = 0; i < size; i++) y[i] = bits & 1u << i ? y[i] : -INFINITY;
    }
}

static bool row_mask(float* x, int n, const uint32_t* mask, float* maxima) {
    int clean = 0xff;
    for (int start = 0; start < n; start += kRowBlock, mask += kRowBlock / 32) {
        const int size = n - start < kRowBlock ? n - start : kRowBlock;
        uint32_t any = 0;
        for (int word = 0; word * 32 < size; word++) any |= mask[word];
        if (any != 0) mask_block(x + start, size, mask);
        *maxima++ = any != 0 ? block_maximum(x + start, size, &clean) : -INFINITY;
    }
    return clean == 0xff;
}

static int row_at_least(const float* x, int n, float lowest, int first, int32_t* ids) {
    const F8 least = f8_set1(lowest);
    int count = 0;
    for (int i = 0; i < n; i += 8) {
        const F8 v = i + 8 <= n ? f8_load(x + i) : load_tail(x + i, n - i);
        for (int mask = f8_equal_mask(f8_max(v, least), v); mask != 0; mask &= mask - 1)
            if (const int at = i + __builtin_ctz(mask); at < n) ids[count++] = first + at;
    }
    return count;
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

static inline void weights_of(const float* x, int n, F8 maximum, F8 temperature, F8 y[4]) {
    load_four(x, n, y);
    for (int j = 0; j < 4; j++) y[j] = f8_div(f8_sub(y[j], maximum), temperature);
    exp_or_zero(y);
}

static void row_weights(const float* x, int n, float maximum, float temperature, float* weight) {
    const F8 m = f8_set1(maximum), t = f8_set1(temperature);
    for (int i = 0; i < n; i += 32) {  // `weight` has room for round_up(n, 8)
        F8 y[4];
        weights_of(x + i, n - i, m, t, y);
        for (int j = 0; j < 4 && i + j * 8 < n; j++) f8_store(weight + i + j * 8, y[j]);
    }
}

typedef double Doubles8 __attribute__((vector_size(64)));
static inline void add_doubles(F8 x, Doubles8* sum) {
    typedef float Floats8 __attribute__((vector_size(32)));
    alignas(32) float lanes[8];
    f8_store(lanes, x);
    Floats8 same;
    std::memcpy(&same, lanes, sizeof same);
    *sum += __builtin_convertvector(same, Doubles8);
}

// Weights have 24 bits, so that times a power of two and floor are exact in float; whole numbers below 2^53
// add up exactly in double, in any order.
static int64_t row_mass(const float* x, int n, float maximum, float temperature) {
    const F8 m = f8_set1(maximum), t = f8_set1(temperature), one = f8_set1(1.0f);
    Doubles8 sum[2] = {};
    for (int i = 0; i < n; i += 32) {
        F8 y[4];
        weights_of(x + i, n - i, m, t, y);
        for (int j = 0; j < 4; j++) {
            y[j] = f8_mul(y[j], f8_set1((float)kMassOne));
            const F8 near = f8_rint(y[j]);
            add_doubles(f8_select_less(y[j], near, f8_sub(near, one), near), &sum[j & 1]);
        }
    }
    double total = 0;
    for (int j = 0; j < 8; j++) total += sum[0][j] + sum[1][j];
    return (int64_t)total;
}

// Blocks of 256 are summed in eight float lanes (element i in lane i % 8) and the fixed tree, blocks in
// double.
static double row_exp_total(const float* x, int n, float maximum) {
    const F8 m = f8_set1(maximum);
    double total = 0;
    for (int start = 0; start < n; start += 256) {
        const int end = start + 256 < n ? start + 256 : n;
        F8 sum = f8_zero();
        for (int i = start; i < end; i += 32) {
            F8 y[4];
            load_four(x + i, end - i, y);
            for (auto& lane : y) lane = f8_sub(lane, m);
            exp_or_zero(y);
            for (const auto& lane : y) sum = f8_add(sum, lane);
        }
        total += (double)f8_hsum(sum);
    }
    return total;
}
