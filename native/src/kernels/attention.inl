// Paged attention: online softmax over blocks of 32 tokens, in position order.

constexpr float kMasked = -1e30f;
constexpr float kLargestHalf = 65504.0f;

// Keys lie [head_dim][32 tokens], values [32 tokens][head_dim].
struct KvF16 {
    static constexpr int kBytes = 2;
    static F8 key(const uint8_t* part, int d, int c) {
        return f8_load_f16(reinterpret_cast<const uint16_t*>(part) + d * kBlockTokens + c * 8);
    }
    static F8 value(const uint8_t* part, int head_dim, int token, int c) {
        return f8_load_f16(reinterpret_cast<const uint16_t*>(part) + token * head_dim + c * 8);
    }
    static F8 scale(const uint8_t*, int, int, F8 x) { return x; }
    static F8 clamped(const float* x) {  // saturate: an infinity in the cache would poison every later token
        return f8_max(f8_min(f8_load(x), f8_set1(kLargestHalf)), f8_set1(-kLargestHalf));
    }
    static void put_key(const float* x, int head_dim, int slot, uint8_t* part) {
        for (int i = 0; i < head_dim; i += 8) {
            uint16_t h[8];
            f8_store_f16(h, clamped(x + i));
            for (int j = 0; j < 8; j++) std::memcpy(part + ((i + j) * kBlockTokens + slot) * 2, h + j, 2);
        }
    }
    static void put_value(const float* x, int head_dim, int slot, uint8_t* part) {
        uint16_t* out = reinterpret_cast<uint16_t*>(part) + slot * head_dim;
        for (int i = 0; i < head_dim; i += 8) f8_store_f16(out + i, clamped(x + i));
    }
};

// int8 with one float scale for each (token, kv head); the 32 scales follow the head_dim * 32 bytes.
struct KvInt8 {
    static constexpr int kBytes = 1;
    static F8 key(const uint8_t* part, int d, int c) {
        return f8_load_i8(reinterpret_cast<const int8_t*>(part) + d * kBlockTokens + c * 8);
    }
    static F8 value(const uint8_t* part, int head_dim, int token, int c) {
        return f8_load_i8(reinterpret_cast<const int8_t*>(part) + token * head_dim + c * 8);
    }
    static F8 scale(const uint8_t* part, int head_dim, int c, F8 x) {
        return f8_mul(x, f8_load(reinterpret_cast<const float*>(part + head_dim * kBlockTokens) + c * 8));
    }
    static void put_scale(float value, int head_dim, int slot, uint8_t* part) {
        std::memcpy(part + head_dim * kBlockTokens + slot * 4, &value, 4);
    }
    static float quantized(const float* x, int head_dim, int8_t* q) {
        F8 largest = f8_zero();
        for (int i = 0; i < head_dim; i += 8) largest = f8_max(largest, f8_abs(f8_load(x + i)));
        const float m = f8_hmax(largest);
        const F8 inverse = f8_set1(m > 1e-36f ? 127.0f / m : 0.0f);
        for (int i = 0; i < head_dim; i += 8) f8_store_i8(q + i, f8_rint(f8_mul(f8_load(x + i), inverse)));
        return m / 127.0f;
    }
    static void put_key(const float* x, int head_dim, int slot, uint8_t* part) {
        int8_t q[256];
        put_scale(quantized(x, head_dim, q), head_dim, slot, part);
        for (int i = 0; i < head_dim; i++) part[i * kBlockTokens + slot] = (uint8_t)q[i];
    }
    static void put_value(const float* x, int head_dim, int slot, uint8_t* part) {
        put_scale(quantized(x, head_dim, reinterpret_cast<int8_t*>(part) + slot * head_dim), head_dim, slot,
                  part);
    }
};

