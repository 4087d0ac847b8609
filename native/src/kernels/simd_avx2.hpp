// The vocabulary on AVX2 + FMA + F16C. Included inside an anonymous namespace, after <immintrin.h>.
//
// The float part is always IEEE 754 lanes with explicit fma, so every flavour gives the same bits. Only the
// integer dot product differs between flavours, and integer sums are exact whatever their order.
#include "simd_x86.hpp"

// Integer dot products: eight lanes are eight output rows, each holds four consecutive k.
struct Bytes32 {
    __m256i v;
};
static inline Bytes32 b32_load(const uint8_t* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))};
}
static inline void b32_store(uint8_t* p, Bytes32 a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.v);
}
static inline Bytes32 b32_low_nibbles(Bytes32 a) { return {_mm256_and_si256(a.v, _mm256_set1_epi8(15))}; }
static inline Bytes32 b32_high_nibbles(Bytes32 a) {
    return {_mm256_and_si256(_mm256_srli_epi16(a.v, 4), _mm256_set1_epi8(15))};
}
// nibble i (0 .. 7, low first) of each lane's four bytes, unsigned; byte i, signed
static inline F8 f8_nibble(Bytes32 a, int i) {
    const __m256i top = _mm256_sll_epi32(a.v, _mm_cvtsi32_si128(28 - 4 * i));
    return {_mm256_cvtepi32_ps(_mm256_srli_epi32(top, 28))};
}
static inline F8 f8_byte(Bytes32 a, int i) {
    const __m256i top = _mm256_sll_epi32(a.v, _mm_cvtsi32_si128(24 - 8 * i));
    return {_mm256_cvtepi32_ps(_mm256_srai_epi32(top, 24))};
}
static inline Bytes32 b32_broadcast4(const int8_t* p) {
    int32_t four;
    std::memcpy(&four, p, 4);
    return {_mm256_set1_epi32(four)};
}
// 4-bit unsigned x int8: a block of 32 adds up to at most 8 * 2 * 15 * 127 = 30480 in an int16 lane: never
// saturates.
struct Dot4 {
    __m256i v;
};
static inline Dot4 dot4_zero() { return {_mm256_setzero_si256()}; }
static inline Dot4 dot4_add(Dot4 a, Bytes32 w, Bytes32 x) {
    a.v = _mm256_add_epi16(a.v, _mm256_maddubs_epi16(w.v, x.v));
    TILTYARD_PIN(a.v);
    return a;
}
static inline F8 dot4_float(Dot4 a) {
    return {_mm256_cvtepi32_ps(_mm256_madd_epi16(a.v, _mm256_set1_epi16(1)))};
}
// int8 x int8 as |w| * sign(x, w): with w = -128 still 2 * 128 * 127 = 32512 in an int16 pair, widened at
// each step.
struct Weights8 {
    __m256i signed_bytes, magnitude;
};
struct Dot8 {
    __m256i v;
};
static inline Weights8 weights8(Bytes32 w) { return {w.v, _mm256_abs_epi8(w.v)}; }
static inline Dot8 dot8_zero() { return {_mm256_setzero_si256()}; }
static inline Dot8 dot8_add(Dot8 a, Weights8 w, Bytes32 x) {
    const __m256i pairs = _mm256_maddubs_epi16(w.magnitude, _mm256_sign_epi8(x.v, w.signed_bytes));
    a.v = _mm256_add_epi32(a.v, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    TILTYARD_PIN(a.v);
    return a;
}
static inline F8 dot8_float(Dot8 a) { return {_mm256_cvtepi32_ps(a.v)}; }

// 16 vector registers: of one or two tokens a tile holds all sums there, of more only the integer ones.
constexpr int kMostTokens = 4;
constexpr int kTokensInRegisters = 2;
#include "simd_pair.hpp"
