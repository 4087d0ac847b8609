// The portable kernel table: slow, readable, and the reference that the others must equal bit for bit.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "tiltyard/half.hpp"
#include "tiltyard/kernels.hpp"

namespace tiltyard {
namespace {
#include "simd_scalar.hpp"
//
#include "kernels.inl"
}  // namespace
const KernelTable kernels_scalar = make_table("scalar");
}  // namespace tiltyard