// out[g][c .. c + N * 8) += p[g][t] * value[t], token by token
template <class Kv, int G, int N>
static inline void add_values(const float (*p)[kBlockTokens], int first, int tokens, const uint8_t* values,
                              const uint8_t* ahead, int head_dim, int c, float* out) {
    F8 a[G][N];
#pragma GCC unroll 4
    for (int g = 0; g < G; g++)
#pragma GCC unroll 4
        for (int j = 0; j < N; j++) a[g][j] = f8_load(out + g * head_dim + (c + j) * 8);
    for (int t = first; t < tokens; t++) {
        F8 weight[G];
        if (N > 1) prefetch(ahead + ((size_t)t * head_dim + c * 8) * Kv::kBytes);
#pragma GCC unroll 4
        for (int g = 0; g < G; g++) weight[g] = f8_set1(p[g][t]);
#pragma GCC unroll 4
        for (int j = 0; j < N; j++) {
            const F8 v = Kv::value(values, head_dim, t, c + j);
#pragma GCC unroll 4
            for (int g = 0; g < G; g++) a[g][j] = f8_fma(weight[g], v, a[g][j]);
        }
    }
#pragma GCC unroll 4
    for (int g = 0; g < G; g++)
#pragma GCC unroll 4
        for (int j = 0; j < N; j++) f8_store(out + g * head_dim + (c + j) * 8, a[g][j]);
}

// G query heads of one kv head over one block of up to 32 tokens. Only the slots from `first` to `tokens` are
// believed: scores of the others are replaced before use, and their values are never read.
template <class Kv, int G, int kHeadDim>
[[gnu::noinline]] static void attend_block(const float* q, int head_dim, int first, int tokens,
                                           const uint8_t* keys, const uint8_t* values, const uint8_t* ahead,
                                           size_t part_bytes, float* maximum, float* total, float* out) {
    if (kHeadDim) head_dim = kHeadDim;  // a constant lets the compiler fold the strides
    F8 s[G][4];
#pragma GCC unroll 4
    for (int g = 0; g < G; g++)
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++) s[g][c] = f8_zero();
    for (int d = 0; d < head_dim; d++) {  // G = 3: 12 accumulators + 3 broadcasts + 1 load = 16 registers
        F8 qd[G];
        prefetch(ahead + (size_t)d * Kv::kBytes * kBlockTokens);
#pragma GCC unroll 4
        for (int g = 0; g < G; g++) qd[g] = f8_set1(q[g * head_dim + d]);
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++) {
            const F8 k = Kv::key(keys, d, c);
#pragma GCC unroll 4
            for (int g = 0; g < G; g++) s[g][c] = f8_fma(qd[g], k, s[g][c]);
        }
    }
    alignas(32) float p[G][kBlockTokens];
    for (int g = 0; g < G; g++) {
        for (int c = 0; c < 4; c++)
            s[g][c] = f8_keep(Kv::scale(keys, head_dim, c, s[g][c]), tokens - c * 8, f8_set1(kMasked));
        if (first)
            for (int c = 0; c < 4; c++) s[g][c] = f8_keep(f8_set1(kMasked), first - c * 8, s[g][c]);
        const float highest = f8_hmax(f8_max(f8_max(s[g][0], s[g][1]), f8_max(s[g][2], s[g][3])));
        const float next = highest > maximum[g] ? highest : maximum[g];
        for (int c = 0; c < 4; c++)
            s[g][c] = f8_keep(f8_exp(f8_sub(s[g][c], f8_set1(next))), tokens - c * 8, f8_zero());
        if (first)
            for (int c = 0; c < 4; c++) s[g][c] = f8_keep(f8_zero(), first - c * 8, s[g][c]);
        const float sum = f8_hsum(f8_add(f8_add(s[g][0], s[g][1]), f8_add(s[g][2], s[g][3])));
        for (int c = 0; c < 4; c++) f8_store(p[g] + c * 8, Kv::scale(values, head_dim, c, s[g][c]));
        if (next == maximum[g]) {  // the factor would be exp(0) = 1 exactly
            total[g] = total[g] + sum;
            continue;
        }
        const F8 factor = f8_exp(f8_set1(maximum[g] - next));
        alignas(32) float factors[8];
        f8_store(factors, factor);
        total[g] = f1_fma(total[g], factors[0], sum);
        maximum[g] = next;
        for (int i = 0; i < head_dim; i += 8)
            f8_store(out + g * head_dim + i, f8_mul(f8_load(out + g * head_dim + i), factor));
    }
    const int whole = head_dim / 32 * 4;
    ahead += part_bytes;
    for (int c = 0; c < whole; c += 4)
        add_values<Kv, G, 4>(p, first, tokens, values, ahead, head_dim, c, out);
    for (int c = whole; c < head_dim / 8; c++)
        add_values<Kv, G, 1>(p, first, tokens, values, ahead, head_dim, c, out);
}

