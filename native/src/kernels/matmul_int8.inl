// Quantised weight tiles: 16 rows x (blocks * 32) values against up to four int8 token rows.
//
// Per output and block, in block order:
//   q4: acc = fma(minimum, sum, fma(float(integer dot), scale_w * scale_x, acc))
//   q8: acc = fma(float(integer dot), scale_w * scale_x, acc)
// and then, for the blocks that have an outlier, again in block order:
//   acc = fma(float(integer weight at its place), scale_w * outlier, acc)

// There are 16 vector registers: 2 * M integer accumulators stay in them for a whole block, so for M > 2 the
// float accumulators live in `out` (L1 cache) and are touched once a block. The fence stops the compiler from
// promoting them to registers and spilling the integer ones; `HIDE` makes it load the nibbles again instead
// of keeping them alive.
#define TILTYARD_FENCE asm volatile("" ::: "memory")
#define TILTYARD_HIDE(p) asm volatile("" : "+r"(p))

struct TileQ4 {
    static constexpr size_t kBlockBytes = tile_block_bytes(WeightForm::q4), kScales = 256;
    // the integer weights of eight rows at place k of a block
    static inline F8 weight(const uint8_t* w, int group, int k) {
        return f8_nibble(b32_load(w + group * 128 + k % 16 / 4 * 32), k % 4 * 2 + k / 16);
    }
    template <int M>
    static inline void run(const uint8_t* w, int blocks, Activations x, float* out) {
        constexpr bool kInMemory = M > 2;
        F8 acc[M][2];
        for (int t = 0; t < M; t++) acc[t][0] = acc[t][1] = f8_zero();
        if (kInMemory)
            for (int t = 0; t < 2 * M; t++) f8_store(out + t * 8, f8_zero());
        for (int b = 0; b < blocks; b++, w += tile_block_bytes(WeightForm::q4)) {
            Dot4 dot[M][2];
            for (int t = 0; t < M; t++) dot[t][0] = dot[t][1] = dot4_zero();
            const int8_t* xb = x.q + b * kQuantBlock;
            if (M == 1)
                for (int c = 0; c < 5; c++) prefetch(w + 4096 + c * 64);
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) {
                {
                    const Bytes32 w0 = b32_low_nibbles(b32_load(w + j * 32));
                    const Bytes32 w1 = b32_low_nibbles(b32_load(w + 128 + j * 32));
#pragma GCC unroll 4
                    for (int t = 0; t < M; t++) {
                        const Bytes32 v = b32_broadcast4(xb + t * x.row_values + j * 4);
                        dot[t][0] = dot4_add(dot[t][0], w0, v);
                        dot[t][1] = dot4_add(dot[t][1], w1, v);
                    }
                }
                {
                    const uint8_t* again = w + j * 32;
                    if (kInMemory) TILTYARD_HIDE(again);
                    const Bytes32 w0 = b32_high_nibbles(b32_load(again));
                    const Bytes32 w1 = b32_high_nibbles(b32_load(again + 128));
#pragma GCC unroll 4
                    for (int t = 0; t < M; t++) {
                        const Bytes32 v = b32_broadcast4(xb + t * x.row_values + 16 + j * 4);
                        dot[t][0] = dot4_add(dot[t][0], w0, v);
                        dot[t][1] = dot4_add(dot[t][1], w1, v);
                    }
                }
            }
            const uint16_t* halves = reinterpret_cast<const uint16_t*>(w + 256);
            const F8 scale[2] = {f8_load_f16(halves), f8_load_f16(halves + 8)};
            const F8 minimum[2] = {f8_load_f16(halves + 16), f8_load_f16(halves + 24)};
            if (kInMemory) {
                TILTYARD_FENCE;
#pragma GCC unroll 4
                for (int t = 0; t < M; t++) {
                    const F8 xd = f8_set1(x.scale[t * x.row_blocks + b]),
                             xs = f8_set1(x.sum[t * x.row_blocks + b]);
#pragma GCC unroll 2
                    for (int g = 0; g < 2; g++) {
                        float* o = out + t * kTileRows + g * 8;
                        const F8 a = f8_fma(dot4_float(dot[t][g]), f8_mul(scale[g], xd), f8_load(o));
                        f8_store(o, f8_fma(minimum[g], xs, a));
                    }
                }
                TILTYARD_FENCE;
            } else {
#pragma GCC unroll 4
                for (int t = 0; t < M; t++) {
                    const F8 xd = f8_set1(x.scale[t * x.row_blocks + b]),
                             xs = f8_set1(x.sum[t * x.row_blocks + b]);
#pragma GCC unroll 2
                    for (int g = 0; g < 2; g++) {
                        const F8 a = f8_fma(dot4_float(dot[t][g]), f8_mul(scale[g], xd), acc[t][g]);
                        acc[t][g] = f8_fma(minimum[g], xs, a);
                    }
                }
            }
        }
        if (!kInMemory)
            for (int t = 0; t < M; t++)
                for (int g = 0; g < 2; g++) f8_store(out + t * kTileRows + g * 8, acc[t][g]);
    }
};

