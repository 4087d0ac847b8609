// Philox4x32-10, a counter-based random number generator: the number at a counter needs no state and no
// history. Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3",
// https://doi.org/10.1145/2063384.2063405
#pragma once
#include <array>
#include <cstdint>

namespace tiltyard {

inline std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * counter[0], p1 = (uint64_t)0xCD9E8D57u * counter[2];
        counter = {(uint32_t)(p1 >> 32) ^ counter[1] ^ key[0], (uint32_t)p1,
                   (uint32_t)(p0 >> 32) ^ counter[3] ^ key[1], (uint32_t)p0};
        key[0] += 0x9E3779B9u, key[1] += 0xBB67AE85u;
    }
    return counter;
}

// The 64 random bits of (seed, position): words 0 and 1, low word first.
inline uint64_t random_bits(uint64_t seed, uint64_t position) {
    const auto words = philox4x32({(uint32_t)position, (uint32_t)(position >> 32), 0, 0},
                                  {(uint32_t)seed, (uint32_t)(seed >> 32)});
    return words[0] | ((uint64_t)words[1] << 32);
}

}  // namespace tiltyard
