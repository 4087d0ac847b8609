// exp, quantisation of activations, RMS norm, SwiGLU and rotary embedding.

// exp in eight or sixteen lanes, relative error about 2e-7; the input is clamped to [-87, 88].
// n = round(x / ln 2); r = x - n ln 2 in two steps; a polynomial of degree 7 in r; times 2^n.
template <class V>
[[gnu::always_inline]] static inline V exp_of(V x) {
    x = max_of(min_of(x, all_of<V>(88.0f)), all_of<V>(-87.0f));
    const V n = rint_of(product_of(x, all_of<V>(1.44269504088896341f)));
    V r = fma_of(n, all_of<V>(-0.693359375f), x);
    r = fma_of(n, all_of<V>(2.12194440e-4f), r);
    V p = all_of<V>(1.9875691500e-4f);
    p = fma_of(p, r, all_of<V>(1.3981999507e-3f));
    p = fma_of(p, r, all_of<V>(8.3334519073e-3f));
    p = fma_of(p, r, all_of<V>(4.1665795894e-2f));
    p = fma_of(p, r, all_of<V>(1.6666665459e-1f));
    p = fma_of(p, r, all_of<V>(5.0000001201e-1f));
    p = fma_of(p, product_of(r, r), sum_of(r, all_of<V>(1.0f)));
    return product_of(p, pow2i_of(n));
}
static inline F8 f8_exp(F8 x) { return exp_of(x); }

constexpr float kSmallest = 1e-36f;  // a block below this is zero: 127 / largest would overflow

static inline float largest_magnitude(const F8 x[4]) {
    return f8_hmax(f8_max(f8_max(f8_abs(x[0]), f8_abs(x[1])), f8_max(f8_abs(x[2]), f8_abs(x[3]))));
}

// Takes the largest magnitude out of x: the first of equals. Returns its place.
static inline int take_out(F8 x[4], float largest, float* value) {
    uint32_t equal = 0, positive = 0;
    for (int j = 0; j < 4; j++) {
        equal |= (uint32_t)f8_equal_mask(f8_abs(x[j]), f8_set1(largest)) << (j * 8);
        positive |= (uint32_t)f8_equal_mask(x[j], f8_set1(largest)) << (j * 8);
    }
    const int place = __builtin_ctz(equal);
    *value = positive >> place & 1 ? largest : -largest;
    for (int j = 0; j < 4; j++) x[j] = f8_clear_lane(x[j], place - j * 8);
    return place;
}

// 32 floats -> int8 with one scale, an outlier apart. The sum of the integers is exact.
static inline void quantize_block(F8 x[4], QuantizedBlocks out) {
    float largest = largest_magnitude(x);
    F8 squares = f8_zero();
    for (int j = 0; j < 4; j++) squares = f8_fma(x[j], x[j], squares);
    *out.outlier = 0;
    if (largest * largest * 2.0f > f8_hsum(squares) && largest > kSmallest) {
        *out.outlier_at = (uint8_t)take_out(x, largest, out.outlier);
        largest = largest_magnitude(x);
    }
    const F8 inverse = f8_set1(largest > kSmallest ? 127.0f / largest : 0.0f);
    for (int j = 0; j < 4; j++) {
        x[j] = f8_rint(f8_mul(x[j], inverse));
        f8_store_i8(out.q + j * 8, x[j]);
    }
    const float sum = f8_hsum(f8_add(f8_add(x[0], x[1]), f8_add(x[2], x[3])));
    *out.scale = largest / 127.0f;
    *out.sum = *out.scale * sum + *out.outlier;
    *out.bias = -128 * (int32_t)sum;
}

static void quantize(const float* x, int padded, QuantizedBlocks out) {
    for (int b = 0; b < padded / kQuantBlock; b++, x += kQuantBlock) {
        F8 block[4] = {f8_load(x), f8_load(x + 8), f8_load(x + 16), f8_load(x + 24)};
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
    for (int i = 0; i < padded; i += 16) {
        const Wide g = w_load(gate + i);
        const Wide e = exp_of(w_sub(w_zero(), g));
        w_store(out + i, w_mul(w_div(g, w_add(w_set1(1.0f), e)), w_load(up + i)));
    }
}

// GELU in its tanh form (Hendrycks and Gimpel 2016, https://arxiv.org/abs/1606.08415): 0.5 x (1 + tanh(z /
// 2)) is x / (1 + exp(-z)), with z = 2 sqrt(2 / pi) (x + 0.044715 x^3).
static void gelu_multiply(const float* gate, const float* up, int padded, float* out) {
    for (int i = 0; i < padded; i += 16) {
        const Wide g = w_load(gate + i);
        const Wide z =
            w_mul(g, w_fma(w_mul(g, g), w_set1(0.07135481627260025f), w_set1(1.5957691216057308f)));
        const Wide e = exp_of(w_sub(w_zero(), z));
        w_store(out + i, w_mul(w_div(g, w_add(w_set1(1.0f), e)), w_load(up + i)));
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

static void rotate_halves(float* x, const float* cosine, const float* sine, int pairs, float scale, int n) {
    for (int i = 0; i < pairs; i++) {
        const float a = x[i], b = x[i + pairs];
        x[i] = a * cosine[i] - b * sine[i];
        x[i + pairs] = a * sine[i] + b * cosine[i];
    }
    for (int i = 0; i < n; i += 8) f8_store(x + i, f8_mul(f8_load(x + i), f8_set1(scale)));
}

static void add(float* x, const float* y, int n) {
    for (int i = 0; i < n; i += 8) f8_store(x + i, f8_add(f8_load(x + i), f8_load(y + i)));
}

static void add_scaled(float* x, const float* y, float scale, int n) {
    const F8 s = f8_set1(scale);
    for (int i = 0; i < n; i += 8) f8_store(x + i, f8_fma(s, f8_load(y + i), f8_load(x + i)));
}
