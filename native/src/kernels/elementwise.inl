// exp, quantisation of activations, RMS norm, SwiGLU and rotary embedding.

// exp in eight lanes, relative error about 2e-7; the input is clamped to [-87, 88].
// n = round(x / ln 2); r = x - n ln 2 in two steps; a polynomial of degree 7 in r; times 2^n.
static inline F8 f8_exp(F8 x) {
    x = f8_max(f8_min(x, f8_set1(88.0f)), f8_set1(-87.0f));
    const F8 n = f8_rint(f8_mul(x, f8_set1(1.44269504088896341f)));
    F8 r = f8_fma(n, f8_set1(-0.693359375f), x);
    r = f8_fma(n, f8_set1(2.12194440e-4f), r);
    F8 p = f8_set1(1.9875691500e-4f);
    p = f8_fma(p, r, f8_set1(1.3981999507e-3f));
    p = f8_fma(p, r, f8_set1(8.3334519073e-3f));
    p = f8_fma(p, r, f8_set1(4.1665795894e-2f));
    p = f8_fma(p, r, f8_set1(1.6666665459e-1f));
    p = f8_fma(p, r, f8_set1(5.0000001201e-1f));
    p = f8_fma(p, f8_mul(r, r), f8_add(r, f8_set1(1.0f)));
    return f8_mul(p, f8_pow2i(n));
}

constexpr float kOutlier = 12.25f;  // a block whose largest value exceeds 3.5 times its root mean square ...
constexpr float kFineSteps = 254.0f;  // ... keeps what rounding lost, in 254ths of a step, as a second int8
constexpr float kSmallest = 1e-36f;   // a block below this is zero: 127 / largest would overflow

// 32 floats -> int8 with one scale, and a second int8 for blocks with an outlier. Sums of integers are exact.
static inline void quantize_block(const F8 x[4], QuantizedBlocks out) {
    const float largest =
        f8_hmax(f8_max(f8_max(f8_abs(x[0]), f8_abs(x[1])), f8_max(f8_abs(x[2]), f8_abs(x[3]))));
    const F8 inverse = f8_set1(largest > kSmallest ? 127.0f / largest : 0.0f);
    F8 rounded[4], squares = f8_zero();
    for (int j = 0; j < 4; j++) {
        rounded[j] = f8_rint(f8_mul(x[j], inverse));
        squares = f8_fma(x[j], x[j], squares);
        f8_store_i8(out.q + j * 8, rounded[j]);
    }
    *out.scale = largest / 127.0f;
    *out.sum = *out.scale * f8_hsum(f8_add(f8_add(rounded[0], rounded[1]), f8_add(rounded[2], rounded[3])));
    *out.fine_scale = 0;
    if (largest * largest * 32.0f <= kOutlier * f8_hsum(squares) || !(largest > kSmallest)) return;
    F8 total = f8_zero();
    for (int j = 0; j < 4; j++) {
        const F8 lost = f8_fma(x[j], inverse, f8_sub(f8_zero(), rounded[j]));  // in [-0.5, 0.5] of a step
        const F8 fine = f8_rint(f8_mul(lost, f8_set1(kFineSteps)));
        f8_store_i8(out.fine + j * 8, fine);
        total = f8_add(total, fine);
    }
    *out.fine_scale = *out.scale / kFineSteps;
    *out.sum = f1_fma(*out.fine_scale, f8_hsum(total), *out.sum);
}

static void quantize(const float* x, int padded, QuantizedBlocks out) {
    for (int b = 0; b < padded / kQuantBlock; b++, x += kQuantBlock) {
        const F8 block[4] = {f8_load(x), f8_load(x + 8), f8_load(x + 16), f8_load(x + 24)};
        quantize_block(block, out.from(b));
    }
}

// 1 / sqrt(mean(x^2) + eps); four accumulators of eight lanes: element i adds to accumulator (i / 8) % 4,
// lane i % 8.
static inline float inverse_rms(const float* x, float eps, int n, int padded) {
    F8 a[4] = {f8_zero(), f8_zero(), f8_zero(), f8_zero()};
    for (int i = 0; i < padded; i += 32)
        for (int j = 0; j < 4; j++) {
            const F8 v = f8_load(x + i + j * 8);
            a[j] = f8_fma(v, v, a[j]);
        }
    const float squares = f8_hsum(f8_add(f8_add(a[0], a[1]), f8_add(a[2], a[3])));
    return 1.0f / sqrtf(squares / (float)n + eps);
}

static void norm_int8(const float* x, const float* gain, float eps, int n, int padded, QuantizedBlocks out) {
    const F8 r = f8_set1(inverse_rms(x, eps, n, padded));
    for (int i = 0; i < padded; i += kQuantBlock) {
        F8 y[4];
        for (int j = 0; j < 4; j++)
            y[j] = f8_mul(f8_mul(f8_load(x + i + j * 8), r), f8_load(gain + i + j * 8));
        quantize_block(y, out.from(i / kQuantBlock));
    }
}

static void norm_float(const float* x, const float* gain, float eps, int n, int padded, float* out) {
    const F8 r = f8_set1(inverse_rms(x, eps, n, padded));
    for (int i = 0; i < padded; i += 8)
        f8_store(out + i, f8_mul(f8_mul(f8_load(x + i), r), f8_load(gain + i)));
}

// out = gate / (1 + exp(-gate)) * up
static void silu_multiply(const float* gate, const float* up, int padded, float* out) {
    for (int i = 0; i < padded; i += 8) {
        const F8 g = f8_load(gate + i);
        const F8 e = f8_exp(f8_sub(f8_zero(), g));
        f8_store(out + i, f8_mul(f8_div(g, f8_add(f8_set1(1.0f), e)), f8_load(up + i)));
    }
}

static void rotate(float* x, const float* cosine, const float* sine, int pairs, float scale, int n) {
    for (int i = 0; i < pairs; i++) {
        const float a = x[2 * i], b = x[2 * i + 1];
        x[2 * i] = a * cosine[i] - b * sine[i];  // two products, one subtraction: -ffp-contract=off
        x[2 * i + 1] = a * sine[i] + b * cosine[i];
    }
    for (int i = 0; i < n; i += 8) f8_store(x + i, f8_mul(f8_load(x + i), f8_set1(scale)));
}

static void add(float* x, const float* y, int n) {
    for (int i = 0; i < n; i += 8) f8_store(x + i, f8_add(f8_load(x + i), f8_load(y + i)));
}
