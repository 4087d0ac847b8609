// Quantised weight tiles: 16 rows x (blocks * 32) values against a few int8 token rows.
//
// Per output and block, in block order:
//   q4: acc = fma(minimum, sum, fma(float(integer dot), scale_w * scale_x, acc))
//   q8: acc = fma(float(integer dot), scale_w * scale_x, acc)
// and then, for the blocks that have an outlier, again in block order:
//   acc = fma(float(integer weight at its place), scale_w * outlier, acc)

// With 16 vector registers the integer sums of more than two tokens fill them for a whole block: then the
// float sums live in `out` (L1 cache) and are touched once a block. The fence stops the compiler from
// promoting them to registers and spilling the integer ones; `HIDE` makes it load the nibbles again instead
// of keeping them alive.
#define TILTYARD_FENCE asm volatile("" ::: "memory")
#define TILTYARD_HIDE(p) asm volatile("" : "+r"(p))

constexpr size_t kPrefetchAhead = 4096;  // bytes that arrive while a lone token's sums are made

// The float sums of M tokens, in registers or in memory.
template <int M>
struct Sums {
    static constexpr bool kInMemory = M > kTokensInRegisters;
    explicit Sums(float* out, int stride) : out(out), stride(stride) {
#pragma GCC unroll 8
        for (int t = 0; t < M; t++)
            if (kInMemory)
                w_store(out + t * stride, w_zero());
            else
                acc[t] = w_zero();
    }
    [[gnu::always_inline]] inline Wide get(int t) const {
        return kInMemory ? w_load(out + t * stride) : acc[kInMemory ? 0 : t];
    }
    [[gnu::always_inline]] inline void put(int t, Wide sum) {
        if (kInMemory)
            w_store(out + t * stride, sum);
        else
            acc[kInMemory ? 0 : t] = sum;
    }
    // around a pass over the sums
    [[gnu::always_inline]] static inline void fence() {
        if (kInMemory) TILTYARD_FENCE;
    }
    template <class Next>
    [[gnu::always_inline]] inline void update(Next next) {  // acc = next(token, acc)
        fence();
#pragma GCC unroll 8
        for (int t = 0; t < M; t++) put(t, next(t, get(t)));
        fence();
    }
    inline void finish() {
        if (kInMemory) return;
#pragma GCC unroll 8
        for (int t = 0; t < M; t++) w_store(out + t * stride, acc[t]);
    }
    float* out;
    const int stride;
    Wide acc[kInMemory ? 1 : M];
};

struct TileQ4 {
    static constexpr size_t kBlockBytes = tile_block_bytes(WeightForm::q4), kScales = 256;
    // the integer weights of the rows at place k of block b, and their scales
    static inline Wide weight(const uint8_t* w, int b, int k) {
        return w_nibble(b64_load(w + b * kBlockBytes + k % 16 / 4 * 64), k % 4 * 2 + k / 16);
    }
    static inline Wide scale(const uint8_t* w, int b) {
        return w_load_f16(reinterpret_cast<const uint16_t*>(w + b * kBlockBytes + kScales));
    }
    template <int M>
    static inline void run(const uint8_t* w, int blocks, Activations x, float* out, int stride) {
        Sums<M> sums(out, stride);
        for (int b = 0; b < blocks; b++, w += kBlockBytes) {
            WideDot4 dot[M];

#pragma GCC unroll 8
            for (int t = 0; t < M; t++) dot[t] = w_dot4_zero();
            const int8_t* xb = x.q + b * kQuantBlock;
            if (M == 1)
                for (int c = 0; c < 5; c++) prefetch(w + kPrefetchAhead + c * 64);
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) {
                {
                    const Bytes64 low = b64_low_nibbles(b64_load(w + j * 64));
#pragma GCC unroll 8
                    for (int t = 0; t < M; t++)
                        dot[t] = w_dot4_add(dot[t], low, xb + t * x.row_values + j * 4);
                }
                const uint8_t* again = w + j * 64;
                if (Sums<M>::kInMemory) TILTYARD_HIDE(again);
                const Bytes64 high = b64_high_nibbles(b64_load(again));
#pragma GCC unroll 8
                for (int t = 0; t < M; t++)
                    dot[t] = w_dot4_add(dot[t], high, xb + t * x.row_values + 16 + j * 4);
            }
            const uint16_t* halves = reinterpret_cast<const uint16_t*>(w + kScales);
            const Wide scale = w_load_f16(halves), minimum = w_load_f16(halves + kTileRows);
            sums.fence();
#pragma GCC unroll 8
            for (int t = 0; t < M; t++) {
                const size_t at = t * x.row_blocks + b;
                const Wide sum = w_fma(w_dot4_float(dot[t]), w_scaled(scale, x.scale[at]), sums.get(t));
                sums.put(t, w_fma1(minimum, x.sum[at], sum));
            }
            sums.fence();
        }
        sums.finish();
    }
};