struct TileQ8 {
    static constexpr size_t kBlockBytes = tile_block_bytes(WeightForm::q8), kScales = 512;
    static inline F8 weight(const uint8_t* w, int group, int k) {
        return f8_byte(b32_load(w + group * 256 + k / 4 * 32), k % 4);
    }
    template <int M>
    static inline void run(const uint8_t* w, int blocks, Activations x, float* out) {
        constexpr bool kInMemory = M > 2;
        F8 acc[M][2];
        for (int t = 0; t < M; t++) acc[t][0] = acc[t][1] = f8_zero();
        if (kInMemory)
            for (int t = 0; t < 2 * M; t++) f8_store(out + t * 8, f8_zero());
        for (int b = 0; b < blocks; b++, w += tile_block_bytes(WeightForm::q8)) {
            const int8_t* xb = x.q + b * kQuantBlock;
            if (M == 1)
                for (int c = 0; c < 9; c++) prefetch(w + 4096 + c * 64);
            Dot8 dot[M][2];
            for (int t = 0; t < M; t++) dot[t][0] = dot[t][1] = dot8_zero();
#pragma GCC unroll 8
            for (int j = 0; j < 8; j++) {
#pragma GCC unroll 2
                for (int g = 0; g < 2; g++) {
                    const Weights8 wj = weights8(b32_load(w + g * 256 + j * 32));
#pragma GCC unroll 4
                    for (int t = 0; t < M; t++)
                        dot[t][g] = dot8_add(dot[t][g], wj, b32_broadcast4(xb + t * x.row_values + j * 4));
                }
            }
            const uint16_t* halves = reinterpret_cast<const uint16_t*>(w + 512);
            const F8 scale[2] = {f8_load_f16(halves), f8_load_f16(halves + 8)};
            if (kInMemory) TILTYARD_FENCE;
#pragma GCC unroll 4
            for (int t = 0; t < M; t++) {
                const F8 xd = f8_set1(x.scale[t * x.row_blocks + b]);
#pragma GCC unroll 2
                for (int g = 0; g < 2; g++) {
                    float* o = out + t * kTileRows + g * 8;
                    if (kInMemory)
                        f8_store(o, f8_fma(dot8_float(dot[t][g]), f8_mul(scale[g], xd), f8_load(o)));
                    else
                        acc[t][g] = f8_fma(dot8_float(dot[t][g]), f8_mul(scale[g], xd), acc[t][g]);
                }
            }
            if (kInMemory) TILTYARD_FENCE;
        }
        if (!kInMemory)
            for (int t = 0; t < M; t++)
                for (int g = 0; g < 2; g++) f8_store(out + t * kTileRows + g * 8, acc[t][g]);
    }
};

