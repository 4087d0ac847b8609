#include "tiltyard/isa.hpp"

#include <stdexcept>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace tiltyard {

namespace {

enum class Isa { avx2, avx512, avx512_vnni };

// Whether the CPU has the instructions and the operating system saves the registers. Asked of CPUID directly
// because __builtin_cpu_supports needs a runtime library that not every toolchain ships.
[[maybe_unused]] bool cpu_has(Isa isa) {
#if defined(__x86_64__)
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return false;
    constexpr unsigned kFma = 1u << 12, kOsxsave = 1u << 27, kAvx = 1u << 28, kF16c = 1u << 29;
    constexpr unsigned kNeeded = kFma | kOsxsave | kAvx | kF16c;
    if ((c & kNeeded) != kNeeded) return false;
    unsigned saved, high;
    asm volatile("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
    constexpr unsigned kYmm = 0x6, kZmm = 0xe6;  // sse and avx; also masks and both halves of zmm
    if ((saved & kYmm) != kYmm) return false;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    constexpr unsigned kAvx2 = 1u << 5, kF = 1u << 16, kDq = 1u << 17, kBw = 1u << 30, kVl = 1u << 31;
    if (!(b & kAvx2)) return false;
    if (isa == Isa::avx2) return true;
    constexpr unsigned kWide = kF | kDq | kBw | kVl, kVnni = 1u << 11;
    if ((b & kWide) != kWide || (saved & kZmm) != kZmm) return false;
    return isa == Isa::avx512 || (c & kVnni);
#else
    (void)isa;
    return false;
#endif
}

// Every AArch64 CPU has NEON; the dot product of bytes is an extension.
[[maybe_unused]] bool cpu_has_dot() {
#if defined(__aarch64__) && defined(__linux__)
    constexpr unsigned long kAsimdDp = 1ul << 20;  // HWCAP_ASIMDDP
    return getauxval(AT_HWCAP) & kAsimdDp;
#else
    return false;
#endif
}

std::vector<const KernelTable*> tables() {
    std::vector<const KernelTable*> found;
#ifdef TILTYARD_HAS_AVX512_VNNI
    if (cpu_has(Isa::avx512_vnni)) found.push_back(&kernels_avx512_vnni);
#endif
#ifdef TILTYARD_HAS_AVX512
    if (cpu_has(Isa::avx512)) found.push_back(&kernels_avx512);
#endif
#ifdef TILTYARD_HAS_AVX2
    if (cpu_has(Isa::avx2)) found.push_back(&kernels_avx2);
#endif
#ifdef TILTYARD_HAS_NEON_DOT
    if (cpu_has_dot()) found.push_back(&kernels_neon_dot);
#endif
#ifdef TILTYARD_HAS_NEON
    found.push_back(&kernels_neon);
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
