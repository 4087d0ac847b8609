// The NEON kernel tables, compiled twice: for every AArch64 CPU, and with its dot product instruction.
#include <arm_neon.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "tiltyard/kernels.hpp"

namespace tiltyard {
namespace {
#include "simd_neon.hpp"
//
#include "kernels.inl"
}  // namespace
#ifdef __ARM_FEATURE_DOTPROD
const KernelTable kernels_neon_dot = make_table("neon_dot");
#else
const KernelTable kernels_neon = make_table("neon");
#endif
}  // namespace tiltyard