// TileQ4 after unpack_q4: for j in 0 .. 3 the bytes low group 0, low 1, high 0, high 1; then the scales and
// minima.
struct TileQ4Unpacked {
    template <int M>
    static inline void run(const uint8_t* w, int blocks, Activations x, float* out) {
        for (int t = 0; t < 2 * M; t++) f8_store(out + t * 8, f8_zero());
        for (int b = 0; b < blocks; b++, w += kUnpackedBytes) {
            Dot4 dot[M][2];
            for (int t = 0; t < M; t++) dot[t][0] = dot[t][1] = dot4_zero();
            const int8_t* xb = x.q + b * kQuantBlock;
#pragma GCC unroll 8
            for (int half = 0; half < 8; half++) {
                const Bytes32 w0 = b32_load(w + half * 64), w1 = b32_load(w + half * 64 + 32);
#pragma GCC unroll 4
                for (int t = 0; t < M; t++) {
                    const Bytes32 v = b32_broadcast4(xb + t * x.row_values + half % 2 * 16 + half / 2 * 4);
                    dot[t][0] = dot4_add(dot[t][0], w0, v);
                    dot[t][1] = dot4_add(dot[t][1], w1, v);
                }
            }
            const float* scales = reinterpret_cast<const float*>(w + 512);
            const F8 scale[2] = {f8_load(scales), f8_load(scales + 8)};
            const F8 minimum[2] = {f8_load(scales + 16), f8_load(scales + 24)};
            TILTYARD_FENCE;
#pragma GCC unroll 4
            for (int t = 0; t < M; t++) {
                const F8 xd = f8_set1(x.scale[t * x.row_blocks + b]),
                         xs = f8_set1(x.sum[t * x.row_blocks + b]);
#pragma GCC unroll 2
                for (int g = 0; g < 2; g++) {
                    float* o = out + t * kTileRows + g * 8;
                    const F8 a = f8_fma(dot4_float(dot[t][g]), f8_mul(scale[g], xd), f8_load(o));
                    f8_store(o, f8_fma(minimum[g], xs, a));
                }
            }
            TILTYARD_FENCE;
        }
    }
};

static void unpack_q4(const uint8_t* w, int blocks, uint8_t* out) {
    for (int b = 0; b < blocks; b++, w += TileQ4::kBlockBytes, out += kUnpackedBytes) {
        for (int j = 0; j < 4; j++)
            for (int g = 0; g < 2; g++) {
                const Bytes32 both = b32_load(w + g * 128 + j * 32);
                b32_store(out + j * 128 + g * 32, b32_low_nibbles(both));
                b32_store(out + j * 128 + 64 + g * 32, b32_high_nibbles(both));
            }
        const uint16_t* halves = reinterpret_cast<const uint16_t*>(w + TileQ4::kScales);
        float* scales = reinterpret_cast<float*>(out + 512);
        for (int i = 0; i < 32; i += 8) f8_store(scales + i, f8_load_f16(halves + i));
    }
}

// The outliers of one token's blocks.
template <class Tile>
static inline void add_outliers(const uint8_t* w, const Activations& x, int token, float* out) {
    const float* outliers = x.outlier + token * x.row_blocks;
    const uint8_t* places = x.outlier_at + token * x.row_blocks;
    F8 acc[2] = {f8_load(out), f8_load(out + 8)};
    for (size_t first = 0; first < x.row_blocks; first += 8)
        for (int mask = ~f8_equal_mask(f8_load(outliers + first), f8_zero()) & 255; mask; mask &= mask - 1) {
            const size_t b = first + __builtin_ctz(mask);
            const uint8_t* block = w + b * Tile::kBlockBytes;
            const uint16_t* halves = reinterpret_cast<const uint16_t*>(block + Tile::kScales);
            const F8 value = f8_set1(outliers[b]);
            for (int g = 0; g < 2; g++)
                acc[g] = f8_fma(Tile::weight(block, g, places[b]), f8_mul(f8_load_f16(halves + g * 8), value),
                                acc[g]);
        }
    f8_store(out, acc[0]), f8_store(out + 8, acc[1]);
}

template <class Tile>
static void tile_int8(const uint8_t* w, int blocks, Activations x, int tokens, float* out) {
    tile_any<Tile>(w, blocks, x, tokens, out);
    for (int t = 0; t < tokens; t++) add_outliers<Tile>(w, x, t, out + t * kTileRows);
}

static void tile_unpacked_q4(const uint8_t* w, const uint8_t* unpacked, int blocks, Activations x, int tokens,
                             float* out) {
    tile_any<TileQ4Unpacked>(unpacked, blocks, x, tokens, out);
    for (int t = 0; t < tokens; t++) add_outliers<TileQ4>(w, x, t, out + t * kTileRows);
}