struct TileQ8 {
    static constexpr size_t kBlockBytes = tile_block_bytes(WeightForm::q8), kScales = 512;
    static inline Wide weight(const uint8_t* w, int b, int k) {
        return w_byte(b64_load(w + b * kBlockBytes + k / 4 * 64), k % 4);
    }
    static inline Wide scale(const uint8_t* w, int b) {
        return w_load_f16(reinterpret_cast<const uint16_t*>(w + b * kBlockBytes + kScales));
    }
    template <int M>
    static inline void run(const uint8_t* w, int blocks, Activations x, float* out, int stride) {
        Sums<M> sums(out, stride);
        for (int b = 0; b < blocks; b++, w += kBlockBytes) {
            const int8_t* xb = x.q + b * kQuantBlock;
            if (M == 1)
                for (int c = 0; c < 9; c++) prefetch(w + kPrefetchAhead + c * 64);
            WideDot8 dot[M];

#pragma GCC unroll 8
            for (int t = 0; t < M; t++) dot[t] = w_dot8_start(x.bias + t * x.row_blocks + b);
#pragma GCC unroll 8
            for (int j = 0; j < 8; j++) {
                const WideWeights8 wj = w_weights8(b64_load(w + j * 64));
#pragma GCC unroll 8
                for (int t = 0; t < M; t++) dot[t] = w_dot8_add(dot[t], wj, xb + t * x.row_values + j * 4);
            }
            const Wide scale = w_load_f16(reinterpret_cast<const uint16_t*>(w + kScales));
            sums.fence();
#pragma GCC unroll 8
            for (int t = 0; t < M; t++) {
                const Wide scaled = w_scaled(scale, x.scale[t * x.row_blocks + b]);
                sums.put(t, w_fma(w_dot8_float(dot[t]), scaled, sums.get(t)));
            }
            sums.fence();
        }
        sums.finish();
    }
};

// TileQ4 after unpack_q4: for j in 0 .. 3 the 64 low nibbles as bytes, then the high ones; then the scales
// and minima as floats.
struct TileQ4Unpacked {
    template <int M>
    static inline void run(const uint8_t* w, int blocks, Activations x, float* out, int stride) {
        Sums<M> sums(out, stride);
        for (int b = 0; b < blocks; b++, w += kUnpackedBytes) {
            WideDot4 dot[M];

#pragma GCC unroll 8
            for (int t = 0; t < M; t++) dot[t] = w_dot4_zero();
            const int8_t* xb = x.q + b * kQuantBlock;
#pragma GCC unroll 8
            for (int half = 0; half < 8; half++) {
                const Bytes64 weights = b64_load(w + half * 64);
#pragma GCC unroll 8
                for (int t = 0; t < M; t++)
                    dot[t] =
                        w_dot4_add(dot[t], weights, xb + t * x.row_values + half % 2 * 16 + half / 2 * 4);
            }
            const float* scales = reinterpret_cast<const float*>(w + 512);
            const Wide scale = w_load(scales), minimum = w_load(scales + kTileRows);
            sums.fence();
#pragma GCC unroll 8
            for (int t = 0; t < M; t++) {
                const size_t at = t * x.row_blocks + b;
                const Wide sum = w_fma(w_dot4_float(dot[t]), w_scaled(scale, x.scale[at]), sums.get(t));
                sums.put(t, w_fma1(minimum, x.sum[at], sum));
            }
            sums.fence();
        }
        sums.finish();
    }
};

static void unpack_q4(const uint8_t* w, int blocks, uint8_t* out) {
    for (int b = 0; b < blocks; b++, w += TileQ4::kBlockBytes, out += kUnpackedBytes) {
        for (int j = 0; j < 4; j++) {
            const Bytes64 both = b64_load(w + j * 64);
            b64_store(out + j * 128, b64_low_nibbles(both));
            b64_store(out + j * 128 + 64, b64_high_nibbles(both));
        }
        const uint16_t* halves = reinterpret_cast<const uint16_t*>(w + TileQ4::kScales);
        float* scales = reinterpret_cast<float*>(out + 512);
        for (int i = 0; i < 2; i++) w_store(scales + i * kTileRows, w_load_f16(halves + i * kTileRows));
    }
}

// The outliers of the token rows, where there are any: a list made once for all tiles.
template <class Tile>
static void add_outliers(const uint8_t* w, const Outlier* outliers, int count, float* out, int stride) {
    for (int i = 0; i < count; i++) {
        const Outlier& o = outliers[i];
        float* at = out + (size_t)o.row * stride;
        const Wide scaled = w_scaled(Tile::scale(w, o.block), o.value);
        w_store(at, w_fma(Tile::weight(w, o.block, o.place), scaled, w_load(at)));
    }
}

static int list_outliers(const Activations& x, int rows, Outlier* list) {
    int count = 0;
    for (size_t first = 0; first < x.row_blocks; first += 8)
        for (int row = 0; row < rows; row++) {
            const size_t at = row * x.row_blocks + first;
            for (int mask = ~f8_equal_mask(f8_load(x.outlier + at), f8_zero()) & 255; mask;
                 mask &= mask - 1) {
                const int b = __builtin_ctz(mask);
                list[count++] = {x.outlier[at + b], (uint16_t)(first + b), x.outlier_at[at + b],
                                 (uint8_t)row};
            }
        }
    return count;
}
