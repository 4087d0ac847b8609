// The vocabulary on NEON (AArch64): a vector of eight floats is two registers. Included inside an anonymous
// namespace, after <arm_neon.h>.

struct F8 {
    float32x4_t a, b;
};
static inline F8 f8_zero() { return {vdupq_n_f32(0), vdupq_n_f32(0)}; }
static inline F8 f8_set1(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x)}; }
static inline F8 f8_load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
static inline void f8_store(float* p, F8 x) { vst1q_f32(p, x.a), vst1q_f32(p + 4, x.b); }
static inline F8 f8_add(F8 x, F8 y) { return {vaddq_f32(x.a, y.a), vaddq_f32(x.b, y.b)}; }
static inline F8 f8_sub(F8 x, F8 y) { return {vsubq_f32(x.a, y.a), vsubq_f32(x.b, y.b)}; }
static inline F8 f8_mul(F8 x, F8 y) { return {vmulq_f32(x.a, y.a), vmulq_f32(x.b, y.b)}; }
static inline F8 f8_div(F8 x, F8 y) { return {vdivq_f32(x.a, y.a), vdivq_f32(x.b, y.b)}; }
static inline F8 f8_fma(F8 x, F8 y, F8 z) { return {vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b)}; }
static inline float32x4_t choose(uint32x4_t mask, float32x4_t yes, float32x4_t no) {
    return vbslq_f32(mask, yes, no);
}
// By comparison, not vmaxq: of zeros and NaN the second operand must come out, as on x86.
static inline F8 f8_max(F8 x, F8 y) {
    return {choose(vcgtq_f32(x.a, y.a), x.a, y.a), choose(vcgtq_f32(x.b, y.b), x.b, y.b)};
}
static inline F8 f8_min(F8 x, F8 y) {
    return {choose(vcltq_f32(x.a, y.a), x.a, y.a), choose(vcltq_f32(x.b, y.b), x.b, y.b)};
}
static inline F8 f8_abs(F8 x) { return {vabsq_f32(x.a), vabsq_f32(x.b)}; }
static inline F8 f8_rint(F8 x) { return {vrndnq_f32(x.a), vrndnq_f32(x.b)}; }
static inline float32x4_t pow2i(float32x4_t n) {
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)), 23));
}
static inline F8 f8_pow2i(F8 n) { return {pow2i(n.a), pow2i(n.b)}; }
static inline F8 f8_select_less(F8 x, F8 y, F8 yes, F8 no) {
    return {choose(vcltq_f32(x.a, y.a), yes.a, no.a), choose(vcltq_f32(x.b, y.b), yes.b, no.b)};
}
static inline int f8_equal_mask(F8 x, F8 y) {
    const uint32x4_t low = {1, 2, 4, 8}, high = {16, 32, 64, 128};
    return (int)vaddvq_u32(
        vorrq_u32(vandq_u32(vceqq_f32(x.a, y.a), low), vandq_u32(vceqq_f32(x.b, y.b), high)));
}
static inline F8 f8_keep(F8 x, int n, F8 other) {
    const int32x4_t low = {0, 1, 2, 3}, high = {4, 5, 6, 7}, limit = vdupq_n_s32(n);
    return {choose(vcgtq_s32(limit, low), x.a, other.a), choose(vcgtq_s32(limit, high), x.b, other.b)};
}
static inline F8 f8_clear_lane(F8 x, int i) {
    const int32x4_t low = {0, 1, 2, 3}, high = {4, 5, 6, 7}, lane = vdupq_n_s32(i);
    return {choose(vceqq_s32(low, lane), vdupq_n_f32(0), x.a),
            choose(vceqq_s32(high, lane), vdupq_n_f32(0), x.b)};
}
// the one reduction tree: (0+4, 1+5, 2+6, 3+7), (0+2, 1+3), 0+1
static inline float f8_hsum(F8 x) {
    const float32x4_t s = vaddq_f32(x.a, x.b);
    const float32x2_t t = vadd_f32(vget_low_f32(s), vget_high_f32(s));
    return vget_lane_f32(t, 0) + vget_lane_f32(t, 1);
}
static inline float f8_hmax(F8 x) {
    const float32x4_t s = choose(vcgtq_f32(x.a, x.b), x.a, x.b);
    float m = vgetq_lane_f32(s, 0);
    m = vgetq_lane_f32(s, 1) > m ? vgetq_lane_f32(s, 1) : m;
    m = vgetq_lane_f32(s, 2) > m ? vgetq_lane_f32(s, 2) : m;
    return vgetq_lane_f32(s, 3) > m ? vgetq_lane_f32(s, 3) : m;
}
static inline float f1_fma(float x, float y, float z) { return std::fma(x, y, z); }  // one fmadd
static inline F8 f8_load_f16(const uint16_t* p) {
    const float16x8_t h = vreinterpretq_f16_u16(vld1q_u16(p));
    return {vcvt_f32_f16(vget_low_f16(h)), vcvt_high_f32_f16(h)};
}
static inline void f8_store_f16(uint16_t* p, F8 x) {
    vst1q_u16(p, vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(x.a), x.b)));
}
static inline F8 f8_load_i8(const int8_t* p) {
    const int16x8_t i = vmovl_s8(vld1_s8(p));
    return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(i))), vcvtq_f32_s32(vmovl_high_s16(i))};
}
static inline void f8_store_i8(int8_t* p, F8 x) {
    const int16x4_t a = vqmovn_s32(vcvtnq_s32_f32(x.a)), b = vqmovn_s32(vcvtnq_s32_f32(x.b));
    vst1_s8(p, vqmovn_s16(vcombine_s16(a, b)));
}

