// An AVX-512 kernel table, compiled twice: with TILTYARD_VNNI, and for older CPUs without. Each alone in its
// object library: nothing else may be compiled with these flags.
#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "tiltyard/kernels.hpp"

namespace tiltyard {
namespace {
#include "simd_avx512.hpp"
//
#include "kernels.inl"
}  // namespace
#ifdef TILTYARD_VNNI
const KernelTable kernels_avx512_vnni = make_table("avx512_vnni");
#else
const KernelTable kernels_avx512 = make_table("avx512");
#endif
}  // namespace tiltyard
