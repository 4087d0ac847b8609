// What the machine can do at most, measured: the rates that a forward pass is held against.
#pragma once
#include <cstddef>
#include <string>

namespace tiltyard {

struct Ceilings {
    double read_bytes;  // a second, of `bytes` of memory that the threads share out
    double int4, int8;  // multiply-adds a second with 4-bit and 8-bit weights
};

// Takes about `seconds`; the best of several rounds. Throws as kernels_for does, and std::bad_alloc.
Ceilings measure_ceilings(const std::string& isa, int threads, size_t bytes, double seconds);

}  // namespace tiltyard
