// Paged attention: online softmax over blocks of 32 tokens, in position order.

constexpr float kMasked = -1e30f;
constexpr float kLargestHalf = 65504.0f;

// Keys lie [head_dim][32 tokens], values [32 tokens][head_dim].
struct KvF16 {
    static constexpr int kBytes = 2;
    static const uint16_t* at(const uint8_t* part, int i) {
        return reinterpret_cast<const uint16_t*>(part) + i;
    }
    static Wide load(const uint8_t* part, int i) { return w_load_f16(at(part, i)); }
    static F8 load8(const uint8_t* part, int i) { return f8_load_f16(at(part, i)); }
    static Wide scale(const uint8_t*, int, int, Wide x) { return x; }
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
    static const int8_t* at(const uint8_t* part, int i) { return reinterpret_cast<const int8_t*>(part) + i; }
    static Wide load(const uint8_t* part, int i) { return w_load_i8(at(part, i)); }
    static F8 load8(const uint8_t* part, int i) { return f8_load_i8(at(part, i)); }
    static Wide scale(const uint8_t* part, int head_dim, int c, Wide x) {
        return w_mul(x, w_load(reinterpret_cast<const float*>(part + head_dim * kBlockTokens) + c));
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

// A block's keys or values as floats, once for all the queries that pass it.
struct KvOpened {
    static constexpr int kBytes = 4;
    static const float* at(const uint8_t* part, int i) { return reinterpret_cast<const float*>(part) + i; }
    static Wide load(const uint8_t* part, int i) { return w_load(at(part, i)); }
    static F8 load8(const uint8_t* part, int i) { return f8_load(at(part, i)); }
};
template <class Kv>
static void open_part(const uint8_t* part, const uint8_t* ahead, int head_dim, float* out) {
    for (int i = 0; i < head_dim * kBlockTokens; i += 16) {
        prefetch(ahead + i * Kv::kBytes);
        w_store(out + i, Kv::load(part, i));
    }
}

// Which tokens of a block a query sees.
struct Seen {
    int first, end;
};

// out[i][c .. c + 32) += p[i][t] * value[t], token by token, for N queries
template <class Source, int N>
static inline void add_values(const float (*p)[kBlockTokens], Seen seen, const uint8_t* values,
                              const uint8_t* ahead, int head_dim, int c, float* out) {
    Wide a[N][2];
#pragma GCC unroll 8
    for (int i = 0; i < N; i++)
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++) a[i][j] = w_load(out + i * head_dim + c + j * 16);
    for (int t = seen.first; t < seen.end; t++) {
        if (Source::kBytes < 4) prefetch(ahead + ((size_t)t * head_dim + c) * Source::kBytes);
        const Wide v[2] = {Source::load(values, t * head_dim + c),
                           Source::load(values, t * head_dim + c + 16)};
#pragma GCC unroll 8
        for (int i = 0; i < N; i++)
#pragma GCC unroll 2
            for (int j = 0; j < 2; j++) a[i][j] = w_fma1(v[j], p[i][t], a[i][j]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < N; i++)
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++) w_store(out + i * head_dim + c + j * 16, a[i][j]);
}
template <class Source, int N>
static inline void add_all_values(const float (*p)[kBlockTokens], Seen seen, const uint8_t* values,
                                  const uint8_t* ahead, int head_dim, float* out) {
    const int whole = head_dim / 32 * 32;
    for (int c = 0; c < whole; c += 32) add_values<Source, N>(p, seen, values, ahead, head_dim, c, out);
    for (int i = 0; i < N; i++)
        for (int c = whole; c < head_dim; c += 8) {
            F8 a = f8_load(out + i * head_dim + c);
            for (int t = seen.first; t < seen.end; t++)
                a = f8_fma(f8_set1(p[i][t]), Source::load8(values, t * head_dim + c), a);
            f8_store(out + i * head_dim + c, a);
        }
}

// The online softmax of N queries over one block: scores become weights, what was summed before shrinks. Step
// by step for all of them, so that the latency of one hides behind the others.
template <class Kv, int N>
static inline void soften(float (*p)[kBlockTokens], const Seen* seen, const uint8_t* keys,
                          const uint8_t* values, int head_dim, float* maximum, float* total, float* out) {
    const auto mask = [&](int i, float other) {
        if (seen[i].first == 0 && seen[i].end == kBlockTokens) return;
        for (int c = 0; c < kBlockTokens; c += 16) {
            const Wide some = w_keep(w_load(p[i] + c), seen[i].end - c, w_set1(other));
            w_store(p[i] + c, w_keep(w_set1(other), seen[i].first - c, some));
        }
    };
    float next[N], sum[N];
    for (int i = 0; i < N; i++) {
        for (int c = 0; c < kBlockTokens; c += 16)
            w_store(p[i] + c, Kv::scale(keys, head_dim, c, w_load(p[i] + c)));
        mask(i, kMasked);
    }
#pragma GCC unroll 8
    for (int i = 0; i < N; i++) {
        const float highest = f8_hmax(f8_max(w_folded_max(w_load(p[i])), w_folded_max(w_load(p[i] + 16))));
        next[i] = highest > maximum[i] ? highest : maximum[i];
    }
#pragma GCC unroll 8
    for (int i = 0; i < N; i++)
#pragma GCC unroll 2
        for (int c = 0; c < kBlockTokens; c += 16)
            w_store(p[i] + c, exp_of(w_sub(w_load(p[i] + c), w_set1(next[i]))));
    for (int i = 0; i < N; i++) mask(i, 0);
#pragma GCC unroll 8
    for (int i = 0; i < N; i++) {
        sum[i] = f8_hsum(f8_add(w_folded_sum(w_load(p[i])), w_folded_sum(w_load(p[i] + 16))));
        for (int c = 0; c < kBlockTokens; c += 16)
            w_store(p[i] + c, Kv::scale(values, head_dim, c, w_load(p[i] + c)));
    }
    for (int i = 0; i < N; i++) {
        if (next[i] == maximum[i]) {  // the factor would be exp(0) = 1 exactly
            total[i] = total[i] + sum[i];
            continue;
        }
        const F8 factor = f8_exp(f8_set1(maximum[i] - next[i]));
        alignas(32) float factors[8];
        f8_store(factors, factor);
        total[i] = f1_fma(total[i], factors[0], sum[i]);
        maximum[i] = next[i];
        for (int d = 0; d < head_dim; d += 8) {
            float* o = out + (size_t)i * head_dim + d;
            f8_store(o, f8_mul(f8_load(o), factor));
        }
    }
}

// Where a block's keys and values lie: as they are stored, and as they are read.
struct KvBlock {
    const uint8_t *stored_keys, *stored_values, *keys, *values, *ahead_keys, *ahead_values;
};

// N queries over one block of up to 32 tokens. Only the slots that a query sees are believed: scores of the
// others are replaced before use, and their values are never read.
template <class Kv, class Source, int N, int kHeadDim>
[[gnu::noinline]] static void attend_block(const float* q, int head_dim, const Seen* seen, KvBlock block,
                                           float* maximum, float* total, float* out) {
    if (kHeadDim) head_dim = kHeadDim;  // a constant lets the compiler fold the strides
    alignas(64) float p[N][kBlockTokens];
    {
        Wide s[N][2];
#pragma GCC unroll 8
        for (int i = 0; i < N; i++)
#pragma GCC unroll 2
            for (int c = 0; c < 2; c++) s[i][c] = w_zero();
        for (int d = 0; d < head_dim; d++) {
            if (Source::kBytes < 4) prefetch(block.ahead_keys + (size_t)d * Source::kBytes * kBlockTokens);
            const Wide k[2] = {Source::load(block.keys, d * kBlockTokens),
                               Source::load(block.keys, d * kBlockTokens + 16)};
#pragma GCC unroll 8
            for (int i = 0; i < N; i++)
#pragma GCC unroll 2
                for (int c = 0; c < 2; c++) s[i][c] = w_fma1(k[c], q[i * head_dim + d], s[i][c]);
        }
#pragma GCC unroll 8
        for (int i = 0; i < N; i++)
#pragma GCC unroll 2
            for (int c = 0; c < 2; c++) w_store(p[i] + c * 16, s[i][c]);
    }
    soften<Kv, N>(p, seen, block.stored_keys, block.stored_values, head_dim, maximum, total, out);
    Seen common = seen[0];
    for (int i = 1; i < N; i++) {
        common.first = seen[i].first > common.first ? seen[i].first : common.first;
        common.end = seen[i].end < common.end ? seen[i].end : common.end;
    }
    // Together over what all see; what only some do, before and after it, is added for each alone.
    if (common.end < common.first) common.end = common.first;
    const auto alone = [&](int i, int first, int end) {
        if (first < end)
            add_all_values<Source, 1>(p + i, {first, end}, block.values, block.ahead_values, head_dim,
                                      out + i * head_dim);
    };
    for (int i = 0; i < N; i++)
        alone(i, seen[i].first, common.first < seen[i].end ? common.first : seen[i].end);
    add_all_values<Source, N>(p, common, block.values, block.ahead_values, head_dim, out);
    for (int i = 0; i < N; i++)
        alone(i, common.end > seen[i].first ? common.end : seen[i].first, seen[i].end);
}

template <class Kv, class Source, int kHeadDim, int N = kMostQueries>
static void attend_queries(int queries, const float* q, int head_dim, const Seen* seen, const KvBlock& block,
                           float* maximum, float* total, float* out) {
    if constexpr (N > 1)
        if (queries < N)
            return attend_queries<Kv, Source, kHeadDim, N - 1>(queries, q, head_dim, seen, block, maximum,
                                                               total, out);
    attend_block<Kv, Source, N, kHeadDim>(q, head_dim, seen, block, maximum, total, out);
}

template <class Kv, int kHeadDim>
static void attend_blocks(const AttendTask& a, const KvView& kv) {
    const int n = a.head_dim, whole = kBlockTokens * n;
    const auto end_of = [&](int row) {
        const int end = kv.tokens + row;
        return end < kSplitTokens ? end : kSplitTokens;
    };
    const auto first_of = [&](int row) { return kv.window && kv.first + row > 0 ? kv.first + row : 0; };
    const int last = (end_of(a.rows - 1) - 1) / kBlockTokens;
    for (int b = first_of(0) / kBlockTokens; b <= last; b++) {
        const int start = b * kBlockTokens;
        const uint8_t* keys = kv.keys + (size_t)kv.table[b] * kv.block_bytes;
        // blocks lie anywhere, so nothing but us can know which memory comes next
        const uint8_t* ahead = kv.keys + (size_t)kv.table[b < last ? b + 1 : b] * kv.block_bytes;
        int begin = 0, end = a.rows;  // the rows that see something here
        while (end_of(begin) <= start) begin++;
        while (first_of(end - 1) >= start + kBlockTokens) end--;
        KvBlock block{keys, keys + kv.part_bytes, keys, keys + kv.part_bytes, ahead, ahead + kv.part_bytes};
        const bool opened = (end - begin) * a.heads > kMostQueries;
        if (opened) {
            open_part<Kv>(block.keys, block.ahead_keys, n, a.scratch);
            open_part<Kv>(block.values, block.ahead_values, n, a.scratch + whole);
            block.keys = reinterpret_cast<const uint8_t*>(a.scratch);
            block.values = reinterpret_cast<const uint8_t*>(a.scratch + whole);
        }
        for (int i = begin * a.heads; i < end * a.heads;) {
            const int left = end * a.heads - i, calls = (left + kMostQueries - 1) / kMostQueries,
                      queries = (left + calls - 1) / calls;
            Seen seen[kMostQueries];
            for (int j = 0; j < queries; j++) {
                const int row = (i + j) / a.heads, first = first_of(row) - start, stop = end_of(row) - start;
                seen[j] = {first > 0 ? first : 0, stop < kBlockTokens ? stop : kBlockTokens};
            }
            const auto run =
                opened ? attend_queries<Kv, KvOpened, kHeadDim> : attend_queries<Kv, Kv, kHeadDim>;
            run(queries, a.q + (size_t)i * n, n, seen, block, a.maximum + i, a.total + i,
                a.out + (size_t)i * n);
            i += queries;
        }
    }
}

template <class Kv>
static void attend(const AttendTask& a, const KvView& kv) {
    for (int i = 0; i < a.rows * a.heads; i++) a.maximum[i] = kMasked, a.total[i] = 0;
    std::memset(a.out, 0, sizeof(float) * a.rows * a.heads * a.head_dim);
    switch (a.head_dim) {
        case 64:
            return attend_blocks<Kv, 64>(a, kv);
        case 128:
            return attend_blocks<Kv, 128>(a, kv);
        case 256:
            return attend_blocks<Kv, 256>(a, kv);
        default:
            return attend_blocks<Kv, 0>(a, kv);
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
