// Tiles of five and six bits, and of ggml's super-blocks of 256 ("K-quants").
//
// A block is first opened into bytes: 64 bytes for each step of four k, as TileQ4Unpacked has them, then its
// scales and minima as floats; for few tokens block by block, for many all at once. Per output and block:
//   q5, q4k, q5k: acc = fma(minimum, sum, fma(float(integer dot), scale_w * scale_x, acc))
//   q6k:          acc = fma(float(first * dot of 16 + second * dot of the other 16), scale_w * scale_x, acc)
// and then the outliers, as in matmul_int8.inl.

// The steps of a block: step s reads x[s % 2 * 16 + s / 2 * 4 ..]. `Bits` above four lie in planes behind the
// nibbles: with five bits one plane of 64 bytes, bit s for step s; with six two planes, two bits a step.
template <int Bits>
static inline void open_bytes(const uint8_t* w, uint8_t* out) {
    constexpr int kHighBits = Bits - 4, kMask = (1 << kHighBits) - 1,
                  kStepsInPlane = kHighBits ? 8 / kHighBits : 8;
    constexpr int kShift = Bits == 6 ? 32 : 0;  // six bits are signed: q - 32
#pragma GCC unroll 8
    for (int s = 0; s < 8; s++) {
        const uint8_t *nibbles = w + s / 2 * 64, *plane = w + 256 + s / kStepsInPlane * 64;
        for (int i = 0; i < 64; i++) {
            const int low = s % 2 ? nibbles[i] >> 4 : nibbles[i] & 15;
            const int high = kHighBits ? plane[i] >> s % kStepsInPlane * kHighBits & kMask : 0;
            out[s * 64 + i] = (uint8_t)((low | high << 4) - kShift);
        }
    }
}
// The same for one place of the block.
template <int Bits>
static inline Wide weights_at(const uint8_t* w, int k) {
    constexpr int kHighBits = Bits - 4, kMask = (1 << kHighBits) - 1,
                  kStepsInPlane = kHighBits ? 8 / kHighBits : 8;
    const int s = k % 16 / 4 * 2 + k / 16;
    const uint8_t *nibbles = w + s / 2 * 64 + k % 4, *plane = w + 256 + s / kStepsInPlane * 64 + k % 4;
    float q[kTileRows];
    for (int r = 0; r < kTileRows; r++) {
        const int low = s % 2 ? nibbles[r * 4] >> 4 : nibbles[r * 4] & 15;
        const int high = kHighBits ? plane[r * 4] >> s % kStepsInPlane * kHighBits & kMask : 0;
        q[r] = (float)((low | high << 4) - (Bits == 6 ? 32 : 0));
    }
    return w_load(q);
}
static inline const int8_t* step_of(const int8_t* x, int s) { return x + s % 2 * 16 + s / 2 * 4; }

// One factor for each row: half * int8, exact in float.
static inline void store_products(const uint8_t* halves, const uint8_t* factors, float* out) {
    const auto* h = reinterpret_cast<const uint16_t*>(halves);
    const auto* f = reinterpret_cast<const int8_t*>(factors);
    for (int i = 0; i < kTileRows; i += 8) f8_store(out + i, f8_mul(f8_load_f16(h + i), f8_load_i8(f + i)));
}

