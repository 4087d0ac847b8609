// GGUF weight encodings: their sizes, and rows to and from floats.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "tiltyard/kernels.hpp"

namespace tiltyard {

// Numbers as in ggml.
enum class GgmlType : int {
    f32 = 0,
    f16 = 1,
    q4_0 = 2,
    q4_1 = 3,
    q5_0 = 6,
    q5_1 = 7,
    q8_0 = 8,
    q4_k = 12,
    q5_k = 13,
    q6_k = 14,
    bf16 = 30
};

// Throws std::invalid_argument, naming the supported types, for any other number.
GgmlType ggml_type(int number);
std::string ggml_name(GgmlType type);
// Values that share a block, and the bytes of a block.
int block_values(GgmlType type);
size_t block_bytes(GgmlType type);
// How a matrix of this type is packed: Q4_0 becomes Q4_1 with minimum = -8 * scale, Q5_0 Q5_1 with -16 *
// scale, which loses nothing.
WeightForm packed_form(GgmlType type);

// 32 values of a row as integers, and what makes them weights: d * small[0] * q + minimum * small[1], or for
// Q6_K d * small[k / 16] * q. Block b of a row; only for types of five bits and more than one scale.
struct OpenBlock {
    int8_t q[32];         // unsigned, but for Q6_K
    uint16_t d, minimum;  // halves
    int8_t small[2];      // 1 where the type has none
};
OpenBlock open_block(GgmlType type, const uint8_t* row, int b);

// One row of `n` values (a multiple of block_values). Arithmetic is ggml's: scale * q, or scale * q +
// minimum.
void decode_row(GgmlType type, const uint8_t* raw, int n, float* out);
// Q4_0, Q4_1 and Q8_0, with ggml's reference rounding; n a multiple of 32.
void encode_row(GgmlType type, const float* values, int n, uint8_t* raw);

}  // namespace tiltyard