template <class Kv, int kHeadDim>
static void attend_blocks(const float* q, int heads, int head_dim, const KvView& kv, float* maximum,
                          float* total, float* out) {
    for (int b = kv.first / kBlockTokens; b * kBlockTokens < kv.tokens; b++) {
        const int first = kv.first > b * kBlockTokens ? kv.first - b * kBlockTokens : 0;
        const int left = kv.tokens - b * kBlockTokens, tokens = left < kBlockTokens ? left : kBlockTokens;
        const uint8_t* keys = kv.keys + (size_t)kv.table[b] * kv.block_bytes;
        const uint8_t* values = keys + kv.part_bytes;
        // blocks lie anywhere, so nothing but us can know which memory comes next
        const int next = b + (left > kBlockTokens);
        const uint8_t* ahead = kv.keys + (size_t)kv.table[next] * kv.block_bytes;
        int g = 0;  // heads are independent: how they share loads cannot change bits
        const auto run = [&](auto size) {
            constexpr int G = decltype(size)::value;
            attend_block<Kv, G, kHeadDim>(q + g * head_dim, head_dim, first, tokens, keys, values, ahead,
                                          kv.part_bytes, maximum + g, total + g, out + g * head_dim);
            g += G;
        };
        while (heads - g >= 5 || heads - g == 3) run(std::integral_constant<int, 3>());
        while (heads - g >= 2) run(std::integral_constant<int, 2>());
        if (heads - g == 1) run(std::integral_constant<int, 1>());
    }
}

template <class Kv>
static void attend(const float* q, int heads, int head_dim, KvView kv, float* maximum, float* total,
                   float* out) {
    for (int g = 0; g < heads; g++) maximum[g] = kMasked, total[g] = 0;
    std::memset(out, 0, sizeof(float) * heads * head_dim);
    switch (head_dim) {
        case 64:
            return attend_blocks<Kv, 64>(q, heads, head_dim, kv, maximum, total, out);
        case 128:
            return attend_blocks<Kv, 128>(q, heads, head_dim, kv, maximum, total, out);
        case 256:
            return attend_blocks<Kv, 256>(q, heads, head_dim, kv, maximum, total, out);
        default:
            return attend_blocks<Kv, 0>(q, heads, head_dim, kv, maximum, total, out);
    }
}

static void merge(float* maximum, float* total, float* out, float maximum2, float total2, const float* out2,
                  int n) {
    const float next = maximum2 > *maximum ? maximum2 : *maximum;
    const F8 factor = f8_exp(f8_set1(*maximum - next)), factor2 = f8_exp(f8_set1(maximum2 - next));
    alignas(32) float a[8], b[8];
    f8_store(a, factor), f8_store(b, factor2);
    *total = f1_fma(total2, b[0], *total * a[0]);
    *maximum = next;
    for (int i = 0; i < n; i += 8)
        f8_store(out + i, f8_fma(f8_load(out2 + i), factor2, f8_mul(f8_load(out + i), factor)));
}

static void finish(float total, const float* in, float* out, int n) {
    const F8 r = f8_set1(1.0f / total);
    for (int i = 0; i < n; i += 8) f8_store(out + i, f8_mul(f8_load(in + i), r));
}
