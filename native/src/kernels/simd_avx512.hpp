// The vocabulary on AVX-512 (F, BW, VL, DQ), with VNNI where TILTYARD_VNNI is defined. Included inside an
// anonymous namespace, after <immintrin.h>.
#include "simd_x86.hpp"

constexpr int kMostTokens = 8;
constexpr int kTokensInRegisters = 8;  // of 32 registers a token takes two

struct Wide {
    __m512 v;
};
static inline Wide w_zero() { return {_mm512_setzero_ps()}; }
static inline Wide w_load(const float* p) { return {_mm512_loadu_ps(p)}; }
static inline void w_store(float* p, Wide a) { _mm512_storeu_ps(p, a.v); }
static inline Wide w_load_f16(const uint16_t* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
static inline Wide w_scaled(Wide a, float x) { return {_mm512_mul_ps(a.v, _mm512_set1_ps(x))}; }
static inline Wide w_fma(Wide a, Wide b, Wide c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
static inline Wide w_fma1(Wide a, float x, Wide c) { return {_mm512_fmadd_ps(a.v, _mm512_set1_ps(x), c.v)}; }

static inline Wide w_set1(float x) { return {_mm512_set1_ps(x)}; }
static inline Wide w_add(Wide a, Wide b) { return {_mm512_add_ps(a.v, b.v)}; }
static inline Wide w_sub(Wide a, Wide b) { return {_mm512_sub_ps(a.v, b.v)}; }
static inline Wide w_mul(Wide a, Wide b) { return {_mm512_mul_ps(a.v, b.v)}; }
static inline Wide w_div(Wide a, Wide b) { return {_mm512_div_ps(a.v, b.v)}; }
static inline Wide w_max(Wide a, Wide b) { return {_mm512_max_ps(a.v, b.v)}; }
static inline Wide w_min(Wide a, Wide b) { return {_mm512_min_ps(a.v, b.v)}; }
static inline Wide w_rint(Wide a) {
    return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
static inline Wide w_pow2i(Wide a) {
    const __m512i i = _mm512_add_epi32(_mm512_cvtps_epi32(a.v), _mm512_set1_epi32(127));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(i, 23))};
}
static inline Wide w_load_i8(const int8_t* p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
static inline Wide w_keep(Wide a, int n, Wide other) {
    const __mmask16 kept = n <= 0 ? 0 : n >= 16 ? 0xffff : (__mmask16)((1u << n) - 1);
    return {_mm512_mask_blend_ps(kept, other.v, a.v)};
}
static inline F8 w_low(Wide a) { return {_mm512_castps512_ps256(a.v)}; }
static inline F8 w_high(Wide a) { return {_mm512_extractf32x8_ps(a.v, 1)}; }
static inline F8 w_folded_sum(Wide a) { return f8_add(w_low(a), w_high(a)); }
static inline F8 w_folded_max(Wide a) { return f8_max(w_low(a), w_high(a)); }

constexpr int kMostQueries = 6;  // 12 sums of 32 registers: enough to hide the latency of their fma

struct Bytes64 {
    __m512i v;
};
static inline Bytes64 b64_load(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
static inline void b64_store(uint8_t* p, Bytes64 a) { _mm512_storeu_si512(p, a.v); }
static inline Bytes64 b64_low_nibbles(Bytes64 a) { return {_mm512_and_si512(a.v, _mm512_set1_epi8(15))}; }
static inline Bytes64 b64_high_nibbles(Bytes64 a) {
    return {_mm512_and_si512(_mm512_srli_epi16(a.v, 4), _mm512_set1_epi8(15))};
}
static inline Wide w_nibble(Bytes64 a, int i) {
    const __m512i shifted = _mm512_srl_epi32(a.v, _mm_cvtsi32_si128(4 * i));
    return {_mm512_cvtepi32_ps(_mm512_and_si512(shifted, _mm512_set1_epi32(15)))};
}
static inline Wide w_byte(Bytes64 a, int i) {
    const __m512i top = _mm512_sll_epi32(a.v, _mm_cvtsi32_si128(24 - 8 * i));
    return {_mm512_cvtepi32_ps(_mm512_srai_epi32(top, 24))};
}
static inline __m512i broadcast4(const int8_t* p) {
    int32_t four;
    std::memcpy(&four, p, 4);
    return _mm512_set1_epi32(four);
}
#define TILTYARD_PIN_WIDE(a) asm volatile("" : "+v"(a))

struct WideDot4 {
    __m512i v;
};
static inline WideDot4 w_dot4_zero() { return {_mm512_setzero_si512()}; }
struct WideDot8 {
    __m512i v;
};

#ifdef TILTYARD_VNNI
static inline WideDot4 w_dot4_add(WideDot4 a, Bytes64 w, const int8_t* x) {
    return {_mm512_dpbusd_epi32(a.v, w.v, broadcast4(x))};
}
static inline Wide w_dot4_float(WideDot4 a) { return {_mm512_cvtepi32_ps(a.v)}; }
// vpdpbusd multiplies unsigned with signed bytes: w + 128 is unsigned, and the sum starts at -128 * sum of x.
struct WideWeights8 {
    __m512i shifted;
};
static inline WideWeights8 w_weights8(Bytes64 w) { return {_mm512_xor_si512(w.v, _mm512_set1_epi8(-128))}; }
static inline WideDot8 w_dot8_start(const int32_t* bias) { return {_mm512_set1_epi32(*bias)}; }
static inline WideDot8 w_dot8_add(WideDot8 a, WideWeights8 w, const int8_t* x) {
    return {_mm512_dpbusd_epi32(a.v, w.shifted, broadcast4(x))};
}
#else
// As in simd_avx2.hpp, whose comments say why nothing saturates.
static inline WideDot4 w_dot4_add(WideDot4 a, Bytes64 w, const int8_t* x) {
    a.v = _mm512_add_epi16(a.v, _mm512_maddubs_epi16(w.v, broadcast4(x)));
    TILTYARD_PIN_WIDE(a.v);
    return a;
}
static inline Wide w_dot4_float(WideDot4 a) {
    return {_mm512_cvtepi32_ps(_mm512_madd_epi16(a.v, _mm512_set1_epi16(1)))};
}
struct WideWeights8 {
    __m512i magnitude;
    __mmask64 negative;
};
static inline WideWeights8 w_weights8(Bytes64 w) { return {_mm512_abs_epi8(w.v), _mm512_movepi8_mask(w.v)}; }
static inline WideDot8 w_dot8_start(const int32_t*) { return {_mm512_setzero_si512()}; }
static inline WideDot8 w_dot8_add(WideDot8 a, WideWeights8 w, const int8_t* x) {
    const __m512i v = broadcast4(x);
    const __m512i turned = _mm512_mask_sub_epi8(v, w.negative, _mm512_setzero_si512(), v);
    const __m512i pairs = _mm512_maddubs_epi16(w.magnitude, turned);
    a.v = _mm512_add_epi32(a.v, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
    TILTYARD_PIN_WIDE(a.v);
    return a;
}
#endif
static inline Wide w_dot8_float(WideDot8 a) { return {_mm512_cvtepi32_ps(a.v)}; }
