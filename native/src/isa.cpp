#include "tiltyard/isa.hpp"

#include <stdexcept>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace tiltyard {

namespace {

// AVX2, FMA and F16C in the CPU, and the operating system saves the ymm registers. Asked of CPUID directly
// because
// __builtin_cpu_supports needs a runtime library that not every toolchain ships.
[[maybe_unused]] bool cpu_has_avx2() {
#if defined(__x86_64__)
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return false;
    constexpr unsigned kFma = 1u << 12, kOsxsave = 1u << 27, kAvx = 1u << 28, kF16c = 1u << 29;
    constexpr unsigned kNeeded = kFma | kOsxsave | kAvx | kF16c;
    if ((c & kNeeded) != kNeeded) return false;
    unsigned low, high;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if ((low & 6) != 6) return false;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    return (b >> 5) & 1;
#else
    return false;
#endif
}

std::vector<const KernelTable*> tables() {
    std::vector<const KernelTable*> found;
#ifdef TILTYARD_HAS_AVX2
    if (cpu_has_avx2()) found.push_back(&kernels_avx2);
#endif
    found.push_back(&kernels_scalar);
    return found;
}

}  // namespace

std::vector<std::string> available_isas() {
    std::vector<std::string> names;
    for (const KernelTable* table : tables()) names.emplace_back(table->isa);
    return names;
}

const KernelTable& kernels_for(const std::string& isa) {
    static const std::vector<const KernelTable*> found = tables();
    if (isa.empty()) return *found.front();
    std::string names;
    for (const KernelTable* table : found) {
        if (isa == table->isa) return *table;
        names += (names.empty() ? "" : ", ") + std::string(table->isa);
    }
    throw std::invalid_argument("isa '" + isa + "' is not available on this machine; available: " + names);
}

}  // namespace tiltyard
