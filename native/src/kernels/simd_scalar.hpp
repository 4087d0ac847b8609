// The vocabulary in plain C++: the readable reference that every other flavour must equal bit for bit.
// Included inside an anonymous namespace; see simd_avx2.hpp for what each word means.

struct F8 {
    float v[8];
};
#define TILTYARD_LANES for (int i = 0; i < 8; i++)
static inline F8 f8_zero() { return {}; }
static inline F8 f8_set1(float x) {
    F8 r;
    TILTYARD_LANES r.v[i] = x;
    return r;
}
static inline F8 f8_load(const float* p) {
    F8 r;
    TILTYARD_LANES r.v[i] = p[i];
    return r;
}
static inline void f8_store(float* p, F8 a) { TILTYARD_LANES p[i] = a.v[i]; }
static inline F8 f8_add(F8 a, F8 b) {
    TILTYARD_LANES a.v[i] = a.v[i] + b.v[i];
    return a;
}
static inline F8 f8_sub(F8 a, F8 b) {
    TILTYARD_LANES a.v[i] = a.v[i] - b.v[i];
    return a;
}
static inline F8 f8_mul(F8 a, F8 b) {
    TILTYARD_LANES a.v[i] = a.v[i] * b.v[i];
    return a;
}
static inline F8 f8_div(F8 a, F8 b) {
    TILTYARD_LANES a.v[i] = a.v[i] / b.v[i];
    return a;
}
static inline F8 f8_fma(F8 a, F8 b, F8 c) {
    TILTYARD_LANES c.v[i] = std::fma(a.v[i], b.v[i], c.v[i]);
    return c;
}
static inline F8 f8_max(F8 a, F8 b) {
    TILTYARD_LANES a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
    return a;
}
static inline F8 f8_min(F8 a, F8 b) {
    TILTYARD_LANES a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i];
    return a;
}
static inline F8 f8_abs(F8 a) {
    TILTYARD_LANES a.v[i] = std::fabs(a.v[i]);
    return a;
}
static inline F8 f8_rint(F8 a) {
    TILTYARD_LANES a.v[i] = std::nearbyint(a.v[i]);
    return a;
}
static inline F8 f8_pow2i(F8 n) {
    TILTYARD_LANES {
        const int32_t bits = ((int32_t)n.v[i] + 127) << 23;
        std::memcpy(&n.v[i], &bits, 4);
    }
    return n;
}
static inline F8 f8_select_less(F8 a, F8 b, F8 yes, F8 no) {
    TILTYARD_LANES no.v[i] = a.v[i] < b.v[i] ? yes.v[i] : no.v[i];
    return no;
}
static inline int f8_equal_mask(F8 a, F8 b) {
    int mask = 0;
    TILTYARD_LANES mask |= (a.v[i] == b.v[i]) << i;
    return mask;
}
static inline F8 f8_keep(F8 a, int n, F8 other) {
    TILTYARD_LANES a.v[i] = i < n ? a.v[i] : other.v[i];
    return a;
}
static inline F8 f8_clear_lane(F8 a, int n) {
    TILTYARD_LANES a.v[i] = i == n ? 0.0f : a.v[i];
    return a;
}
static inline float f8_hsum(F8 a) {
    const float s0 = a.v[0] + a.v[4], s1 = a.v[1] + a.v[5], s2 = a.v[2] + a.v[6], s3 = a.v[3] + a.v[7];
    return (s0 + s2) + (s1 + s3);
}
static inline float f8_hmax(F8 a) {
    float m = a.v[0];
    TILTYARD_LANES m = a.v[i] > m ? a.v[i] : m;
    return m;
}
static inline float f1_fma(float a, float b, float c) { return std::fma(a, b, c); }
static inline F8 f8_load_f16(const uint16_t* p) {
    F8 r;
    TILTYARD_LANES r.v[i] = half_to_float(p[i]);
    return r;
}
static inline void f8_store_f16(uint16_t* p, F8 a) { TILTYARD_LANES p[i] = float_to_half(a.v[i]); }
static inline F8 f8_load_i8(const int8_t* p) {
    F8 r;
    TILTYARD_LANES r.v[i] = p[i];
    return r;
}
static inline void f8_store_i8(int8_t* p, F8 a) { TILTYARD_LANES p[i] = (int8_t)std::nearbyint(a.v[i]); }

struct Bytes32 {
    int8_t v[32];
};
static inline Bytes32 b32_load(const uint8_t* p) {
    Bytes32 r;
    std::memcpy(r.v, p, 32);
    return r;
}
static inline void b32_store(uint8_t* p, Bytes32 a) { std::memcpy(p, a.v, 32); }
static inline Bytes32 b32_low_nibbles(Bytes32 a) {
    for (auto& x : a.v) x = x & 15;
    return a;
}
static inline Bytes32 b32_high_nibbles(Bytes32 a) {
    for (auto& x : a.v) x = (x >> 4) & 15;
    return a;
}
static inline Bytes32 b32_broadcast4(const int8_t* p) {
    Bytes32 r;
    for (int i = 0; i < 32; i++) r.v[i] = p[i & 3];
    return r;
}
struct Dot4 {
    int32_t v[8];
};
using Dot8 = Dot4;
using Weights8 = Bytes32;
static inline Dot4 dot4_zero() { return {}; }
static inline Dot8 dot8_zero() { return {}; }
static inline Dot4 dot4_add(Dot4 a, Bytes32 w, Bytes32 x) {
    for (int i = 0; i < 32; i++) a.v[i / 4] += (int)w.v[i] * (int)x.v[i];
    return a;
}
static inline Weights8 weights8(Bytes32 w) { return w; }
static inline Dot8 dot8_add(Dot8 a, Weights8 w, Bytes32 x) { return dot4_add(a, w, x); }
static inline F8 dot4_float(Dot4 a) {
    F8 r;
    TILTYARD_LANES r.v[i] = (float)a.v[i];
    return r;
}
static inline F8 dot8_float(Dot8 a) { return dot4_float(a); }
static inline void prefetch(const void*) {}
static inline F8 f8_nibble(Bytes32 a, int n) {
    F8 r;
    TILTYARD_LANES r.v[i] = (float)(n % 2 ? (a.v[i * 4 + n / 2] >> 4) & 15 : a.v[i * 4 + n / 2] & 15);
    return r;
}
static inline F8 f8_byte(Bytes32 a, int n) {
    F8 r;
    TILTYARD_LANES r.v[i] = (float)a.v[i * 4 + n];
    return r;
}

constexpr int kMostTokens = 4;
constexpr int kTokensInRegisters = 4;
#undef TILTYARD_LANES
#include "simd_pair.hpp"
