// f16, bf16 and f32 weight tiles against float token rows: acc = fma(w[k], x[k], acc) for k = 0, 1, 2, ...
// from zero.

// bfloat16 is the upper half of a float.
static inline Wide w_load_bf16(const uint8_t* p) {
    uint32_t bits[kTileRows];
    for (int i = 0; i < kTileRows; i++) {
        uint16_t half;
        std::memcpy(&half, p + 2 * i, 2);
        bits[i] = (uint32_t)half << 16;
    }
    float values[kTileRows];
    std::memcpy(values, bits, sizeof values);
    return w_load(values);
}

template <WeightForm Form>
struct TileFloat {
    template <int M>
    static inline void run(const uint8_t* w, int blocks, Activations x, float* out, int stride) {
        constexpr int kBytes = Form == WeightForm::f32 ? 4 : 2;
        Wide acc[M];

#pragma GCC unroll 8
        for (int t = 0; t < M; t++) acc[t] = w_zero();
        for (int k = 0; k < blocks * kQuantBlock; k++, w += kTileRows * kBytes) {
            Wide weights;
            if constexpr (Form == WeightForm::f16)
                weights = w_load_f16(reinterpret_cast<const uint16_t*>(w));
            else if constexpr (Form == WeightForm::bf16)
                weights = w_load_bf16(w);
            else
                weights = w_load(reinterpret_cast<const float*>(w));
#pragma GCC unroll 8
            for (int t = 0; t < M; t++) acc[t] = w_fma1(weights, x.values[t * x.row_values + k], acc[t]);
        }

#pragma GCC unroll 8
        for (int t = 0; t < M; t++) w_store(out + t * stride, acc[t]);
    }
};
