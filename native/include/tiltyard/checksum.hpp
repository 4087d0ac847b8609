// A fast 64-bit checksum: finds damage on a disk, not an attacker.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "tiltyard/share_out.hpp"

namespace tiltyard {

// Pieces of 1 MiB are summed apart, so that threads share them; the sums are then summed in order. Four lanes
// of 64 bits: lane = rotate(lane ^ word, 29) * odd constant.
class Checksum {
  public:
    static uint64_t of(ThreadPool* pool, const uint8_t* data, size_t bytes) {
        const int pieces = (int)((bytes + kPiece - 1) / kPiece);
        std::vector<uint64_t> sums(pieces + 1);
        sums[pieces] = bytes;
        share_out(pool, pieces, 1, [&](int first, int last) {
            for (int i = first; i < last; i++) {
                const size_t at = (size_t)i * kPiece;
                sums[i] = piece(data + at, bytes - at < kPiece ? bytes - at : kPiece);
            }
        });
        return piece(reinterpret_cast<const uint8_t*>(sums.data()), sums.size() * 8);
    }

  private:
    static constexpr size_t kPiece = size_t{1} << 20;
    static constexpr uint64_t kOdd = 0x9e3779b97f4a7c15u;
    static uint64_t mix(uint64_t lane, uint64_t word) {
        lane ^= word;
        return (lane << 29 | lane >> 35) * kOdd;
    }
    static uint64_t piece(const uint8_t* p, size_t n) {
        uint64_t lane[4] = {1, 2, 3, 4};
        uint64_t words[4];
        for (; n >= 32; p += 32, n -= 32) {
            std::memcpy(words, p, 32);
            for (int i = 0; i < 4; i++) lane[i] = mix(lane[i], words[i]);
        }
        std::memset(words, 0, 32);
        std::memcpy(words, p, n);
        uint64_t sum = n;
        for (int i = 0; i < 4; i++) sum = mix(sum, mix(lane[i], words[i]));
        return sum ^ sum >> 32;
    }
};

}  // namespace tiltyard
