// f16 and f32 weight tiles against float token rows: acc = fma(w[k], x[k], acc) for k = 0, 1, 2, ... from
// zero.

template <WeightForm Form, int M>
static inline void tile_float(const uint8_t* w, int blocks, Activations x, float* out) {
    constexpr int kBytes = Form == WeightForm::f16 ? 2 : 4;
    F8 acc[M][2];
    for (int t = 0; t < M; t++) acc[t][0] = acc[t][1] = f8_zero();
    for (int k = 0; k < blocks * kQuantBlock; k++, w += kTileRows * kBytes) {
        F8 w0, w1;
        if constexpr (Form == WeightForm::f16) {
            w0 = f8_load_f16(reinterpret_cast<const uint16_t*>(w));
            w1 = f8_load_f16(reinterpret_cast<const uint16_t*>(w) + 8);
        } else {
            w0 = f8_load(reinterpret_cast<const float*>(w));
            w1 = f8_load(reinterpret_cast<const float*>(w) + 8);
        }
#pragma GCC unroll 4
        for (int t = 0; t < M; t++) {
            const F8 v = f8_set1(x.values[t * x.row_values + k]);
            acc[t][0] = f8_fma(w0, v, acc[t][0]);
            acc[t][1] = f8_fma(w1, v, acc[t][1]);
        }
    }
    for (int t = 0; t < M; t++)
        for (int g = 0; g < 2; g++) f8_store(out + t * kTileRows + g * 8, acc[t][g]);
}

struct TileF16 {
    template <int M>
    static inline void run(const uint8_t* w, int blocks, Activations x, float* out) {
        tile_float<WeightForm::f16, M>(w, blocks, x, out);
    }
};
struct TileF32 {
    template <int M>
    static inline void run(const uint8_t* w, int blocks, Activations x, float* out) {
        tile_float<WeightForm::f32, M>(w, blocks, x, out);
    }
};
