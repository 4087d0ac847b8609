// Sixteen lanes as two times eight, for flavours whose registers are no wider. A weight tile has sixteen
// rows, each a lane of its own, so how lanes are grouped cannot change a bit.
struct Wide {
    F8 low, high;
};
static inline Wide w_zero() { return {f8_zero(), f8_zero()}; }
static inline Wide w_load(const float* p) { return {f8_load(p), f8_load(p + 8)}; }
static inline void w_store(float* p, Wide a) { f8_store(p, a.low), f8_store(p + 8, a.high); }
static inline Wide w_load_f16(const uint16_t* p) { return {f8_load_f16(p), f8_load_f16(p + 8)}; }
// one factor for all lanes
static inline Wide w_scaled(Wide a, float x) {
    const F8 v = f8_set1(x);
    return {f8_mul(a.low, v), f8_mul(a.high, v)};
}
static inline Wide w_fma(Wide a, Wide b, Wide c) {
    return {f8_fma(a.low, b.low, c.low), f8_fma(a.high, b.high, c.high)};
}
static inline Wide w_fma1(Wide a, float x, Wide c) {
    const F8 v = f8_set1(x);
    return {f8_fma(a.low, v, c.low), f8_fma(a.high, v, c.high)};
}

static inline Wide w_set1(float x) { return {f8_set1(x), f8_set1(x)}; }
static inline Wide w_add(Wide a, Wide b) { return {f8_add(a.low, b.low), f8_add(a.high, b.high)}; }
static inline Wide w_sub(Wide a, Wide b) { return {f8_sub(a.low, b.low), f8_sub(a.high, b.high)}; }
static inline Wide w_mul(Wide a, Wide b) { return {f8_mul(a.low, b.low), f8_mul(a.high, b.high)}; }
static inline Wide w_div(Wide a, Wide b) { return {f8_div(a.low, b.low), f8_div(a.high, b.high)}; }
static inline Wide w_max(Wide a, Wide b) { return {f8_max(a.low, b.low), f8_max(a.high, b.high)}; }
static inline Wide w_min(Wide a, Wide b) { return {f8_min(a.low, b.low), f8_min(a.high, b.high)}; }
static inline Wide w_rint(Wide a) { return {f8_rint(a.low), f8_rint(a.high)}; }
static inline Wide w_pow2i(Wide a) { return {f8_pow2i(a.low), f8_pow2i(a.high)}; }
static inline Wide w_load_i8(const int8_t* p) { return {f8_load_i8(p), f8_load_i8(p + 8)}; }
// lanes below n stay, the others become those of `other`
static inline Wide w_keep(Wide a, int n, Wide other) {
    return {f8_keep(a.low, n, other.low), f8_keep(a.high, n - 8, other.high)};
}
// lane i with lane i + 8
static inline F8 w_folded_sum(Wide a) { return f8_add(a.low, a.high); }
static inline F8 w_folded_max(Wide a) { return f8_max(a.low, a.high); }

constexpr int kMostQueries = 3;  // whose scores of a KV block are made together: 12 sums of 16 registers

// 64 bytes: sixteen rows, four consecutive k of each.
struct Bytes64 {
    Bytes32 low, high;
};
static inline Bytes64 b64_load(const uint8_t* p) { return {b32_load(p), b32_load(p + 32)}; }
static inline void b64_store(uint8_t* p, Bytes64 a) { b32_store(p, a.low), b32_store(p + 32, a.high); }
static inline Bytes64 b64_low_nibbles(Bytes64 a) { return {b32_low_nibbles(a.low), b32_low_nibbles(a.high)}; }
static inline Bytes64 b64_high_nibbles(Bytes64 a) {
    return {b32_high_nibbles(a.low), b32_high_nibbles(a.high)};
}
static inline Wide w_nibble(Bytes64 a, int i) { return {f8_nibble(a.low, i), f8_nibble(a.high, i)}; }
static inline Wide w_byte(Bytes64 a, int i) { return {f8_byte(a.low, i), f8_byte(a.high, i)}; }

// Sums of products of sixteen rows with one token: `w` unsigned 4-bit, or weights prepared from int8.
struct WideDot4 {
    Dot4 low, high;
};
static inline WideDot4 w_dot4_zero() { return {dot4_zero(), dot4_zero()}; }
static inline WideDot4 w_dot4_add(WideDot4 a, Bytes64 w, const int8_t* x) {
    const Bytes32 v = b32_broadcast4(x);
    return {dot4_add(a.low, w.low, v), dot4_add(a.high, w.high, v)};
}
static inline Wide w_dot4_float(WideDot4 a) { return {dot4_float(a.low), dot4_float(a.high)}; }

struct WideWeights8 {
    Weights8 low, high;
};
struct WideDot8 {
    Dot8 low, high;
};
static inline WideWeights8 w_weights8(Bytes64 w) { return {weights8(w.low), weights8(w.high)}; }
static inline WideDot8 w_dot8_start(const int32_t*) { return {dot8_zero(), dot8_zero()}; }
static inline WideDot8 w_dot8_add(WideDot8 a, WideWeights8 w, const int8_t* x) {
    const Bytes32 v = b32_broadcast4(x);
    return {dot8_add(a.low, w.low, v), dot8_add(a.high, w.high, v)};
}
static inline Wide w_dot8_float(WideDot8 a) { return {dot8_float(a.low), dot8_float(a.high)}; }