// Opened blocks with a minimum. Sums of five bits would leave 16 bits after four steps of eight: two halves.
template <int Bits>
struct OpenedWithMinimum {
    template <int M>
    static inline void add(const uint8_t* opened, int b, const Activations& x, Sums<M>& sums) {
        constexpr int kParts = Bits > 4 ? 2 : 1, kSteps = 8 / kParts;
        const int8_t* xb = x.q + b * kQuantBlock;
        Wide sum[M];
#pragma GCC unroll 2
        for (int part = 0; part < kParts; part++) {
            WideDot4 dot[M];
            for (int t = 0; t < M; t++) dot[t] = w_dot4_zero();
#pragma GCC unroll 8
            for (int s = part * kSteps; s < (part + 1) * kSteps; s++) {
                const Bytes64 weights = b64_load(opened + s * 64);
#pragma GCC unroll 8
                for (int t = 0; t < M; t++)
                    dot[t] = w_dot4_add(dot[t], weights, step_of(xb + t * x.row_values, s));
            }
            for (int t = 0; t < M; t++)  // integers below 2^24: exact
                sum[t] = part ? w_fma1(w_dot4_float(dot[t]), 1.0f, sum[t]) : w_dot4_float(dot[t]);
        }
        const float* scales = reinterpret_cast<const float*>(opened + 512);
        const Wide scale = w_load(scales), minimum = w_load(scales + kTileRows);
        sums.fence();
#pragma GCC unroll 8
        for (int t = 0; t < M; t++) {
            const size_t at = t * x.row_blocks + b;
            const Wide next = w_fma(sum[t], w_scaled(scale, x.scale[at]), sums.get(t));
            sums.put(t, w_fma1(minimum, x.sum[at], next));
        }
        sums.fence();
    }
};

// Q5_1, and Q5_0 with minimum = -16 * scale.
struct BlocksQ5 : OpenedWithMinimum<5> {
    static constexpr size_t kBytes = tile_block_bytes(WeightForm::q5);
    static inline const uint8_t* block(const uint8_t* w, int b) { return w + b * kBytes; }
    static inline void open(const uint8_t* w, int b, uint8_t* out) {
        open_bytes<5>(block(w, b), out);
        const auto* halves = reinterpret_cast<const uint16_t*>(block(w, b) + 320);
        float* scales = reinterpret_cast<float*>(out + 512);
        for (int i = 0; i < 2 * kTileRows; i += 8) f8_store(scales + i, f8_load_f16(halves + i));
    }
    static inline Wide weight(const uint8_t* w, int b, int k) { return weights_at<5>(block(w, b), k); }
    static inline Wide scale(const uint8_t* w, int b) {
        return w_load_f16(reinterpret_cast<const uint16_t*>(block(w, b) + 320));
    }
};

// Q4_K and Q5_K: eight blocks, each with 16 scales and 16 minima of six bits; then d and -dmin of the rows.
template <int Bits>
struct BlocksK : OpenedWithMinimum<Bits> {
    static constexpr size_t kQuants = Bits == 4 ? 256 : 320, kBytes = kQuants + 32,
                            kSuperBytes = 8 * kBytes + 64;
    static inline const uint8_t* super(const uint8_t* w, int b) { return w + b / 8 * kSuperBytes; }
    static inline const uint8_t* block(const uint8_t* w, int b) { return super(w, b) + b % 8 * kBytes; }
    static inline void open(const uint8_t* w, int b, uint8_t* out) {
        const uint8_t *small = block(w, b) + kQuants, *halves = super(w, b) + 8 * kBytes;
        open_bytes<Bits>(block(w, b), out);
        store_products(halves, small, reinterpret_cast<float*>(out + 512));
        store_products(halves + 32, small + 16, reinterpret_cast<float*>(out + 576));
    }
    static inline Wide weight(const uint8_t* w, int b, int k) { return weights_at<Bits>(block(w, b), k); }
    static inline Wide scale(const uint8_t* w, int b) {
        float scales[kTileRows];
        store_products(super(w, b) + 8 * kBytes, block(w, b) + kQuants, scales);
        return w_load(scales);
    }
};

