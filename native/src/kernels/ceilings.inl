// What this instruction set can do at most: the same multiply-adds and loads as in the weight tiles, but
// independent and without anything around them. For measuring only.

// `scratch` has 64 bytes of weights and tokens to read and room for kPeakSums * 16 floats. Returns how many
// multiply-adds it did.
constexpr int kPeakSums = kTokensInRegisters > 4 ? 12 : 4;  // enough to hide the latency, few enough to fit

static double most_int4(int rounds, uint8_t* scratch) {
    WideDot4 sums[kPeakSums];
#pragma GCC unroll 12
    for (int j = 0; j < kPeakSums; j++) sums[j] = w_dot4_zero();
    const Bytes64 w = b64_low_nibbles(b64_load(scratch));
    const int8_t* x = reinterpret_cast<const int8_t*>(scratch);
    for (int i = 0; i < rounds; i++) {
        TILTYARD_FENCE;  // or every product would be computed once
#pragma GCC unroll 12
        for (int j = 0; j < kPeakSums; j++) sums[j] = w_dot4_add(sums[j], w, x + j * 4);
    }
#pragma GCC unroll 12
    for (int j = 0; j < kPeakSums; j++)
        w_store(reinterpret_cast<float*>(scratch) + j * 16, w_dot4_float(sums[j]));
    return (double)rounds * kPeakSums * 64;
}

static double most_int8(int rounds, uint8_t* scratch) {
    WideDot8 sums[kPeakSums];
    const int32_t start = 0;
#pragma GCC unroll 12
    for (int j = 0; j < kPeakSums; j++) sums[j] = w_dot8_start(&start);
    const WideWeights8 w = w_weights8(b64_load(scratch));
    const int8_t* x = reinterpret_cast<const int8_t*>(scratch);
    for (int i = 0; i < rounds; i++) {
        TILTYARD_FENCE;
#pragma GCC unroll 12
        for (int j = 0; j < kPeakSums; j++) sums[j] = w_dot8_add(sums[j], w, x + j * 4);
    }
#pragma GCC unroll 12
    for (int j = 0; j < kPeakSums; j++)
        w_store(reinterpret_cast<float*>(scratch) + j * 16, w_dot8_float(sums[j]));
    return (double)rounds * kPeakSums * 64;
}

// Loads all of `bytes` (a multiple of 512).
static void read_all(const uint8_t* p, size_t bytes, uint8_t* scratch) {
    Wide sums[8];
    for (auto& sum : sums) sum = w_zero();
    const Wide one = w_load(reinterpret_cast<const float*>(scratch));
    for (size_t at = 0; at < bytes; at += 512) {
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++)
            sums[j] = w_fma(w_load(reinterpret_cast<const float*>(p + at + j * 64)), one, sums[j]);
    }
    for (int j = 0; j < 8; j++) w_store(reinterpret_cast<float*>(scratch) + j % kPeakSums * 16, sums[j]);
}
