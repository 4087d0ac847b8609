// The operations of eight and of sixteen lanes under one name, for functions written over both.
template <class V>
static inline V all_of(float x);
template <>
inline F8 all_of<F8>(float x) {
    return f8_set1(x);
}
template <>
inline Wide all_of<Wide>(float x) {
    return w_set1(x);
}
static inline F8 sum_of(F8 a, F8 b) { return f8_add(a, b); }
static inline Wide sum_of(Wide a, Wide b) { return w_add(a, b); }
static inline F8 product_of(F8 a, F8 b) { return f8_mul(a, b); }
static inline Wide product_of(Wide a, Wide b) { return w_mul(a, b); }
static inline F8 fma_of(F8 a, F8 b, F8 c) { return f8_fma(a, b, c); }
static inline Wide fma_of(Wide a, Wide b, Wide c) { return w_fma(a, b, c); }
static inline F8 max_of(F8 a, F8 b) { return f8_max(a, b); }
static inline Wide max_of(Wide a, Wide b) { return w_max(a, b); }
static inline F8 min_of(F8 a, F8 b) { return f8_min(a, b); }
static inline Wide min_of(Wide a, Wide b) { return w_min(a, b); }
static inline F8 rint_of(F8 a) { return f8_rint(a); }
static inline Wide rint_of(Wide a) { return w_rint(a); }
static inline F8 pow2i_of(F8 a) { return f8_pow2i(a); }
static inline Wide pow2i_of(Wide a) { return w_pow2i(a); }