// Q6_K: eight blocks, each with 16 signed scales for its first sixteen values and 16 for the others; then d.
struct BlocksQ6K {
    static constexpr size_t kQuants = 384, kBytes = kQuants + 32, kSuperBytes = 8 * kBytes + 32;
    static inline const uint8_t* super(const uint8_t* w, int b) { return w + b / 8 * kSuperBytes; }
    static inline const uint8_t* block(const uint8_t* w, int b) { return super(w, b) + b % 8 * kBytes; }
    // opened: bytes, d as floats, the two int8 scales of each row
    static inline void open(const uint8_t* w, int b, uint8_t* out) {
        open_bytes<6>(block(w, b), out);
        w_store(reinterpret_cast<float*>(out + 512), scale(w, b));
        std::memcpy(out + 576, block(w, b) + kQuants, 32);
    }
    static inline Wide small(const uint8_t* p) {
        float scales[kTileRows];
        for (int i = 0; i < kTileRows; i += 8)
            f8_store(scales + i, f8_load_i8(reinterpret_cast<const int8_t*>(p) + i));
        return w_load(scales);
    }
    static inline Wide weight(const uint8_t* w, int b, int k) {
        return w_fma(weights_at<6>(block(w, b), k), small(block(w, b) + kQuants + k / 16 * 16), w_zero());
    }
    static inline Wide scale(const uint8_t* w, int b) {
        return w_load_f16(reinterpret_cast<const uint16_t*>(super(w, b) + 8 * kBytes));
    }
    template <int M>
    static inline void add(const uint8_t* opened, int b, const Activations& x, Sums<M>& sums) {
        const int8_t* xb = x.q + b * kQuantBlock;
        Wide sum[M];
#pragma GCC unroll 2
        for (int half = 0; half < 2;
             half++) {  // even steps read the first sixteen values, odd ones the others
            WideDot8 dot[M];
            for (int t = 0; t < M; t++) {
                int32_t bias =
                    0;  // -128 * sum of half a block's q, which one vocabulary wants (simd_avx512.hpp)
                for (int k = 0; k < 16; k++) bias -= 128 * xb[t * x.row_values + half * 16 + k];
                dot[t] = w_dot8_start(&bias);
            }
#pragma GCC unroll 4
            for (int s = half; s < 8; s += 2) {
                const WideWeights8 weights = w_weights8(b64_load(opened + s * 64));
#pragma GCC unroll 8
                for (int t = 0; t < M; t++)
                    dot[t] = w_dot8_add(dot[t], weights, step_of(xb + t * x.row_values, s));
            }
            // below 2 * 16 * 32 * 127 * 128 < 2^24: every product and the sum are exact
            const Wide scales = small(opened + 576 + half * kTileRows);
            for (int t = 0; t < M; t++)
                sum[t] = w_fma(w_dot8_float(dot[t]), scales, half ? sum[t] : w_zero());
        }
        const Wide d = w_load(reinterpret_cast<const float*>(opened + 512));
        sums.fence();
#pragma GCC unroll 8
        for (int t = 0; t < M; t++) {
            const Wide scaled = w_scaled(d, x.scale[t * x.row_blocks + b]);
            sums.put(t, w_fma(sum[t], scaled, sums.get(t)));
        }
        sums.fence();
    }
};

template <class Blocks>
struct TileBlocks {
    template <int M>
    static inline void run(const uint8_t* w, int blocks, Activations x, float* out, int stride) {
        Sums<M> sums(out, stride);
        alignas(64) uint8_t opened[kUnpackedBytes];
        for (int b = 0; b < blocks; b++) {
            if (M == 1)
                for (int c = 0; c < 6; c++) prefetch(Blocks::block(w, b) + 4096 + c * 64);
            Blocks::open(w, b, opened);
            Blocks::template add<M>(opened, b, x, sums);
        }
        sums.finish();
    }
};
template <class Blocks>
struct TileOpened {
    template <int M>
    static inline void run(const uint8_t* opened, int blocks, Activations x, float* out, int stride) {
        Sums<M> sums(out, stride);
        for (int b = 0; b < blocks; b++, opened += kUnpackedBytes)
            Blocks::template add<M>(opened, b, x, sums);
        sums.finish();
    }
};

template <class Blocks>
static void unpack_blocks(const uint8_t* w, int blocks, uint8_t* out) {
    for (int b = 0; b < blocks; b++, out += kUnpackedBytes) Blocks::open(w, b, out);
}
