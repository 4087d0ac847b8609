// Eight float lanes on x86 with AVX, FMA and F16C. Included inside an anonymous namespace, after
// <immintrin.h>, by the AVX2 and the AVX-512 vocabularies.

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
static inline void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
// Without this GCC 12 postpones the adds, keeps all products alive and spills them: a quarter slower.
#define TILTYARD_PIN(v) asm volatile("" : "+x"(v))
