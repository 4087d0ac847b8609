// The AVX2 kernel table. Alone in its object library: nothing else may be compiled with -mavx2 -mfma -mf16c.
#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "tiltyard/kernels.hpp"

namespace tiltyard {
namespace {
#include "simd_avx2.hpp"
//
#include "kernels.inl"
}  // namespace
const KernelTable kernels_avx2 = make_table("avx2");
}  // namespace tiltyard
