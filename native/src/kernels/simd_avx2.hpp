// The 8-lane vocabulary on AVX2 + FMA + F16C. Included inside an anonymous namespace, after <immintrin.h>.
//
// The float part is always eight IEEE 754 lanes with explicit fma, so every flavour gives the same bits.
// Only the integer dot product differs between flavours, and integer sums are exact whatever their order.

struct F8 {
    __m256 v;
};
static inline F8 f8_zero() { return {_mm256_setzero_ps()}; }
static inline F8 f8_set1(float x) { return {_mm256_set1_ps(x)}; }
static inline F8 f8_load(const float* p) { return {_mm256_loadu_ps(p)}; }
static inline void f8_store(float* p, F8 a) { _mm256_storeu_ps(p, a.v); }
static inline F8 f8_add(F8 a, F8 b) { return {_mm256_add_ps(a.v, b.v)}; }
static inline F8 f8_sub(F8 a, F8 b) { return {_mm256_sub_ps(a.v, b.v)}; }
static inline F8 f8_mul(F8 a, F8 b) { return {_mm256_mul_ps(a.v, b.v)}; }
static inline F8 f8_div(F8 a, F8 b) { return {_mm256_div_ps(a.v, b.v)}; }
static inline F8 f8_fma(F8 a, F8 b, F8 c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
static inline F8 f8_max(F8 a, F8 b) { return {_mm256_max_ps(a.v, b.v)}; }  // a > b ? a : b, also for NaN
static inline F8 f8_min(F8 a, F8 b) { return {_mm256_min_ps(a.v, b.v)}; }  // a < b ? a : b, also for NaN
static inline F8 f8_abs(F8 a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }
static inline F8 f8_rint(F8 a) {
    return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// 2^n for integral n in [-126, 127]
static inline F8 f8_pow2i(F8 n) {
    const __m256i i = _mm256_add_epi32(_mm256_cvtps_epi32(n.v), _mm256_set1_epi32(127));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(i, 23))};
}
// a < b ? yes : no, lane by lane
static inline F8 f8_select_less(F8 a, F8 b, F8 yes, F8 no) {
    return {_mm256_blendv_ps(no.v, yes.v, _mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ))};
}
// bit i: lane i of a equals lane i of b
static inline int f8_equal_mask(F8 a, F8 b) {
    return _mm256_movemask_ps(_mm256_cmp_ps(a.v, b.v, _CMP_EQ_OQ));
}
// lanes below n stay, the others become `other`
static inline F8 f8_keep(F8 a, int n, F8 other) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256 mask = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane));
    return {_mm256_blendv_ps(other.v, a.v, mask)};
}
// lane i becomes zero; i may lie outside 0 .. 7
static inline F8 f8_clear_lane(F8 a, int i) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return {_mm256_andnot_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(lane, _mm256_set1_epi32(i))), a.v)};
}
// the one reduction tree: (0+4, 1+5, 2+6, 3+7), (0+2, 1+3), 0+1
static inline float f8_hsum(F8 a) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
}
static inline float f8_hmax(F8 a) {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_shuffle_ps(s, s, 1)));
}
static inline float f1_fma(float a, float b, float c) {
    return _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(a), _mm_set_ss(b), _mm_set_ss(c)));
}
static inline F8 f8_load_f16(const uint16_t* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
static inline void f8_store_f16(uint16_t* p, F8 a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}
static inline F8 f8_load_i8(const int8_t* p) {
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))))};
}
// for integral values in [-127, 127]
static inline void f8_store_i8(int8_t* p, F8 a) {
    const __m256i i = _mm256_cvtps_epi32(a.v);
    const __m128i s = _mm_packs_epi32(_mm256_castsi256_si128(i), _mm256_extracti128_si256(i, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(s, s));
}

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
// Without this GCC 12 postpones the adds, keeps all products alive and spills them: a quarter slower.
#define TILTYARD_PIN(v) asm volatile("" : "+x"(v))
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
static inline void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