// Eight rows, four consecutive k of each. The products go through 16-bit pairs, since the dot product
// instruction (sdot) is not in every AArch64 CPU.
struct Bytes32 {
    int8x16_t a, b;
};
static inline Bytes32 b32_load(const uint8_t* p) {
    const int8_t* q = reinterpret_cast<const int8_t*>(p);
    return {vld1q_s8(q), vld1q_s8(q + 16)};
}
static inline void b32_store(uint8_t* p, Bytes32 x) {
    int8_t* q = reinterpret_cast<int8_t*>(p);
    vst1q_s8(q, x.a), vst1q_s8(q + 16, x.b);
}
static inline Bytes32 b32_low_nibbles(Bytes32 x) {
    return {vandq_s8(x.a, vdupq_n_s8(15)), vandq_s8(x.b, vdupq_n_s8(15))};
}
static inline int8x16_t high_nibbles(int8x16_t x) {
    return vreinterpretq_s8_u8(vshrq_n_u8(vreinterpretq_u8_s8(x), 4));
}
static inline Bytes32 b32_high_nibbles(Bytes32 x) { return {high_nibbles(x.a), high_nibbles(x.b)}; }
static inline int32x4_t lanes_of(int8x16_t x) { return vreinterpretq_s32_s8(x); }
static inline float32x4_t nibble_of(int8x16_t x, int i) {
    const uint32x4_t top = vshlq_u32(vreinterpretq_u32_s8(x), vdupq_n_s32(28 - 4 * i));
    return vcvtq_f32_u32(vshrq_n_u32(top, 28));
}
static inline F8 f8_nibble(Bytes32 x, int i) { return {nibble_of(x.a, i), nibble_of(x.b, i)}; }
static inline float32x4_t byte_of(int8x16_t x, int i) {
    return vcvtq_f32_s32(vshrq_n_s32(vshlq_s32(lanes_of(x), vdupq_n_s32(24 - 8 * i)), 24));
}
static inline F8 f8_byte(Bytes32 x, int i) { return {byte_of(x.a, i), byte_of(x.b, i)}; }
static inline Bytes32 b32_broadcast4(const int8_t* p) {
    int32_t four;
    std::memcpy(&four, p, 4);
    const int8x16_t v = vreinterpretq_s8_s32(vdupq_n_s32(four));
    return {v, v};
}
struct Dot4 {
    int32x4_t a, b;
};
using Dot8 = Dot4;
using Weights8 = Bytes32;
static inline Dot4 dot4_zero() { return {vdupq_n_s32(0), vdupq_n_s32(0)}; }
static inline Dot8 dot8_zero() { return dot4_zero(); }
static inline int32x4_t dot_lanes(int32x4_t sum, int8x16_t w, int8x16_t x) {
#ifdef __ARM_FEATURE_DOTPROD
    return vdotq_s32(sum, w, x);
#else
    // A product is at most 128 * 127 in 16 bits; neighbours are added pairwise, in 32.
    const int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(w), vget_low_s8(x)));
    const int32x4_t high = vpaddlq_s16(vmull_high_s8(w, x));
    return vaddq_s32(sum, vpaddq_s32(low, high));
#endif
}
static inline Dot4 dot4_add(Dot4 sum, Bytes32 w, Bytes32 x) {
    return {dot_lanes(sum.a, w.a, x.a), dot_lanes(sum.b, w.b, x.b)};
}
static inline Weights8 weights8(Bytes32 w) { return w; }
static inline Dot8 dot8_add(Dot8 sum, Weights8 w, Bytes32 x) { return dot4_add(sum, w, x); }
static inline F8 dot4_float(Dot4 x) { return {vcvtq_f32_s32(x.a), vcvtq_f32_s32(x.b)}; }
static inline F8 dot8_float(Dot8 x) { return dot4_float(x); }
static inline void prefetch(const void* p) { __builtin_prefetch(p); }

// 32 registers of four lanes: two tokens take sixteen for their sums.
constexpr int kMostTokens = 4;
constexpr int kTokensInRegisters = 2;
#include "simd_pair.hpp"
